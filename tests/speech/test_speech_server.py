"""Speech over HTTP: every form of sound, events, voices, and what is refused by its field."""

import asyncio
import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import tts_models
from scripted_engine import ScriptedEngine, serving
from sounds import tone, wav
from tahr import LLM, AsyncLLM
from tahr.server.lifecycle import HttpServer
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.state.settings import Settings
from tahr.speech.audio.reading import read_audio
from tahr.speech.speaking.encoding import pcm

SAY = "/v1/audio/speech"
BODY: dict[str, Any] = {"input": "Hello there.", "seed": 3, "max_new_tokens": 12, "response_format": "pcm"}
N_BYTES = 12 * 1920 * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tts_models.write(tmp_path_factory.mktemp("tts") / "tiny")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(str(folder), n_threads=2, max_batch_size=4)
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def server(llm: AsyncLLM) -> Iterator[HttpServer]:
    engine = LlmEngine(llm)
    engine.name = "speaker"
    with serving(ScriptedEngine("chatty"), engine, settings=Settings(port=0, log_interval_s=0)) as made:
        yield made


@pytest.fixture
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=60) as made:
        yield made


def say(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post(SAY, json={**BODY, **fields})


def refused(got: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert got.status_code == status, got.text
    error: dict[str, Any] = got.json()["error"]
    assert error["message"].endswith(".")
    return error


def test_the_sound_is_that_of_the_library(client: httpx.Client, folder: Path) -> None:
    got = say(client)
    assert got.status_code == 200 and got.headers["content-type"] == "audio/pcm", got.text
    with LLM(str(folder)) as llm:
        want = llm.speak(BODY["input"], seed=3, max_frames=12).samples()
    there = np.frombuffer(got.content, "<i2").astype(int)
    assert len(got.content) == N_BYTES
    assert np.abs(there - np.frombuffer(pcm(want), "<i2")).max() <= 1


@pytest.mark.parametrize("form", ["wav", "mp3", "opus", "flac", "aac"])
def test_every_form(client: httpx.Client, form: str) -> None:
    got = say(client, response_format=form)
    assert got.status_code == 200, got.text
    heard = np.concatenate(list(read_audio(BytesIO(got.content), target=24_000)))
    assert len(heard) >= 12 * 1920 and np.abs(heard).max() > 0.01


def test_events(client: httpx.Client) -> None:
    got = say(client, stream_format="sse", chunk_frames=4)
    events = [json.loads(line.removeprefix("data: ")) for line in got.text.splitlines() if line]
    assert [each["type"] for each in events] == ["speech.audio.delta"] * 3 + ["speech.audio.done"]
    assert b"".join(base64.b64decode(each.get("audio", "")) for each in events) == say(client, chunk_frames=4).content
    assert events[-1]["usage"]["output_tokens"] == 12


def test_sound_comes_while_it_is_made(client: httpx.Client, llm: AsyncLLM) -> None:
    with client.stream("POST", SAY, json={**BODY, "chunk_frames": 1, "max_new_tokens": 60}) as got:
        first = next(got.iter_raw())
    assert 0 < len(first) < 60 * 3840
    for _ in range(200):
        if not llm.llm.engine.busy and llm.stats().pages_used == 0:
            break
        assert say(client, max_new_tokens=1).status_code == 200
    assert llm.stats().pages_used == 0, "a client that left takes its text with it"


def test_openai_python(server: HttpServer) -> None:
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="x", max_retries=0)
    more = {"seed": 3, "max_new_tokens": 12}
    with client.audio.speech.with_streaming_response.create(
        model="speaker", voice="alloy", input=BODY["input"], response_format="pcm", extra_body=more
    ) as got:
        assert got.headers["x-voice"] == "default"
        assert len(b"".join(got.iter_bytes())) == N_BYTES
    made = client.audio.speech.create(model="speaker", voice="ryan", input="Hi.", extra_body=more)
    assert made.content[:2] in (b"ID", b"\xff\xfb", b"\xff\xf3")


def test_voices(client: httpx.Client) -> None:
    voices = client.get("/v1/audio/voices").json()["voices"]
    assert [each["id"] for each in voices] == ["ryan", "dylan"] and "english" in voices[0]["languages"]
    cards = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    assert cards["speaker"]["architecture"]["output_modalities"] == ["audio"]
    assert "speech_frames_total" in client.get("/metrics").text


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"input": " "}, "input"),
    "long": ({"input": "x" * 4097}, "input"),
    "voice": ({"voice": "nobody"}, "voice"),
    "voices": ({"voice": ["ryan"]}, "voice"),
    "language": ({"language": "klingon"}, "language"),
    "form": ({"response_format": "midi"}, "response_format"),
    "events": ({"stream_format": "tape"}, "stream_format"),
    "speed": ({"speed": 2}, "speed"),
    "words": ({"ref_text": "x"}, "ref_text"),
    "path": ({"ref_audio": "/etc/passwd"}, "ref_audio"),
    "url": ({"ref_audio": "http://localhost/a.wav"}, "ref_audio"),
    "no base64": ({"ref_audio": "data:audio/wav;base64,%%%"}, "ref_audio"),
    "recording": (
        {"ref_audio": "data:audio/wav;base64," + base64.b64encode(wav(tone(300, 9000, 16_000))).decode()},
        "ref_audio",
    ),
    "temperature": ({"temperature": 99}, "temperature"),
    "chunk": ({"chunk_frames": 0}, "chunk_frames"),
    "unknown": ({"tempo": 1}, "tempo"),
    "model": ({"model": "chatty"}, "model"),
}


@pytest.mark.parametrize("name", WRONG)
def test_fields_that_are_refused(client: httpx.Client, name: str) -> None:
    fields, field = WRONG[name]
    assert refused(say(client, **fields))["param"] == field


def test_half_a_surrogate_is_refused(client: httpx.Client) -> None:
    got = client.post(SAY, content=b'{"input": "a\\ud800b", "response_format": "pcm"}')
    refused(got)


def test_a_model_that_speaks_does_not_chat(client: httpx.Client) -> None:
    body = {"model": "speaker", "messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 400
    assert client.post("/v1/completions", json={"model": "speaker", "prompt": "hi"}).status_code == 400
    assert client.post("/v1/embeddings", json={"model": "speaker", "input": "hi"}).status_code == 400


def test_servers_without_such_a_model() -> None:
    with serving(ScriptedEngine("chatty")) as made, httpx.Client(base_url=made.address) as client:
        assert refused(say(client), 503)["code"] == "no_speech_model"
        assert client.get("/v1/audio/voices").json() == {"voices": []}

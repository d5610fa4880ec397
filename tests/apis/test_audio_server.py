"""Recordings over HTTP: forms as clients send them, every format, streams, and what is refused by its field."""

import asyncio
import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import speech_models
from scripted_engine import ScriptedEngine, serving
from sounds import format_of, riff, tone, wav
from tahr import LLM, AsyncLLM
from tahr.server.lifecycle import HttpServer
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.state.settings import Settings
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.formats import srt_cue, text_of, vtt_cue

ASK, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
SOUND = wav(tone(300, 24_000, 16_000) * np.linspace(0.2, 1, 24_000, dtype=np.float32))  # two windows
KEYS = {"authorization": "Bearer one"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(str(folder), n_threads=2, max_batch_size=10)
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def server(llm: AsyncLLM) -> Iterator[HttpServer]:
    engine = LlmEngine(llm)
    engine.name = "whisper"
    limits = Settings(port=0, log_interval_s=0, max_audio_body_bytes=1 << 20, max_body_bytes=1 << 16, max_audio_s=600)
    with serving(ScriptedEngine("chatty"), engine, settings=limits) as made:
        yield made


@pytest.fixture
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=60) as made:
        yield made


def ask(client: httpx.Client, path: str = ASK, file: Any = SOUND, **fields: Any) -> httpx.Response:
    return client.post(path, files={"file": ("sound.wav", file)}, data={"beam_size": "1", "temperature": "1", **fields})


def refused(got: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert got.status_code == status, got.text
    error: dict[str, Any] = got.json()["error"]
    assert error["message"].endswith(".")
    return error


# ---- replies --------------------------------------------------------------------------------------------------------


def test_every_format(client: httpx.Client, folder: Path) -> None:
    with LLM(str(folder)) as llm:
        found = llm.transcribe(SOUND, TranscribeOptions(language="de", temperatures=(1.0,)))
        segments = list(found)
    text = text_of(segments)
    assert segments and text
    assert ask(client, language="German").json() == {"text": text, "usage": {"type": "duration", "seconds": 2}}
    plain = {form: ask(client, language="de", response_format=form) for form in ("text", "srt", "vtt")}
    assert plain["text"].text == f"{text}\n"
    assert plain["srt"].text == "".join(map(srt_cue, segments))
    assert plain["vtt"].text == "WEBVTT\n\n" + "".join(map(vtt_cue, segments))
    assert {got.headers["content-type"] for got in plain.values()} == {"text/plain; charset=utf-8"}
    form = {"response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    verbose = ask(client, language="de", **form).json()
    assert verbose["language"] == "german" and verbose["duration"] == 1.5 and verbose["text"] == text
    assert [(each["start"], each["end"], each["text"]) for each in verbose["segments"]] == [
        (segment.start, segment.end, segment.text) for segment in segments
    ]


def test_times_of_words(client: httpx.Client, folder: Path) -> None:
    with LLM(str(folder)) as llm:
        segments = list(llm.transcribe(SOUND, TranscribeOptions(language="de", temperatures=(1.0,), has_words=True)))
    words = [word for segment in segments for word in segment.words or ()]
    assert words
    form = {"response_format": "verbose_json", "language": "de"}
    alone = ask(client, **form, **{"timestamp_granularities[]": "word"}).json()
    assert alone["words"] == [{"word": word.text.strip(), "start": word.start, "end": word.end} for word in words]
    assert "segments" not in alone and alone["text"] == text_of(segments)
    both = ask(client, **form, **{"timestamp_granularities[]": ["word", "segment"]}).json()
    assert both["words"] == alone["words"] and len(both["segments"]) == len(segments)
    assert "words" not in ask(client, **form).json()
    fewer = {"timestamp_granularities[]": "word", "hallucination_silence_threshold": "0.1"}
    assert len(ask(client, **form, **fewer).json()["words"]) <= len(words)


def test_words_that_are_likely(client: httpx.Client) -> None:
    plain, likely = ask(client), ask(client, hotwords="Tahr, Paris")
    assert plain.status_code == likely.status_code == 200
    assert ask(client, **{"keywords[]": ["Tahr", "Paris"]}).json() == likely.json() != plain.json()
    assert ask(client, vad_filter="false", patience="2").status_code == 200


def test_streams_give_segments_as_they_are_found(client: httpx.Client) -> None:
    events = [json.loads(line[6:]) for line in ask(client, stream="true").text.splitlines() if line]
    *deltas, done = events
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert done["type"] == "transcript.text.done"
    assert "".join(each["delta"] for each in deltas).strip() == done["text"] == ask(client).json()["text"]


def test_the_first_event_comes_before_the_last_window(client: httpx.Client) -> None:
    sound = wav(np.tile(tone(300, 24_000, 16_000), 20))
    began = time.perf_counter()
    fields = {"stream": "true", "temperature": "1", "beam_size": "1", "language": "en"}
    with client.stream("POST", ASK, files={"file": sound}, data=fields) as got:
        pieces = got.iter_bytes()
        first = next(piece for piece in pieces if b"delta" in piece)
        first_s = time.perf_counter() - began
        rest = b"".join(pieces)
    assert b"transcript.text.done" not in first and b"transcript.text.done" in rest
    assert first_s < 0.5 * (time.perf_counter() - began)


def test_translations(client: httpx.Client) -> None:
    verbose = ask(client, TRANSLATE, response_format="verbose_json").json()
    assert verbose["task"] == "translate" and verbose["language"] in ("english", "german", "cantonese")
    assert refused(ask(client, TRANSLATE, language="de"))["param"] == "language"


def test_many_at_once_give_what_each_gives_alone(server: HttpServer) -> None:
    sounds = [wav(tone(200 + 50 * i, 20_000, 16_000)) for i in range(6)]

    async def texts(n_at_once: int) -> list[Any]:
        gate = asyncio.Semaphore(n_at_once)
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:

            async def one(sound: bytes) -> Any:
                async with gate:
                    fields = {"language": "en", "temperature": "0.8", "seed": "7"}
                    return (await client.post(ASK, files={"file": sound}, data=fields)).json()

            return await asyncio.gather(*map(one, sounds))

    assert asyncio.run(texts(6)) == asyncio.run(texts(1))


def test_openai_python(server: HttpServer) -> None:
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
    file = ("sound.wav", SOUND)
    said = client.audio.transcriptions.create(file=file, model="whisper", temperature=1)
    assert said.text
    verbose = client.audio.transcriptions.create(
        file=file, model="whisper", response_format="verbose_json", timestamp_granularities=["segment"], temperature=1
    )
    assert verbose.segments and math.isclose(verbose.duration, 1.5) and verbose.text == said.text
    timed = client.audio.transcriptions.create(
        file=file, model="whisper", response_format="verbose_json", timestamp_granularities=["word"], temperature=1
    )
    assert timed.words and timed.words[0].end >= timed.words[0].start
    for form in ("text", "srt", "vtt"):
        got: Any = client.audio.transcriptions.create(file=file, model="whisper", response_format=form, temperature=1)
        assert isinstance(got, str) and got.strip()
    events = list(client.audio.transcriptions.create(file=file, model="whisper", stream=True, temperature=1))
    assert events[-1].type == "transcript.text.done" and events[-1].text == said.text
    assert client.audio.translations.create(file=file, model="whisper", temperature=1).text
    with pytest.raises(openai.BadRequestError, match="none of this model's"):
        client.audio.transcriptions.create(file=file, model="whisper", language="klingon")


# ---- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"model": "chatty"}, "model", "writes down no recordings"),
        ({"language": "klingon"}, "language", "none of this model's"),
        ({"temperature": "3"}, "temperature", "between 0 and 1"),
        ({"temperature": "nan"}, "temperature", "between 0 and 1"),
        ({"temperature": "warm"}, "temperature", "wrong type"),
        ({"beam_size": "99"}, "beam_size", "between 1 and 16"),
        ({"response_format": "diarized_json"}, "response_format", "must be one of"),
        ({"response_format": "srt", "stream": "true"}, "stream", "is not streamed"),
        ({"stream": "maybe"}, "stream", "wrong type"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "Times of words"),
        ({"timestamp_granularities": "line"}, "timestamp_granularities", "ask for segment or word"),
        ({"timestamp_granularities[]": "word", "response_format": "srt"}, "timestamp_granularities", "verbose_json"),
        ({"hallucination_silence_threshold": "2"}, "hallucination_silence_threshold", "needs times of words"),
        ({"hallucination_silence_threshold": "nan"}, "hallucination_silence_threshold", "above 0"),
        ({"patience": "nan"}, "patience", "above 0"),
        ({"patience": "11"}, "patience", "at most be 10"),
        ({"vad_filter": "perhaps"}, "vad_filter", "wrong type"),
        ({"hotwords": "x" * 30_000}, "hotwords", "30000 characters"),
        ({"keywords[]": ["x" * 15_000, "y" * 15_000]}, "hotwords", "30002 characters"),
        ({"include[]": "logprobs"}, "include", "not supported"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy", "not supported"),
        ({"prompt": "x" * 100_000}, "prompt", "100000 characters"),
        ({"prompt": "x" * 200_000}, "prompt", "has 200000 bytes"),
        ({"prompt": b"\xff"}, "prompt", "not UTF-8"),
        ({"hotword": "x"}, "hotword", "not one this route knows"),
        ({"language": ["en", "de"]}, "language", "sent twice"),
    ],
)
def test_fields_that_are_refused(client: httpx.Client, fields: dict[str, Any], param: str, says: str) -> None:
    error = refused(ask(client, **fields))
    assert error["param"] == param and says in error["message"]


def test_fields_that_change_nothing(client: httpx.Client) -> None:
    wanted = ask(client, language="en").json()
    assert ask(client, language="en", chunking_strategy="auto", model="", prompt="").json() == wanted
    assert ask(client, language="en", model="WHISPER").json() == wanted


def test_recordings_that_are_refused(client: httpx.Client) -> None:
    for file, says in (
        (b"", "is empty"),
        (b"hello", "no recording that Tahr knows"),
        (b"#EXTM3U\nhttp://localhost/", "a playlist"),
        (SOUND[:40], "no samples"),
        (riff(format_of(3, 1, 16_000, 32), np.full(9, np.nan, np.float32).tobytes()), "no numbers"),
    ):
        for stream in ("false", "true"):
            error = refused(ask(client, file=file, stream=stream))
            assert error["param"] == "file" and says in error["message"]
    assert refused(client.post(ASK, files={"other": b""}))["param"] == "other"
    assert refused(client.post(ASK, files={"prompt": SOUND}))["param"] == "prompt"
    assert refused(client.post(ASK, data={"model": "whisper"}, files={"model": (None, "x")}))["param"] == "model"
    assert refused(client.post(ASK, files=[("file", SOUND), ("file", SOUND)]))["param"] == "file"
    missing = refused(client.post(ASK, files={"model": (None, "whisper")}))
    assert missing["param"] == "file" and "missing" in missing["message"]


def test_recordings_that_are_too_long_or_too_large(client: httpx.Client) -> None:
    long = riff(format_of(1, 1, 1000, 8), bytes([128]) * 601_000)
    error = refused(ask(client, file=long), 413)
    assert error["code"] == "audio_too_long" and "600 s" in error["message"]
    assert refused(ask(client, file=bytes(1 << 20)), 413)["code"] == "body_too_large"
    assert ask(client, file=SOUND + bytes(1 << 17)).status_code == 200, "more than other bodies may have"
    chat = client.post("/v1/chat/completions", content=bytes(1 << 17))
    assert refused(chat, 413)["code"] == "body_too_large"


def test_servers_without_such_a_model() -> None:
    with serving(ScriptedEngine("chatty")) as server:
        for fields in ({}, {"model": "whisper-1"}):
            error = refused(httpx.post(server.address + ASK, files={"file": SOUND}, data=fields), 503)
            assert error["type"] == "service_unavailable_error" and error["code"] == "no_speech_model"
        named = refused(httpx.post(server.address + ASK, files={"file": SOUND}, data={"model": "chatty"}))
        assert named["param"] == "model"


def test_what_the_model_does_not_do(client: httpx.Client) -> None:
    assert refused(ask(client, model="whisper-1"), 404)["code"] == "model_not_found"
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
    ):
        assert client.post(path, json={"model": "whisper", **body}).status_code == 400, path


def test_keys(folder: Path) -> None:
    engine = LlmEngine(AsyncLLM(str(folder), n_threads=2))
    with serving(engine, settings=Settings(port=0, log_interval_s=0, api_keys=("one",))) as server:
        for path in (ASK, TRANSLATE, "/audio/transcriptions"):
            assert httpx.post(server.address + path, files={"file": SOUND}).status_code == 401
            fields = {"temperature": "1", "beam_size": "1"}
            got = httpx.post(server.address + path, files={"file": SOUND}, data=fields, headers=KEYS, timeout=60)
            assert got.status_code == 200


# ---- the rest of the server -----------------------------------------------------------------------------------------


def test_clients_that_leave_take_their_windows_with_them(client: httpx.Client, llm: AsyncLLM) -> None:
    noise = np.random.default_rng(1).integers(0, 255, 500_000, np.uint8)
    sound = riff(format_of(1, 1, 1000, 8), noise.tobytes())  # more than 500 windows
    for stream in ("true", "false"):
        with (
            suppress(httpx.ReadTimeout),
            client.stream("POST", ASK, files={"file": sound}, data={"stream": stream}, timeout=0.7) as got,
        ):
            assert next(got.iter_bytes())
        until = time.monotonic() + 5
        while llm._transcripts._running and time.monotonic() < until:
            time.sleep(0.02)
        assert not llm._transcripts._running and llm.stats().pages_used == 0
    assert ask(client).status_code == 200


def test_metrics(client: httpx.Client) -> None:
    def value(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{model_name="whisper"'))

    names = ("tahr_audio_seconds_total", "tahr_audio_windows_total", "tahr_audio_fallbacks_total")
    before = [value(name) for name in names]
    assert ask(client).status_code == 200
    seconds, windows, fallbacks = (value(name) - was for name, was in zip(names, before, strict=True))
    assert seconds == 1.5 and windows >= 2 and fallbacks >= 2  # a temperature above 0 counts as one
    assert value("tahr_audio_real_time_factor_count") >= 1


def test_cards_say_which_model_reads_recordings(client: httpx.Client) -> None:
    cards = {card["id"]: card["architecture"]["input_modalities"] for card in client.get("/v1/models").json()["data"]}
    assert cards == {"chatty": ["text"], "whisper": ["audio"]}


def test_the_description_says_that_it_is_a_form(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    content = document["paths"][ASK]["post"]["requestBody"]["content"]
    assert list(content) == ["multipart/form-data"]
    fields = document["components"]["schemas"]["TranscriptionBody"]["properties"]
    assert fields["file"] == {"type": "string", "format": "binary"}
    assert fields["response_format"]["enum"] == ["text", "json", "verbose_json", "srt", "vtt"]

"""Recordings beside the engine's other capabilities: the same bits, or a refusal by name."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assets
import speech_models
from echo_executor import EchoExecutor
from sounds import tone, wav
from tahr import LLM, AsyncLLM
from tahr.config import EngineConfig, SamplingParams
from tahr.errors import AdapterError, ConfigError, TahrError
from tahr.grammar import Grammar
from tahr.library.transcribing.transcription import job_of, recording_of
from tahr.loading import builder
from tahr.models.lora.adapter import AdapterTarget, make_adapter
from tahr.speech.decoding.options import TranscribeOptions

SOUND = tone(300, 24_000, 16_000) * np.linspace(0.2, 1, 24_000, dtype=np.float32)
WRITES_DOWN = "This model writes down recordings"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


def options(**more: Any) -> TranscribeOptions:
    return TranscribeOptions(**{"language": "en", "max_ratio": None, "least_logprob": None, "no_speech": None, **more})


def segments(llm: LLM, chosen: TranscribeOptions) -> list[Any]:
    found = llm.transcribe(SOUND, chosen)
    return [(each.start, each.tokens, each.window.mean_logprob, each.words) for each in found]


@pytest.mark.parametrize("chosen", [options(), options(beams=3), options(temperatures=(0.7,)), options(has_words=True)])
@pytest.mark.parametrize(
    "settings",
    [{"max_batch_size": 1}, {"max_batch_size": 2}, {"prefill_chunk_size": 3}, {"prefix_cache": False}],
    ids=str,
)
def test_settings_of_the_engine_change_no_text(
    folder: Path, chosen: TranscribeOptions, settings: dict[str, Any]
) -> None:
    """Few places take sequences their memory away again and again."""
    with LLM(str(folder)) as plain, LLM(str(folder), config=EngineConfig(**settings)) as llm:
        assert segments(llm, chosen) == segments(plain, chosen) != []


def test_steps_pass_through_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EchoExecutor] = []

    def echoing(*args: Any, **more: Any) -> EchoExecutor:
        made.append(EchoExecutor(*args, **more))
        return made[-1]

    with LLM(str(folder)) as plain:
        wanted = segments(plain, options(beams=2, has_words=True))
    monkeypatch.setattr(builder, "LocalExecutor", echoing)
    with LLM(str(folder)) as llm:
        assert segments(llm, options(beams=2, has_words=True)) == wanted
    assert sum(each.n_echoes for each in made) > 5


def test_a_model_of_texts_at_work_beside_it(folder: Path) -> None:
    async def texts(chats: AsyncLLM) -> str:
        return (await chats.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40))).text

    async def spoken(listens: AsyncLLM) -> list[Any]:
        found = await listens.transcribe(wav(SOUND), options(beams=2))
        return [(each.start, each.tokens, each.window.mean_logprob) async for each in found]

    async def main() -> None:
        async with AsyncLLM(str(assets.stories())) as chats, AsyncLLM(str(folder)) as listens:
            alone = await texts(chats), await spoken(listens)
            assert await asyncio.gather(texts(chats), spoken(listens)) == list(alone)

    asyncio.run(main())


def test_windows_are_shared_under_one_salt_only(folder: Path) -> None:
    with LLM(str(folder)) as llm:
        window = recording_of(llm.model_config, iter([SOUND]), TranscribeOptions()).read(0)
        assert window
        digests = [job_of(llm, options(), salt)._rows_of(window).spans[0].digest for salt in ("", "a", "b", "a")]
    assert digests[1] == digests[3] and len(set(digests)) == 3


# ---- refused --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Any] = {
    "a text": lambda llm: llm.generate([1, 2, 3]),
    "choices": lambda llm: llm.generate([1, 2], SamplingParams(n=2)),
    "a grammar": lambda llm: llm.generate([1, 2], SamplingParams(grammar=Grammar("regex", "[0-9]+"))),
    "a session": lambda llm: llm.engine.submit_rows([1, 2], print, stays=True),
    "a vector": lambda llm: llm.embed("hello"),
    "a score": lambda llm: llm.score("a", "b"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_everything_else_is_refused_by_name(folder: Path, what: str) -> None:
    with LLM(str(folder)) as llm:
        with pytest.raises(TahrError, match=WRITES_DOWN):
            REFUSED[what](llm)
        assert not llm.engine.busy


def test_adapters_are_refused(folder: Path) -> None:
    with LLM(str(folder)) as llm, pytest.raises(AdapterError, match="does not run adapters of whisper models"):
        make_adapter({}, AdapterTarget("tiny", llm.model_config, {}), "", ())


def test_drafts_are_refused_at_load(folder: Path) -> None:
    for setting in ({"spec_ngram": True}, {"spec_draft": str(folder)}):
        with pytest.raises(ConfigError, match="texts of recordings are not drafted"):
            LLM(str(folder), **setting)
    LLM(str(folder), spec_ngram=True, spec_off=True).close()

"""Speech beside the engine's other capabilities: the same frames, or a refusal by name."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assets
import tts_models
from echo_executor import EchoExecutor
from tahr import LLM, AsyncLLM, InferenceConfig, InferenceEngine
from tahr.config import EngineConfig, SamplingParams
from tahr.errors import AdapterError, ConfigError, TahrError
from tahr.grammar import Grammar
from tahr.library.speaking.job import SpeakJob
from tahr.library.speaking.speech import planned, vector_of
from tahr.loading import builder
from tahr.models.lora.adapter import AdapterTarget, make_adapter
from tahr.speech.speaking.options import SpeakOptions

SPEAKS = "speaks and writes no text"
OPTIONS = SpeakOptions(seed=2, max_frames=12)
VOICE = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tts_models.write(tmp_path_factory.mktemp("tts") / "tiny")


def frames(llm: LLM, text: str = "Hello.") -> list[Any]:
    """The codes of a text."""
    job = SpeakJob(llm.engine, planned(llm, text, OPTIONS, None), 4)
    job.start()
    while not job.finished:
        llm.step()
        job.advance()
    return [piece.codes.tolist() for piece in job.pieces]


SETTINGS: list[dict[str, Any]] = [{"max_batch_size": 1}, {"prefill_chunk_size": 3}, {"prefix_cache": False}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_of_the_engine_change_no_frame(folder: Path, settings: dict[str, Any]) -> None:
    with LLM(str(folder)) as plain, LLM(str(folder), config=EngineConfig(**settings)) as llm:
        assert frames(llm) == frames(plain) == frames(llm) != []
        assert plain.stats().prefix_hits == 0  # prompts are short, and their frames are not those of another text


def test_frames_of_a_batch_are_those_of_each_alone(folder: Path) -> None:
    with LLM(str(folder)) as llm:
        alone = [frames(llm, text) for text in ("one", "two and three")]
        jobs = [SpeakJob(llm.engine, planned(llm, text, OPTIONS, None), 4) for text in ("one", "two and three")]
        for job in jobs:
            job.start()
        while not all(job.finished for job in jobs):
            llm.step()
            for job in jobs:
                job.advance()
        assert [[piece.codes.tolist() for piece in job.pieces] for job in jobs] == alone


def test_steps_pass_through_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EchoExecutor] = []

    def echoing(*args: Any, **more: Any) -> EchoExecutor:
        made.append(EchoExecutor(*args, **more))
        return made[-1]

    with LLM(str(folder)) as plain:
        wanted = frames(plain)
    monkeypatch.setattr(builder, "LocalExecutor", echoing)
    with LLM(str(folder)) as llm:
        assert frames(llm) == wanted
    assert sum(each.n_echoes for each in made) > 5


def test_a_model_of_texts_at_work_beside_it(folder: Path) -> None:
    async def texts(chats: AsyncLLM) -> str:
        return (await chats.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=30))).text

    async def spoken(speaks: AsyncLLM) -> list[float]:
        return [float(np.abs(each).sum()) async for each in await speaks.speak("Hello.", OPTIONS)]

    async def main() -> None:
        async with AsyncLLM(str(assets.stories())) as chats, AsyncLLM(str(folder)) as speaks:
            alone = await texts(chats), await spoken(speaks)
            assert await asyncio.gather(texts(chats), spoken(speaks)) == list(alone)

    asyncio.run(main())


def test_voices_are_shared_under_one_salt_only(tmp_path: Path) -> None:
    with LLM(str(tts_models.write(tmp_path / "base", "base"))) as llm:
        assert llm.speaking
        plan = planned(llm, "Hello.", OPTIONS, vector_of(llm.speaking, VOICE))
        digests = []
        for salt in ("", "a", "b", "a"):
            job = SpeakJob(llm.engine, plan, 4, salt)
            job.start()
            assert job._sequence
            digests.append(job._sequence.rows.spans[0].digest)
            job.close()
    assert digests[1] == digests[3] and len(set(digests)) == 3


# ---- refused --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Any] = {
    "a text": lambda llm: llm.generate([1, 2, 3]),
    "choices": lambda llm: llm.generate([1, 2], SamplingParams(n=2)),
    "a grammar": lambda llm: llm.generate([1, 2], SamplingParams(grammar=Grammar("regex", "[0-9]+"))),
    "rows": lambda llm: llm.engine.submit_rows([1, 2], print, stays=True),
    "a vector": lambda llm: llm.embed("hello"),
    "a score": lambda llm: llm.score("a", "b"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_everything_else_is_refused_by_name(folder: Path, what: str) -> None:
    with LLM(str(folder)) as llm:
        with pytest.raises(TahrError, match=SPEAKS):
            REFUSED[what](llm)
        assert not llm.engine.busy


def test_sessions_are_refused(folder: Path) -> None:
    engine = InferenceEngine(InferenceConfig(model_path=str(folder)))
    engine.load_model()
    with pytest.raises(TahrError, match=SPEAKS):
        engine.forward_prefill([1, 2], 0)


def test_adapters_are_refused(folder: Path) -> None:
    with LLM(str(folder)) as llm, pytest.raises(AdapterError, match="does not run adapters of qwen3_tts models"):
        make_adapter({}, AdapterTarget("tiny", llm.model_config, {}), "", ())


def test_what_would_do_nothing_is_refused_at_load(folder: Path) -> None:
    for setting in ({"spec_ngram": True}, {"spec_draft": str(folder)}, {"virtual_ranks": 2}):
        with pytest.raises(ConfigError, match="leave it out"):
            LLM(str(folder), **setting)
    LLM(str(folder), spec_ngram=True, spec_off=True).close()

"""Recordings of many tasks at once on one engine's thread: as each alone, within bounds, and gone when left."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import speech_models
from sounds import tone, wav
from tahr import AsyncLLM
from tahr.errors import ConfigError, GenerateError
from tahr.library.transcribing import streams
from tahr.speech.audio.errors import AudioTooLong, BadAudio
from tahr.speech.decoding.options import TranscribeOptions

PLAIN = TranscribeOptions(language="en", max_ratio=None, least_logprob=None, no_speech=None)
SOUNDS = [wav(tone(200 + 60 * i, 24_000, 16_000)) for i in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture
def llm(folder: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(str(folder), n_threads=2, max_batch_size=6)
    yield made
    asyncio.run(made.close())


async def segments(llm: AsyncLLM, sound: bytes, options: TranscribeOptions = PLAIN, **more: Any) -> list[Any]:
    stream = await llm.transcribe(sound, options, **more)
    return [(each.start, each.end, each.tokens, each.window.mean_logprob) async for each in stream]


def becomes_empty(llm: AsyncLLM, within_s: float = 2.0) -> bool:
    inner = llm._transcripts
    until = time.monotonic() + within_s
    while inner._running or inner._waiting or llm.llm.engine.busy or llm.stats().pages_used:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("beams", [1, 3])
def test_many_at_once_give_what_each_gives_alone(llm: AsyncLLM, beams: int) -> None:
    options = TranscribeOptions(language="en", beams=beams, max_ratio=None, least_logprob=None, no_speech=None)

    async def alone() -> list[Any]:
        return [await segments(llm, sound, options) for sound in SOUNDS]

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(segments(llm, sound, options) for sound in SOUNDS)))

    found = asyncio.run(alone())
    assert all(found) and asyncio.run(together()) == found
    assert becomes_empty(llm)


def test_no_more_are_at_work_than_have_room(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_AT_ONCE", 2)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(llm._transcripts._running))
            await asyncio.sleep(0.001)

    async def main() -> None:
        watching = asyncio.create_task(watch())
        options = TranscribeOptions(language="en", best_of=1, temperatures=(0.0,))
        await asyncio.gather(*(segments(llm, sound, options) for sound in SOUNDS))
        watching.cancel()

    asyncio.run(main())
    assert most == 2 and becomes_empty(llm)


def test_leaving_ends_the_process_and_the_texts(llm: AsyncLLM) -> None:
    async def main() -> None:
        noise = np.random.default_rng(1).normal(0, 0.2, 16_000 * 60).clip(-1, 1).astype(np.float32)
        for wait_s, chosen in ((0.0, PLAIN), (0.3, PLAIN), (1.0, replace(PLAIN, has_words=True))):
            stream = await llm.transcribe(wav(noise), chosen)
            await asyncio.sleep(wait_s)
            stream.close()
            assert becomes_empty(llm), wait_s

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sound", "more", "error", "says"),
    [
        (b"", {}, BadAudio, "is empty"),
        (b"hello", {}, BadAudio, "no recording that Tahr knows"),
        (SOUNDS[0], {"max_s": 1}, AudioTooLong, "1 s that are allowed"),
        (SOUNDS[0], {"options": TranscribeOptions(language="klingon")}, ConfigError, "none of this model's"),
    ],
)
def test_what_is_refused(llm: AsyncLLM, sound: bytes, more: dict[str, Any], error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        asyncio.run(segments(llm, sound, **more))
    assert becomes_empty(llm)


def test_a_fault_takes_its_own_recording_alone(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[Any]:
        bad = await llm.transcribe(SOUNDS[0], PLAIN)
        monkeypatch.setattr(bad.reader, "read", lambda *_, **more: 1 / 0)
        good = segments(llm, SOUNDS[1])
        with pytest.raises(GenerateError, match="ZeroDivisionError"):
            async for _ in bad:
                pass
        return await good

    assert asyncio.run(main())


def test_closing_the_engine_ends_recordings(folder: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM(str(folder), n_threads=2)
        stream = await llm.transcribe(SOUNDS[0] * 20, PLAIN)
        await llm.close()
        with pytest.raises(GenerateError, match="closed"):
            async for _ in stream:
                pass

    asyncio.run(main())


def test_models_of_texts_refuse_by_kind() -> None:
    import assets

    async def main() -> None:
        async with AsyncLLM(str(assets.stories()), n_threads=1) as llm:
            with pytest.raises(ConfigError, match="A llama model reads no recordings"):
                await llm.transcribe(SOUNDS[0])

    asyncio.run(main())

"""Recordings written down by the library and the command: a tiny model of random numbers, and a real one."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assets
import speech_models
from sounds import tone, wav
from tahr import LLM
from tahr.cli import main as cli
from tahr.cli.terminal.sound_progress import SoundProgress
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.results import SpokenSegment

SOUND = tone(300, 24_000, 16_000) * np.linspace(0.2, 1, 24_000, dtype=np.float32)  # two windows of the tiny model
PLAIN = TranscribeOptions(language="en", max_ratio=None, least_logprob=None, no_speech=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with LLM(str(folder), config=EngineConfig(max_batch_size=6)) as found:
        yield found


def facts(segments: list[SpokenSegment]) -> list[tuple[Any, ...]]:
    return [(s.id, s.seek, s.start, s.end, s.tokens, s.window.mean_logprob, s.window.no_speech) for s in segments]


def is_empty(llm: LLM) -> bool:
    llm.engine.scheduler.rows.check()  # type: ignore[union-attr]
    return not llm.engine.busy and llm.stats().pages_used == 0 and not llm.engine.scheduler.running


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"beams": 2, "patience": 2.0}, {"temperatures": (0.7,)}])
def test_paths_bytes_and_samples_give_the_same_segments(llm: LLM, tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(wav(SOUND))
    samples = (SOUND * 32767).round().astype(np.float32) / 32768
    chosen = TranscribeOptions(language="en", max_ratio=None, least_logprob=None, no_speech=None, **options)
    found = [facts(list(llm.transcribe(each, chosen))) for each in (path, path.read_bytes(), samples)]
    assert found[0] and found[0] == found[1] == found[2]
    assert is_empty(llm)


def test_segments_are_found_as_they_are_asked_for(llm: LLM) -> None:
    """Text of the first window comes before the second one is read."""
    read: list[int] = []

    def blocks() -> Any:
        for i in range(0, 4 * len(SOUND), 4_000):
            read.append(i)
            yield np.tile(SOUND, 4)[i : i + 4_000]

    from tahr.library.transcribing.transcription import Transcription

    with Transcription(llm, blocks(), PLAIN) as found:
        first = next(found)
        assert first.start < 0.8 and len(read) <= 8
    assert is_empty(llm)


def test_two_recordings_at_once_give_what_each_gives_alone(llm: LLM) -> None:
    sounds = [SOUND, SOUND[::-1].copy()]
    alone = [facts(list(llm.transcribe(sound, PLAIN))) for sound in sounds]
    both = [llm.transcribe(sound, PLAIN) for sound in sounds]
    together: list[list[SpokenSegment]] = [[], []]
    left = {0, 1}
    while left:
        for i in list(left):
            segment = next(both[i], None)
            if segment is None:
                left.remove(i)
            else:
                together[i].append(segment)
    assert [facts(segments) for segments in together] == alone


def test_leaving_a_recording_frees_what_it_holds(llm: LLM) -> None:
    for _ in range(3):
        found = llm.transcribe(SOUND, PLAIN)
        next(found)
        found.close()
        assert is_empty(llm)
    never_begun = llm.transcribe(SOUND, PLAIN)
    never_begun.close()
    assert is_empty(llm)


def test_silence_has_no_text(llm: LLM) -> None:
    assert list(llm.transcribe(np.zeros(60_000, np.float32), PLAIN)) == []
    assert list(llm.transcribe(np.zeros(0, np.float32), PLAIN)) == []


def test_the_language_is_heard(llm: LLM) -> None:
    found = llm.transcribe(SOUND, TranscribeOptions(max_ratio=None, least_logprob=None))
    next(found)
    assert found.heard and found.language in speech_models.LANGUAGES
    found.close()


def test_what_is_no_recording(llm: LLM) -> None:
    for sound, says in (
        (np.zeros((2, 100), np.float32), "with 2 axes"),
        (np.zeros(100, np.int16), "array of int16"),
        (np.full(100, np.nan, np.float32), "no numbers"),
        (b"hello", "no recording that Tahr knows"),
        ("/nowhere.wav", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=says):
            list(llm.transcribe(sound, PLAIN))
    assert is_empty(llm)


def test_models_of_texts_are_refused_by_kind(llm: LLM) -> None:
    with LLM(str(assets.stories())) as texts, pytest.raises(ConfigError, match="A llama model reads no recordings"):
        texts.transcribe(SOUND)
    with pytest.raises(ConfigError, match="writes down recordings"):
        llm.generate([1, 2, 3])
    assert is_empty(llm)


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_each_format(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], llm: LLM
) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(wav(SOUND))

    def written(*more: str) -> str:
        assert cli.main(["transcribe", str(folder), str(path), "-l", "english", "--beam", "1", *more]) == 0
        found = capsys.readouterr()
        assert "[1.5 s of sound in" in found.err
        return found.out

    whole = json.loads(written("-f", "verbose_json"))
    assert whole["task"] == "transcribe" and whole["language"] == "english" and whole["duration"] == 1.5
    texts = [segment["text"] for segment in whole["segments"]]
    assert texts and whole["text"] == "".join(texts).strip()
    assert json.loads(written("-f", "json")) == {"text": whole["text"]}
    assert written("-f", "vtt").startswith("WEBVTT\n\n00:00:0")
    assert written("-f", "srt").startswith("1\n00:00:0")
    timed = json.loads(written("-f", "verbose_json", "--words"))["words"]
    assert timed and set(timed[0]) == {"word", "start", "end"}
    assert written("-f", "srt", "--words").count(" --> ") == len(timed)
    assert written("-f", "vtt", "--words", "--hallucination-silence-threshold", "0.1").startswith("WEBVTT")
    assert written("--hotwords", "Tahr", "--patience", "2", "--best-of", "2", "--no-vad")
    assert written() == "".join(f"{text.strip()}\n" for text in texts)


def test_the_command_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        ([str(folder), "/nowhere.wav"], "cannot be read"),
        ([str(folder), "x.wav", "-l", "klingon"], "'klingon' is none of this model's"),
        ([str(folder), "x.wav", "--temperature", "3"], "between 0 and 1"),
        ([str(folder), "a.wav", "b.wav", "-f", "vtt"], "give one file"),
        ([str(folder), "x.wav", "--words"], "have no place in text"),
        ([str(folder), "x.wav", "--words", "-f", "json"], "choose -f srt, vtt, verbose_json"),
        ([str(folder), "x.wav", "--hallucination-silence-threshold", "2"], "needs times of words"),
        ([str(folder), "x.wav", "--patience", "0"], "patience must lie above 0"),
        ([str(folder), "x.wav", "--best-of", "99"], "between 1 and 16"),
        ([str(folder), "a.wav", "b.wav", "-f", "srt"], "give one file"),
        ([str(assets.stories()), "x.wav"], "reads no recordings"),
    ):
        assert cli.main(["transcribe", *arguments]) != 0
        assert says in capsys.readouterr().err


def test_a_terminal_shows_how_far_it_is() -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = SoundProgress(out)
    progress.show(3725.5)
    progress.wipe()
    assert out.getvalue().startswith("\r01:02:05 written down, ") and out.getvalue().endswith("\r\x1b[K")
    for quiet in (SoundProgress(out, shown=False), SoundProgress(StringIO())):
        quiet.show(1)
        quiet.wipe()
    assert out.getvalue().count("\r") == 2


# ---- a real model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 5])
def test_what_a_real_model_hears(beams: int) -> None:
    """OpenAI's tiny.en, as `tests/helpers/whisper_checkpoint.py` turns it."""
    folder = assets.need("whisper-tiny.en")
    sound = assets.need("agent-alreadyon.wav")
    with LLM(str(folder)) as llm:
        found = list(llm.transcribe(sound, beams=beams))
    text = " That agent is already logged on. Please enter your agent number followed by the pound key."
    assert [(each.start, each.end, each.text) for each in found] == [(0, 6, text)]  # as OpenAI's own program

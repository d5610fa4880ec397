"""Texts that are spoken: a tiny model of random numbers, as the released code runs it."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tts_models
from tahr import LLM
from tahr.backends import open_backend
from tahr.cli import main as cli
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.sequences.frames import CodeSampling, Frames, FrameSampling
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows, RowSource, spans_of
from tahr.errors import ConfigError, CorruptFile, TahrError, UnsupportedModel
from tahr.kv.prefix import HASH_BYTES
from tahr.loading.builder import build_engine
from tahr.loading.sound.speaking import SpeakingParts, speaking_parts
from tahr.models.loader.load import load, open_model
from tahr.speech.audio.reading import read_audio
from tahr.speech.speaking.guard import SilenceGuard
from tahr.speech.speaking.options import SpeakOptions
from tahr.speech.speaking.prompt import SpokenPrompt, Wanted, spoken_prompt
from tahr.speech.speaking.sentences import parts_of

EXPECTED = dict(np.load(tts_models.FIXTURE / "expected.npz"))
WORDS = EXPECTED["text"][3:11].tolist()
TOKENS = {"assistant\n": [281, 282], "user\nhow": [283, 282, 17, 41], "\n": [282]}
TOKENS["assistant\nwords"] = TOKENS["assistant\n"] + WORDS
LIKELIEST = FrameSampling(CodeSampling(0.0), CodeSampling(0.0))
WAYS = {
    "named": Wanted("words", "english", "ryan"),
    "dialect": Wanted("words", "", "dylan"),
    "designed": Wanted("words", instructions="how"),
    "streamed": Wanted("words", "", "ryan", is_streaming=True),
    "cloned": Wanted("words", "english", has_vector=True, is_streaming=True),
}
TEXT = "Hello there. Good day."
VOICE = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
OF_KIND: dict[str, dict[str, Any]] = {
    "custom_voice": {"voice": "dylan"},
    "voice_design": {"instructions": "an old man"},
    "base": {"voice_of": VOICE},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tts")
    return {kind: tts_models.write(base / kind, kind) for kind in OF_KIND}


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> Iterator[LLM]:
    with LLM(str(folders["custom_voice"]), config=EngineConfig(max_batch_size=4)) as found:
        yield found


@pytest.fixture(scope="module")
def parts(folders: dict[str, Path]) -> SpeakingParts:
    source = open_model([], folders["base"])
    found = speaking_parts(source, source.model_config(), folders["base"])
    assert found
    return found


def engine_on(backend: str) -> Engine:
    made = open_backend(backend)
    decoder = load(open_model([], tts_models.FIXTURE), made).decoder
    return build_engine(made, decoder, EngineConfig(backend=backend))[0]


def rows_of(prompt: SpokenPrompt) -> PromptRows:
    if prompt.voice_at < 0:
        return NO_ROWS
    digest = bytes(HASH_BYTES)
    return PromptRows(tuple(spans_of(prompt.voice_at, digest, 1)), {digest: RowSource(EXPECTED["vector"][None])})


def drawn(engine: Engine, prompt: SpokenPrompt, n: int, padding: int) -> list[list[int]]:
    """The frames that follow a prompt, the likeliest each time."""
    frames = Frames(engine.facts.frames, prompt.codes, LIKELIEST)
    got: list[list[int]] = []
    seq = engine.submit_frames(
        prompt.tokens, frames, lambda rows: got.append(rows[-1].astype(int).tolist()), rows_of(prompt)
    )
    found: list[list[int]] = []
    for _ in range(20 * n):
        engine.step()
        if not got:
            continue
        codes = got.pop()
        if codes[0] == engine.facts.frames.n_sounds or len(found) == n:
            break
        found.append(codes)
        frames.append(codes)
        later = prompt.later
        engine.scheduler.extend(seq, [later[len(found) - 1] if len(found) <= len(later) else padding])
    engine.abort(seq)
    return found


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_frames_are_those_of_the_released_code(backend: str, parts: SpeakingParts) -> None:
    engine = engine_on(backend)
    for name, wanted in WAYS.items():
        prompt = spoken_prompt(wanted, parts.tokens, TOKENS.__getitem__)
        want = EXPECTED[f"codes_{name}"].tolist()
        assert drawn(engine, prompt, len(want), parts.tokens.text.pad) == want, name
    engine.scheduler.rows.check()  # type: ignore[union-attr]


def test_the_codec_is_that_of_the_released_code(parts: SpeakingParts) -> None:
    frames = EXPECTED["frames"]
    assert parts.codec.sizes.n_samples == 1920
    whole = parts.codec.stream().decode(frames)
    assert np.abs(whole - EXPECTED["wave"]).max() < 1e-5
    for n in (1, 2, 7):
        stream = parts.codec.stream()
        pieces = [stream.decode(frames[i : i + n]) for i in range(0, len(frames), n)]
        assert np.abs(np.concatenate(pieces) - whole).max() < 1e-5


def test_the_speaker_encoder_is_that_of_the_released_code(parts: SpeakingParts) -> None:
    assert parts.voices
    found = parts.voices.vector(EXPECTED["sound"].astype(np.float32))
    assert np.abs(found - EXPECTED["speaker"]).max() < 2e-5


@pytest.mark.parametrize("kind", OF_KIND)
def test_every_kind_speaks(kind: str, folders: dict[str, Path]) -> None:
    with LLM(str(folders[kind]), config=EngineConfig(max_batch_size=2)) as llm:
        ways: list[dict[str, Any]] = [{}, {"chunk_frames": 3}, {"chunk_frames": 40}, {"is_streaming": True}]
        heard = [llm.speak(TEXT, seed=3, max_frames=20, **way, **OF_KIND[kind]).samples() for way in ways]
        assert len(heard[0]) and np.abs(heard[0]).max() > 0.01
        assert all(np.abs(each - heard[0]).max() < 1e-5 for each in heard[1:3])
        assert llm.stats().pages_used == 0 and not llm.engine.busy


def test_texts_beside_each_other_sound_the_same(llm: LLM) -> None:
    alone = [llm.speak(text, seed=7, max_frames=16).samples() for text in ("one", "two and a half", "three")]
    together = [llm.speak(text, seed=7, max_frames=16, chunk_frames=2) for text in ("one", "two and a half", "three")]
    found: list[list[Any]] = [[] for _ in together]
    for _ in range(10):
        for each, made in zip(together, found, strict=True):
            made += [samples for samples in [next(each, None)] if samples is not None]
    for want, made in zip(alone, found, strict=True):
        assert np.abs(np.concatenate(made) - want).max() < 1e-5


def test_a_text_that_lost_its_pages_goes_on_as_before(folders: dict[str, Path], llm: LLM) -> None:
    texts = ("first", "fifth")
    alone = [llm.speak(text, seed=5, max_frames=30).samples() for text in texts]
    assert min(map(len, alone)) > 15 * 1920, "both last long enough to meet"
    config = EngineConfig(max_batch_size=2, page_size=8, kv_bytes=7 * 3072, context_size=56)
    with LLM(str(folders["custom_voice"]), config=config) as small:
        both = [small.speak(text, seed=5, max_frames=30, chunk_frames=2) for text in texts]
        found: list[list[Any]] = [[], []]
        for _ in range(24):
            for each, made in zip(both, found, strict=True):
                made += [samples for samples in [next(each, None)] if samples is not None]
        assert small.stats().preemptions
    for want, made in zip(alone, found, strict=True):
        assert np.abs(np.concatenate(made) - want).max() < 1e-5


def test_long_texts_are_spoken_part_by_part(llm: LLM) -> None:
    text = "A sentence of some words. " * 60
    assert len(parts_of(text)) > 1 and " ".join(parts_of(text)).split() == text.split()
    speech = llm.speak(text, seed=1, max_frames=5)
    assert len(speech.samples()) == len(parts_of(text)) * 5 * 1920
    assert speech.reason == "length"
    assert parts_of("x" * 1500) == ["x" * 400] * 3 + ["x" * 300]


def test_silence_ends_a_part() -> None:
    guard = SilenceGuard(24_000)
    second = np.zeros(24_000, np.float32)
    loud = second.copy()
    loud[0] = 0.5
    assert [guard.hears_nothing(x) for x in (second, second, loud, second, second, second, second)] == [False] * 6 + [
        True
    ]


def test_leaving_frees_everything(llm: LLM) -> None:
    with llm.speak(TEXT, max_frames=50, chunk_frames=2) as speech:
        next(speech)
    assert not llm.engine.busy and llm.stats().pages_used == 0 and not llm.engine.scheduler.running


REFUSED: dict[str, dict[str, Any]] = {
    "nothing to say": {"text": "  "},
    "no voice": {"voice": "nobody"},
    "does not speak": {"language": "klingon"},
    "chunk_frames": {"chunk_frames": 0},
    "top_p": {"top_p": 0.0},
    "temperature": {"temperature": float("nan")},
    "copies no voices": {"voice_of": VOICE},
    "half a surrogate": {"text": "a\ud800b"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused(llm: LLM, words: str) -> None:
    given = dict(REFUSED[words])
    with pytest.raises(TahrError, match=words):
        llm.speak(given.pop("text", TEXT), **given)


def test_kinds_refuse_what_is_for_others(folders: dict[str, Path], tmp_path: Path) -> None:
    with LLM(str(folders["voice_design"])) as llm:
        with pytest.raises(ConfigError, match="description"):
            llm.speak(TEXT)
        with pytest.raises(ConfigError, match="no voices with names"):
            llm.speak(TEXT, voice="ryan", instructions="old")
    with LLM(str(folders["base"])) as llm:
        with pytest.raises(ConfigError, match="follows no instructions"):
            llm.speak(TEXT, instructions="old", voice_of=VOICE)
        with pytest.raises(ConfigError, match="quarter of a second"):
            llm.speak(TEXT, voice_of=VOICE[:100])
    small = tts_models.write(tmp_path / "small", tts_model_size="0b6")
    with LLM(str(small)) as llm, pytest.raises(ConfigError, match="too small to follow instructions"):
        llm.speak(TEXT, instructions="old")


def test_a_model_that_speaks_does_nothing_else(llm: LLM) -> None:
    for work in (lambda: llm.generate("hello"), lambda: llm.embed("hello"), lambda: llm.score("a", "b")):
        with pytest.raises(ConfigError, match="speaks and writes no text"):
            work()
    with pytest.raises(ConfigError, match="reads no recordings"):
        llm.transcribe(VOICE)


def test_other_models_do_not_speak() -> None:
    backend = open_backend("cpu")
    backend.draws_frames = False  # type: ignore[misc]
    with pytest.raises(UnsupportedModel, match="do not run on the cpu backend yet"):
        load(open_model([], tts_models.FIXTURE), backend)


def test_models_of_other_shapes_are_refused(tmp_path: Path) -> None:
    config = json.loads((tts_models.FIXTURE / "config.json").read_text())
    with pytest.raises(UnsupportedModel, match="'singer'"):
        LLM(str(tts_models.write(tmp_path / "kind", "singer")))
    wrong = {**config["talker_config"], "num_code_groups": 5}
    with pytest.raises(CorruptFile):
        LLM(str(tts_models.write(tmp_path / "codes", talker_config=wrong)))
    folder = tts_models.write(tmp_path / "rates")
    place = folder / "speech_tokenizer" / "config.json"
    stated = json.loads(place.read_text())
    for name, value in (("upsample_rates", [8, 5, 4, 4]), ("upsample_rates", [10**9]), ("codebook_size", 16)):
        inner = {**stated["decoder_config"], name: value}
        place.write_text(json.dumps({**stated, "decoder_config": inner}))
        with pytest.raises(CorruptFile):
            LLM(str(folder))


def test_the_command_writes_files(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folders["custom_voice"])
    for form in ("wav", "flac", "mp3"):
        path = tmp_path / f"a.{form}"
        assert cli.main(["tts", model, TEXT, "-o", str(path), "--seed", "1", "--max-frames", "6"]) == 0
        heard = np.concatenate(list(read_audio(BytesIO(path.read_bytes()), target=24_000)))
        assert len(heard) >= 6 * 1920
    assert "times as fast as it is heard" in capsys.readouterr().err
    for wrong in (
        ["-o", "a.txt"],
        ["-o", str(tmp_path / "b.wav"), "--ref-text", "x"],
        ["-o", str(tmp_path / "no" / "a.wav")],
    ):
        assert cli.main(["tts", model, TEXT, *wrong]) != 0
    assert cli.main(["list", "--voices", model]) == 0
    assert "beijing_dialect" in capsys.readouterr().out


def test_options_are_checked() -> None:
    for wrong in ({"max_frames": 0}, {"repetition_penalty": 0.0}, {"instructions": "x" * 5000}, {"top_k": -1}):
        with pytest.raises(ConfigError):
            SpeakOptions(**wrong)

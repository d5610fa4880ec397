"""Times of words: the functions that find them, a tiny model beside transformers, and a real one beside OpenAI's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assets
import speech_models
from sounds import tone
from speech_cases import CASES, FIXTURES, HEADS, SAID
from speech_runs import engine_of, loaded_on, recording
from tahr import LLM
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.executor.stored_keys import stored_keys
from tahr.library.transcribing.looking import LookedAt
from tahr.speech.audio.windows import SoundWindow
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.tokens import heads_of, read_tokens
from tahr.speech.decoding.wanted import LookAt
from tahr.speech.words.looks import Looks, alignment_of, first_rows, median_filtered
from tahr.speech.words.silences import WindowPlace, first_made_up, is_anomalous, last_word_end, leading_silence
from tahr.speech.words.splitting import words_of
from tahr.speech.words.timing import OpenSegment, WordTime, merge_punctuation, put_words

TOLERANCE = 2e-4
N_BEFORE = 3  # tokens before the one that says that no times follow
SOUND = tone(300, 24_000, 16_000) * np.linspace(0.2, 1, 24_000, dtype=np.float32)

# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 4, 7, 40])
def test_medians_are_those_of_neighbours(n: int) -> None:
    rows = np.random.RandomState(n).standard_normal((5, n)).astype(np.float32)
    wanted = rows
    if n > 3:
        padded = np.pad(rows, ((0, 0), (3, 3)), mode="reflect")
        wanted = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, axis=1), axis=2)
    np.testing.assert_array_equal(median_filtered(rows), wanted)


def slow_first_rows(alignment: np.ndarray) -> list[int]:
    """The same way, place by place."""
    costs = -alignment.astype(np.float64)
    n, m = costs.shape
    sums = np.full((n + 1, m + 1), np.inf, np.float32)
    steps = np.zeros((n + 1, m + 1), int)
    sums[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            choices = [sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1]]
            best = int(np.argmin(choices)) if sorted(choices)[0] < sorted(choices)[1] else 2
            steps[i, j] = best
            sums[i, j] = costs[i - 1, j - 1] + choices[best]
    found = [0] * n
    i, j = n, m
    while i > 0 and j > 0:
        found[i - 1] = j - 1
        i, j = i - (steps[i, j] != 2), j - (steps[i, j] != 1)
    return found


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 9), (9, 1), (6, 17), (17, 6), (12, 30)])
def test_the_way_through_tokens_and_rows(n: int, m: int) -> None:
    random = np.random.RandomState(n * m)
    for values in (random.standard_normal((n, m)), random.randint(0, 3, (n, m)), np.zeros((n, m))):
        alignment = values.astype(np.float32)
        assert first_rows(alignment).tolist() == slow_first_rows(alignment)


def test_numbers_that_are_none_leave_times() -> None:
    queries = np.full((1, 5, 4), np.nan, np.float32)
    looks = Looks(queries, np.ones((1, 20, 4), np.float32), 1.0, np.ones(2, np.float32))
    starts = first_rows(alignment_of(looks, 20))
    assert len(starts) == 5 and (starts >= 0).all() and (starts < 20).all()


def test_heads_of_files() -> None:
    assert heads_of({}, 4, 2) == ((2, 0), (2, 1), (3, 0), (3, 1))
    assert heads_of({"alignment_heads": [[1, 0], [0, 1], [1, 0]]}, 2, 2) == ((1, 0), (0, 1))
    for bad in ([[2, 0]], [[0, 2]], [[-1, 0]], [[0]], [0, 1], "heads", [["0", "1"]], [[True, 0]], {}):
        assert heads_of({"alignment_heads": bad}, 2, 2) == ()


# ---- words ----------------------------------------------------------------------------------------------------------


def as_text(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        (" He's here, now.", "en", [" He", "'s", " here", ",", " now", "."]),
        ("über", "de", ["über"]),
        ("你好。", "zh", ["你", "好", "。"]),
    ],
)
def test_words_of_tokens(text: str, language: str, words: list[str]) -> None:
    tokens = list(text.encode())
    found = words_of(tokens, as_text, language)
    assert [token for word in found for token in word.tokens] == tokens
    assert [word.text for word in found] == words


def test_tokens_that_end_within_a_character_are_a_word() -> None:
    tokens = list("ab 你".encode())[:-1]
    found = words_of(tokens, as_text, "en")
    assert [len(word.tokens) for word in found] == [2, 3]


def times(*words: tuple[str, float, float]) -> list[WordTime]:
    return [WordTime(text, 1, start, end, 0.9) for text, start, end in words]


def test_punctuation_joins_its_word() -> None:
    words = times(
        (' "', 0, 0.1), (" Yes", 0.1, 0.4), (",", 0.4, 0.5), ('"', 0.5, 0.5), (" he", 0.6, 0.8), (".", 0.8, 1)
    )
    merge_punctuation(words)
    assert [(word.text, word.n_tokens) for word in words if word.text] == [(' " Yes,"', 4), (" he.", 2)]


def segment(start: float, end: float, n_tokens: int) -> OpenSegment:
    return OpenSegment(start, end, " text", (), list(range(n_tokens)))


def test_segments_get_their_words_and_their_times() -> None:
    words = times((" One", 0.0, 0.4), (" two", 0.4, 0.8), (".", 0.8, 2.8), (" Three", 2.8, 3.2), (" four", 3.2, 3.6))
    parts = [segment(10, 12.9, 3), segment(12.9, 13.5, 2)]
    put_words(parts, words, 10.0, 9.8)
    assert [[word.text for word in part.words] for part in parts] == [[" One", " two."], [" Three", " four"]]
    # The pause after the sentence is cut to twice the usual word, before its point joins the word.
    assert parts[0].words[-1].end == pytest.approx(10.8) and parts[0].end == pytest.approx(10.8)
    assert (parts[1].start, parts[1].end) == pytest.approx((12.8, 13.6))


def test_a_word_after_a_pause_is_not_as_long_as_the_pause() -> None:
    words = times((" Far", 0.0, 8.0), (" from", 8.0, 8.3), (" it", 8.3, 8.6))
    parts = [segment(7.6, 8.6, 3)]
    put_words(parts, words, 0.0, 0.0)
    assert parts[0].words[0].start == pytest.approx(7.4) and parts[0].words[0].end == 8.0


# ---- silence --------------------------------------------------------------------------------------------------------


def spoken(start: float, end: float, probability: float = 0.9, length: float | None = None) -> OpenSegment:
    found = segment(start, end, 1)
    found.words = [WordTime(" word", 1, start, start + length if length else end, probability)]
    return found


def test_words_that_seem_made_up() -> None:
    assert not is_anomalous(spoken(0, 0.5)) and not is_anomalous(None) and not is_anomalous(segment(0, 1, 0))
    assert is_anomalous(spoken(0, 0.5, probability=0.1))
    assert is_anomalous(spoken(0, 4))
    assert is_anomalous(spoken(0, 0.06))


def test_made_up_segments_between_silences_are_found() -> None:
    place = WindowPlace(frame=1000, n_frames=3000, n_whole=3000)  # from 10 s to 40 s
    good, bad = spoken(11, 11.5), spoken(20, 20.5, probability=0.05)
    assert first_made_up([good, bad], place, 2, 9.0) == 1
    assert first_made_up([good, bad, spoken(20.6, 21)], place, 2, 9.0) is None  # speech follows at once
    assert first_made_up([good, spoken(19.94, 20)], place, 2, 9.0) == 1  # too short to be a word
    assert leading_silence([bad, good], place, 2) == 1000
    assert leading_silence([good, bad], place, 2) is None
    assert leading_silence([spoken(10.5, 11, probability=0.05)], place, 2) is None
    assert last_word_end([good, segment(30, 31, 0)]) == 11.5
    assert last_word_end([segment(30, 31, 0)]) == 31 and last_word_end([]) is None


# ---- a tiny model ---------------------------------------------------------------------------------------------------


def looks_of(case: str, name: str, kv_dtype: str = "f32", **settings: Any) -> Looks:
    engine = engine_of(case, name, kv_dtype=kv_dtype, **settings)
    special = {"<|endoftext|>": 95, "<|startoftranscript|>": 1, "<|notimestamps|>": 55}
    tokens = replace(read_tokens({}, special, 96), alignment_heads=tuple(HEADS[case]))
    window = SoundWindow(np.zeros((1, 1), np.float32), 80, True, False)
    wanted = LookAt(window, tuple(SAID[: N_BEFORE + 1]), tuple(SAID[N_BEFORE + 1 : -1]))
    found = LookedAt(engine, recording(case), wanted, loaded_on(case, name).decoder.config, tokens)
    while not found.advance():
        engine.step()
    looks = found.result()
    found.close()
    assert engine.snapshot().pages_used == 0
    return looks


def expected(case: str) -> dict[str, np.ndarray]:
    return dict(np.load(FIXTURES / f"{case}_looks.npz"))


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_tokens_look_where_those_of_transformers_look(case: str, name: str) -> None:
    wanted = expected(case)
    looks = looks_of(case, name)
    n_rows = wanted["weights"].shape[2]
    assert np.abs(np.stack(list(looks.weights(n_rows))) - wanted["weights"]).max() <= TOLERANCE
    assert first_rows(alignment_of(looks, n_rows)[N_BEFORE:-1]).tolist() == wanted["starts"].tolist()
    logits = wanted["logits"][N_BEFORE:-2, :95].astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    chosen = probabilities[np.arange(len(logits)), SAID[N_BEFORE + 1 : -1]]
    assert np.abs(looks.probabilities - chosen).max() <= TOLERANCE


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 5e-2)])
def test_keys_of_every_type_are_read(kv_dtype: str, tolerance: float) -> None:
    """Beside those of f32; heads of 32 numbers, as 8 bits need them."""
    whole, stored = (np.stack(list(looks_of("whisper_wide", "cpu", dtype).weights(75))) for dtype in ("f32", kv_dtype))
    assert 0 < np.abs(whole - stored).max() <= tolerance * whole.max()


def test_bytes_of_8_bit_keys() -> None:
    codes = np.arange(-32, 32, dtype=np.int8)
    scales = np.array([0.5, 2], np.float16)
    stored = np.concatenate([codes.view(np.uint8), scales.view(np.uint8)])[None]
    np.testing.assert_array_equal(stored_keys(stored, "q8_0", 64)[0], codes * np.repeat(scales.astype(np.float32), 32))


def test_chunks_of_a_text_look_the_same() -> None:
    whole, cut = looks_of("whisper", "cpu"), looks_of("whisper", "cpu", prefill_chunk_size=2)
    np.testing.assert_array_equal(whole.queries, cut.queries)
    np.testing.assert_array_equal(whole.keys, cut.keys)
    np.testing.assert_array_equal(whole.probabilities, cut.probabilities)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


PLAIN: dict[str, Any] = {"language": "en", "max_ratio": None, "least_logprob": None, "no_speech": None}


@pytest.mark.parametrize("more", [{}, {"beams": 3}, {"has_times": False}, {"most_silence_s": 0.1}])
def test_segments_of_a_model_have_words(folder: Path, more: dict[str, Any]) -> None:
    with LLM(str(folder), config=EngineConfig(max_batch_size=6)) as llm:
        found = list(llm.transcribe(SOUND, has_words=True, **PLAIN, **more))
        assert not llm.engine.busy and llm.stats().pages_used == 0
        llm.engine.scheduler.rows.check()  # type: ignore[union-attr]
        assert all(segment.words is None for segment in llm.transcribe(SOUND, **PLAIN))
    words = [word for segment in found for word in segment.words or ()]
    if "most_silence_s" not in more:  # what a model of random numbers says may all seem made up
        assert words
    assert [segment.id for segment in found] == list(range(len(found)))
    for word in words:
        assert 0 <= word.start <= word.end <= 1.5 and 0 < word.probability < 1


def test_words_need_heads_that_there_are(tmp_path: Path) -> None:
    folder = speech_models.write(tmp_path, alignment_heads=[[7, 0]])
    with LLM(str(folder)) as llm:
        assert list(llm.transcribe(SOUND, **PLAIN))
        with pytest.raises(ConfigError, match="names alignment_heads that it does not have"):
            llm.transcribe(SOUND, has_words=True, **PLAIN)


def test_silence_around_words_needs_their_times() -> None:
    for more in ({}, {"has_words": True, "most_silence_s": 0.0}, {"has_words": True, "most_silence_s": float("nan")}):
        with pytest.raises(ConfigError, match="hallucination_silence_threshold must lie above 0"):
            TranscribeOptions(**{"most_silence_s": 2.0, **more})


# ---- a real model ---------------------------------------------------------------------------------------------------

OPENAI = [
    (" That", 0.0, 0.54, 0.778),
    (" agent", 0.54, 0.86, 0.97),
    (" is", 0.86, 1.22, 0.931),
    (" already", 1.22, 1.48, 0.998),
    (" logged", 1.48, 1.84, 0.968),
    (" on.", 1.84, 2.34, 0.971),
    (" Please", 2.66, 2.74, 0.98),
    (" enter", 2.74, 3.0, 0.993),
    (" your", 3.0, 3.28, 0.979),
    (" agent", 3.28, 3.62, 0.935),
    (" number", 3.62, 4.06, 0.983),
    (" followed", 4.06, 4.42, 0.943),
    (" by", 4.42, 4.68, 0.996),
    (" the", 4.68, 4.84, 0.991),
    (" pound", 4.84, 5.12, 0.655),
    (" key.", 5.12, 5.4, 0.982),
]


def test_words_of_a_real_model() -> None:
    """Times and probabilities that OpenAI's own program prints for the same file, in f32."""
    folder = assets.need("whisper-tiny.en")
    with LLM(str(folder)) as llm:
        (found,) = llm.transcribe(assets.need("agent-alreadyon.wav"), has_words=True)
    assert found.words is not None
    assert [word.text for word in found.words] == [text for text, *_ in OPENAI]
    for word, (_, start, end, probability) in zip(found.words, OPENAI, strict=True):
        assert abs(word.start - start) < 0.05 and abs(word.end - end) < 0.05
        assert abs(word.probability - probability) < 0.02

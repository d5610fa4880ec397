"""The rules for tokens of a window, and the way from window to window, without a model."""

from typing import Any

import numpy as np
import pytest

import speech_models
from speech_models import N_VOCAB, TOKENS
from tahr.errors import ConfigError, CorruptFile
from tahr.speech.audio.windows import SoundReader, SoundWindow
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.results import Heard, SpokenSegment, WindowText
from tahr.speech.decoding.rules import allowed_logits
from tahr.speech.decoding.tokens import SpeechTokens, read_tokens
from tahr.speech.decoding.transcript import Transcript
from tahr.speech.decoding.wanted import NextLogits, WindowAt, WriteText

END = TOKENS["<|endoftext|>"]
FIRST = TOKENS["<|0.00|>"]


def tokens(**changes: Any) -> SpeechTokens:
    return read_tokens(speech_models.generation(**changes), TOKENS, N_VOCAB)


def may_follow(written: list[int], peak: int | None = None, has_times: bool = True) -> set[int]:
    logits = np.zeros(N_VOCAB, np.float32)
    if peak is not None:
        logits[peak] = 20
    row = allowed_logits(logits, written, tokens(), has_times)
    return {int(i) for i in np.flatnonzero(np.isfinite(row))}


def times(*seconds: float) -> set[int]:
    return {FIRST + round(s / 0.02) for s in seconds}


# ---- which tokens may follow ----------------------------------------------------------------------------------------


def test_a_window_begins_with_a_time_of_its_first_second() -> None:
    model = tokens(max_initial_timestamp_index=7)
    row = allowed_logits(np.zeros(N_VOCAB, np.float32), [], model, True)
    assert set(np.flatnonzero(np.isfinite(row))) == set(range(FIRST, FIRST + 8))


def test_without_times_a_window_begins_with_text() -> None:
    found = may_follow([], has_times=False)
    assert not {32, END, TOKENS["<|translate|>"]} & found and {33, 255} <= found
    assert END in may_follow([65], has_times=False)


def test_text_follows_the_first_time_and_a_pair() -> None:
    for written in ([FIRST], [FIRST, 65, FIRST + 5, FIRST + 5]):
        found = may_follow(written)
        assert not any(token >= FIRST for token in found) and {65, END} <= found


def test_after_the_end_of_a_segment_come_its_pair_or_the_end() -> None:
    found = may_follow([FIRST, 65, FIRST + 5], peak=END)
    assert not {65, 66} & found and END in found
    assert min(token for token in found if token >= FIRST) == FIRST + 5


def test_times_never_go_back_and_segments_are_not_empty() -> None:
    assert min(token for token in may_follow([FIRST + 3, 65], peak=65) if token >= FIRST) == FIRST + 4


def test_a_time_is_due_where_times_together_are_likelier_than_any_text() -> None:
    assert all(token >= FIRST for token in may_follow([FIRST, 65]))
    assert 65 in may_follow([FIRST, 65], peak=65)


def test_files_that_name_no_tokens() -> None:
    found = read_tokens({}, TOKENS, N_VOCAB)  # by the names in the vocabulary
    assert (found.end, found.start, found.first_time) == (END, TOKENS["<|startoftranscript|>"], FIRST)
    assert found.languages == tokens().languages and found.tasks == tokens().tasks
    with pytest.raises(CorruptFile, match="eos_token_id is None"):
        read_tokens({}, {}, 10)
    for bad in (N_VOCAB, -1, True, "x", 2.5):
        with pytest.raises(CorruptFile, match="decoder_start_token_id is"):
            tokens(decoder_start_token_id=bad)
        with pytest.raises(CorruptFile, match="suppress_tokens is"):
            tokens(suppress_tokens=[bad])


# ---- from window to window ------------------------------------------------------------------------------------------

ROWS = np.zeros((1, 1), np.float32)


class Script:
    """Answers of a model that was told what to write in each window."""

    def __init__(self, n_frames: int, texts: list[Any], **options: Any):
        self.asked: list[WriteText] = []
        self.seen: list[int] = []
        self.found: list[SpokenSegment] = []
        self.heard: Heard | None = None
        transcript = Transcript(
            tokens(), TranscribeOptions(**{"language": "en", **options}), lambda text: list(text.encode()), as_text
        )
        run = transcript.run()
        answer: Any = None
        waiting = iter(texts)
        while True:
            try:
                ask = run.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(ask, WindowAt):
                self.seen.append(ask.frame)
                left = n_frames - ask.frame
                answer = SoundWindow(ROWS, min(left, 80), left <= 80, False) if left > 0 else None
            elif isinstance(ask, WriteText):
                self.asked.append(ask)
                answer = next(waiting)
            elif isinstance(ask, NextLogits):
                answer = np.zeros(N_VOCAB, np.float32)
                answer[TOKENS["<|yue|>"]] = 3
            elif isinstance(ask, Heard):
                self.heard = ask
            else:
                self.found.append(ask)


def as_text(ids: Any) -> str:
    return bytes(ids).decode()


def text(*written: int | str, logprob: float = -0.2, no_speech: float = 0.0, temperature: float = 0.0) -> WindowText:
    ids: list[int] = []
    for each in written:
        ids += list(each.encode()) if isinstance(each, str) else [FIRST + each]
    return WindowText(tuple(ids), as_text([i for i in ids if i < END]), logprob, no_speech, temperature)


def spans(script: Script) -> list[tuple[float, float, str]]:
    return [(segment.start, segment.end, segment.text) for segment in script.found]


def test_segments_lie_between_pairs_and_the_next_window_begins_at_the_last() -> None:
    script = Script(120, [text(0, "one", 10, 10, "two", 20, 20, "cut"), text(0, "cut off", 30)])
    assert script.seen == [0, 40]
    assert spans(script) == [(0, 0.2, "one"), (0.2, 0.4, "two"), (0.4, 1.0, "cut off")]
    assert [segment.seek for segment in script.found] == [0, 0, 40]


def test_a_single_time_at_the_end_means_silence_behind_it() -> None:
    script = Script(100, [text(0, "one", 10, 12, "two", 20), text(0, "three", 5)])
    assert script.seen == [0, 80]
    assert spans(script) == [(0, 0.2, "one"), (0.24, 0.4, "two"), (0.8, 0.9, "three")]


def test_text_without_an_end_lasts_as_long_as_its_window() -> None:
    assert spans(Script(50, [text(0, "one")])) == [(0, 0.5, "one")]


def test_a_window_that_goes_nowhere_is_passed() -> None:
    script = Script(160, [text(0, "one", 0, 0, "two"), text(0, "three", 5)])
    assert script.seen == [0, 80]


def test_poor_texts_are_written_again_at_higher_temperatures() -> None:
    poor = text(0, "one", 5, logprob=-1.5)
    script = Script(80, [poor, text(0, "la" * 40, 5, temperature=0.2), text(0, "two", 5, temperature=0.4)], beams=5)
    assert [(ask.temperature, ask.n_texts) for ask in script.asked] == [(0, 5), (0.2, 5), (0.4, 5)]
    assert spans(script) == [(0, 0.1, "two")]
    assert len({ask.seed for ask in script.asked}) == 3


def test_silence_is_no_text_and_not_tried_again() -> None:
    script = Script(120, [text(0, "thanks", 5, logprob=-1.5, no_speech=0.9), text(0, "one", 5)])
    assert len(script.asked) == 2 and spans(script) == [(0.8, 0.9, "one")]
    kept = Script(80, [text(0, "one", 5, logprob=-0.5, no_speech=0.9)])
    assert spans(kept) == [(0, 0.1, "one")]


def test_the_text_so_far_is_the_next_prompt_unless_chance_chose_it() -> None:
    start = (TOKENS["<|startoftranscript|>"], TOKENS["<|en|>"], TOKENS["<|transcribe|>"])
    texts = [text(0, "one", 5), text(0, "two", 5, temperature=0.6), text(0, "three", 5)]
    script = Script(240, texts, prompt="Names")
    previous = TOKENS["<|startofprev|>"]
    said = tuple(b" Names")
    assert script.asked[0].prompt == (previous, *said, *start)
    assert script.asked[1].prompt == (previous, *said, FIRST, *b"one", FIRST + 5, *start)
    assert script.asked[2].prompt == start
    likely = list(b" Tahr")
    hot = Script(160, texts, hotwords="Tahr ")
    assert [ask.prompt for ask in hot.asked] == [
        (previous, *likely, *start),
        (previous, *likely, FIRST, *b"one", FIRST + 5, *start),
    ]
    long = Script(80, texts, hotwords="w" * 300, prompt="p" * 300)
    assert long.asked[0].prompt == (previous, 32, *b"w" * 110, *b"p" * 112, *start)
    apart = Script(160, texts, prompt="Names", uses_previous=False)
    assert [ask.prompt for ask in apart.asked] == [(previous, *said, *start), start]


def test_the_language_that_is_heard() -> None:
    script = Script(80, [text(0, "one", 5)], language=None, task="translate")
    assert script.heard and script.heard.language == "yue" and 0.8 < script.heard.probability < 1
    assert script.asked[0].prompt[1:] == (TOKENS["<|yue|>"], TOKENS["<|translate|>"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"language": "xx"}, "'xx' is none of this model's: de, en, yue"),
        ({"task": "sing"}, "must be transcribe or translate"),
        ({"temperatures": (3.0,)}, "between 0 and 1"),
        ({"temperatures": ()}, "between 0 and 1"),
        ({"beams": 0}, "between 1 and 16"),
        ({"patience": 0.0}, "patience"),
        ({"prompt": "x" * 1_000_000}, "1000000 characters"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Script(80, [], **options)


def test_a_model_of_one_language() -> None:
    model = tokens(is_multilingual=False)
    for options, says in (
        ({"language": "de"}, "knows English alone"),
        ({"task": "translate"}, "does not translate"),
    ):
        with pytest.raises(ConfigError, match=says):
            Transcript(model, TranscribeOptions(**options), list, str)  # type: ignore[arg-type]
    run = Transcript(model, TranscribeOptions(language="en"), list, as_text).run()  # type: ignore[arg-type]
    next(run)
    ask = run.send(SoundWindow(ROWS, 80, True, False))
    assert isinstance(ask, WriteText) and ask.prompt == (TOKENS["<|startoftranscript|>"],)


# ---- windows --------------------------------------------------------------------------------------------------------


def test_windows_of_a_recording_do_not_depend_on_its_blocks() -> None:
    sound = np.random.default_rng(1).uniform(-0.5, 0.5, 30_000).astype(np.float32)
    for cut in (1_000, 7_777, 30_000):
        recording = SoundReader((sound[i : i + cut] for i in range(0, len(sound), cut)), 80, 20)
        whole = SoundReader(iter([sound]), 80, 20)
        for frame in (0, 33, 80, 150, 186):
            one = recording.read(frame)
            other = whole.read(frame)
            assert one and other and one[1:] == other[1:]
            np.testing.assert_array_equal(one.rows, other.rows)
        assert recording.read(187) is None and recording.seconds == whole.seconds == 30_000 / 16_000


def test_the_last_window_and_silence() -> None:
    sound = np.zeros(16_000, np.float32)
    sound[-2_000:] = 0.1
    recording = SoundReader(iter([sound]), 80, 20)
    first = recording.read(0)
    assert first and first.n_frames == 80 and first.is_silent and not first.is_last
    last = recording.read(80)
    assert last and last.n_frames == 20 and last.is_last and not last.is_silent
    assert SoundReader(iter([]), 80, 20).read(0) is None


def test_the_language_is_heard_where_something_is_said() -> None:
    transcript = Transcript(tokens(), TranscribeOptions(), list, as_text)  # type: ignore[arg-type]
    run = transcript.run()
    assert next(run) == WindowAt(0)
    assert run.send(SoundWindow(ROWS, 80, False, True)) == WindowAt(80)
    window = SoundWindow(ROWS, 80, True, False)
    assert run.send(window) == NextLogits(window, (TOKENS["<|startoftranscript|>"],))
    silent = Transcript(tokens(), TranscribeOptions(), list, as_text).run()  # type: ignore[arg-type]
    next(silent)
    with pytest.raises(StopIteration):
        silent.send(SoundWindow(ROWS, 80, True, True))


def test_frames_behind_the_end_are_zeros() -> None:
    sound = np.random.default_rng(1).uniform(-0.5, 0.5, 1_000).astype(np.float32)
    window = SoundReader(iter([sound]), 80, 20).read(0)
    assert window and window.n_frames == 6 and window.is_last
    assert window.rows[:4, :100].any(axis=1).all() and not window.rows[4:, :100].any()

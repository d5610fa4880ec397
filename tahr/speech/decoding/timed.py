"""The words of window after window: what is asked for their times, and where the next window begins by these."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from tahr.speech.audio.windows import SoundWindow
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.speech.decoding.wanted import HostWork, LookAt, Wanted
from tahr.speech.words.silences import (
    FRAMES_A_SECOND,
    WindowPlace,
    first_made_up,
    last_word_end,
    leading_silence,
)
from tahr.speech.words.timing import FRAMES_A_ROW, OpenSegment, put_words, word_times

Timed = tuple[int, list[OpenSegment]]


class TimedWords:
    """Gives the segments of a recording their words, window after window."""

    def __init__(
        self,
        tokens: SpeechTokens,
        options: TranscribeOptions,
        decode: Callable[[Sequence[int]], str],
        beginning: tuple[int, ...],
        language: str,
    ):
        self._tokens = tokens
        self._most_silence_s = options.most_silence_s
        self._decode = decode
        self._beginning = beginning  # tokens of a text without times, but for the one that says so
        self._language = language
        self._last_speech_s = 0.0

    def run(
        self, window: SoundWindow, frame: int, parts: list[OpenSegment], n_frames: int, ends_alone: bool
    ) -> Generator[Wanted, Any, Timed]:
        """The segments with their words, those that are left, and where the next window begins, as `n_frames`."""
        place = WindowPlace(frame, window.n_frames, max(window.n_frames, FRAMES_A_ROW * len(window.rows)))
        yield from self._put(place, window, parts)
        end = last_word_end(parts)
        if not ends_alone and end is not None and end > place.start:
            is_silent_behind = self._most_silence_s is None or place.end - end > self._most_silence_s
            n_frames = round(end * FRAMES_A_SECOND) - frame if is_silent_behind else window.n_frames
        if self._most_silence_s is not None:
            silence = leading_silence(parts, place, self._most_silence_s)
            if silence is not None:
                return min(silence, window.n_frames), []
            n_frames, parts = self._without_made_up(place, window.is_last, parts, n_frames, self._most_silence_s)
        end = last_word_end(parts)
        if end is not None:
            self._last_speech_s = end
        return min(n_frames if n_frames > 0 else window.n_frames, window.n_frames), parts

    def _put(self, place: WindowPlace, window: SoundWindow, parts: list[OpenSegment]) -> Generator[Wanted, Any, None]:
        text = [token for part in parts for token in part.text_tokens]
        if not text:
            return
        looks = yield LookAt(window, (*self._beginning, self._tokens.no_times), tuple(text))
        work = partial(word_times, looks, len(self._beginning), text, place.n_frames, self._decode, self._language)
        words = yield HostWork(work)
        put_words(parts, words, place.start, self._last_speech_s)

    def _without_made_up(
        self, place: WindowPlace, is_last: bool, parts: list[OpenSegment], n_frames: int, most_silence_s: float
    ) -> Timed:
        """The segments before what seems made up, which is heard again without what comes before it."""
        i = first_made_up(parts, place, most_silence_s, self._last_speech_s)
        if i is None:
            return n_frames, parts
        if is_last and place.sound_end - parts[i].end < most_silence_s:
            return place.n_frames, parts[:i]
        return round(max(place.start + 1, parts[i].start) * FRAMES_A_SECOND) - place.frame, parts[:i]

"""The way through a recording: window after window, each from where the last one's text ended."""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

from tahr.errors import ConfigError
from tahr.speech.audio.windows import SoundWindow
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.results import Heard, SpokenSegment, SpokenWord, WindowText
from tahr.speech.decoding.rules import log_probabilities
from tahr.speech.decoding.timed import TimedWords
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.speech.decoding.wanted import NextLogits, Wanted, WindowAt, WriteText
from tahr.speech.words.timing import OpenSegment, WordTime

FRAMES_A_SECOND = 100
FRAMES_A_TIME = 2  # frames between two tokens of times
FORGETS_ABOVE = 0.5  # temperature of a text that says nothing about what comes next
MOST_PREVIOUS = 223  # tokens of a prompt: half of what the decoder reads, less one
MOST_HOTWORDS = 111  # tokens of these at most

Found = Wanted | Heard | SpokenSegment
Finding = Generator[Found, Any, WindowText | None]
Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]


class Transcript:
    """Asks for windows and for their texts, and gives segments as they are found."""

    def __init__(self, tokens: SpeechTokens, options: TranscribeOptions, encode: Encode, decode: Decode):
        check_options(tokens, options)
        self.tokens = tokens
        self.options = options
        self.decode = decode
        # Text that the next window reads as if it had been said before.
        self._previous = tokens_before(options.prompt, encode)[-MOST_PREVIOUS:]
        self._hotwords = tokens_before(options.hotwords, encode)[:MOST_HOTWORDS]
        self._n_segments = 0

    def run(self) -> Generator[Found, Any, None]:
        """Segments, in order; before them the language, where the model knows several."""
        frame = 0
        window: SoundWindow | None = yield WindowAt(0)
        while window and window.is_silent:  # a language is heard where something is said
            frame += window.n_frames
            window = None if window.is_last else (yield WindowAt(frame))
        heard = Heard(self.options.language or "en", 1.0)
        if window and self.tokens.languages:
            if not self.options.language:
                heard = self._language((yield NextLogits(window, (self.tokens.start,))))
            yield heard
        beginning = self._beginning(heard.language)
        timed = TimedWords(self.tokens, self.options, self.decode, beginning, heard.language)
        while window:
            n_frames = window.n_frames
            text = None if window.is_silent else (yield from self._text(window, beginning, frame))
            if text and text.tokens:
                n_frames, parts = self._parts(text, window, frame)
                if self.options.has_words:
                    is_alone = ends_alone(text.tokens, self.tokens)
                    n_frames, parts = yield from timed.run(window, frame, parts, n_frames, is_alone)
                segments = self._segments(text, parts, frame)
                yield from segments
                self._remember(text, segments)
            is_done = window.is_last and n_frames >= window.n_frames
            frame += n_frames
            window = None if is_done else (yield WindowAt(frame))

    def _beginning(self, language: str) -> tuple[int, ...]:
        tokens = self.tokens
        if not tokens.languages:
            return (tokens.start,)
        return tokens.start, tokens.languages[language], tokens.tasks[self.options.task]

    def _language(self, logits: Any) -> Heard:
        codes = list(self.tokens.languages)
        scores = log_probabilities(logits[[self.tokens.languages[code] for code in codes]])
        best = int(scores.argmax())
        return Heard(codes[best], math.exp(scores[best]))

    def _text(self, window: SoundWindow, beginning: tuple[int, ...], frame: int) -> Finding:
        """The first text of the ladder that is good enough; None where nothing is said."""
        options = self.options
        n_previous = MOST_PREVIOUS - len(self._hotwords)
        previous = [*self._hotwords, *self._previous[-n_previous:]]
        prompt = beginning if options.has_times else (*beginning, self.tokens.no_times)
        if previous and self.tokens.previous is not None:
            prompt = (self.tokens.previous, *previous, *prompt)
        found: WindowText | None = None
        for step, temperature in enumerate(options.temperatures):
            n_texts = options.best_of if temperature else options.beams
            seed = (options.seed << 32) + (frame << 8) + step
            found = yield WriteText(window, prompt, temperature, options.has_times, n_texts, options.patience, seed)
            assert found
            if not self._is_poor(found):
                break
        assert found
        return None if self._is_silence(found) else found

    def _is_poor(self, text: WindowText) -> bool:
        options = self.options
        if self._is_silence(text):
            return False
        repeats = options.max_ratio is not None and text.compression_ratio > options.max_ratio
        return repeats or (options.least_logprob is not None and text.mean_logprob < options.least_logprob)

    def _is_silence(self, text: WindowText) -> bool:
        options = self.options
        if options.no_speech is None or text.no_speech <= options.no_speech:
            return False
        return options.least_logprob is None or text.mean_logprob <= options.least_logprob

    def _parts(self, text: WindowText, window: SoundWindow, frame: int) -> tuple[int, list[OpenSegment]]:
        """The parts between pairs of times, and where the next window begins, as frames from this one."""
        tokens = self.tokens
        parts = parts_of(text.tokens, tokens)
        begin = frame / FRAMES_A_SECOND
        if not parts:
            times = [token for token in text.tokens if tokens.is_time(token)]
            last = tokens.seconds(times[-1]) if times and times[-1] != tokens.first_time else 0.0
            length = last or window.n_frames / FRAMES_A_SECOND
            return window.n_frames, [self._part(text.tokens, begin, begin + length)]
        found = [self._part(part, begin + tokens.seconds(part[0]), begin + tokens.seconds(part[-1])) for part in parts]
        n_frames = window.n_frames
        if not ends_alone(text.tokens, tokens):
            n_frames = (parts[-1][-1] - tokens.first_time) * FRAMES_A_TIME or n_frames
        return min(n_frames, window.n_frames), found

    def _part(self, part: Sequence[int], start: float, end: float) -> OpenSegment:
        texts = self.tokens.texts(part)
        return OpenSegment(start, end, self.decode(texts), tuple(part), texts)

    def _segments(self, text: WindowText, parts: Sequence[OpenSegment], frame: int) -> list[SpokenSegment]:
        """Segments of a window that hold text."""
        found: list[SpokenSegment] = []
        for part in parts:
            if part.start >= part.end or not part.text.strip():
                continue
            words = tuple(map(spoken, part.words)) if self.options.has_words else None
            start, end = round(part.start, 2), round(part.end, 2)
            found.append(SpokenSegment(self._n_segments, frame, start, end, part.text, part.tokens, text, words))
            self._n_segments += 1
        return found

    def _remember(self, text: WindowText, segments: list[SpokenSegment]) -> None:
        """The next window reads this text, unless it was chosen by chance."""
        if not self.options.uses_previous or text.temperature > FORGETS_ABOVE:
            self._previous = []
        else:
            written = [token for segment in segments for token in segment.tokens]
            self._previous = [*self._previous, *written][-MOST_PREVIOUS:]


def tokens_before(text: str, encode: Encode) -> list[int]:
    """Tokens of a text as if it had been said."""
    return encode(f" {text.strip()}") if text.strip() else []


def spoken(word: WordTime) -> SpokenWord:
    return SpokenWord(word.text, round(word.start, 2), round(word.end, 2), word.probability)


def parts_of(written: Sequence[int], tokens: SpeechTokens) -> list[Sequence[int]]:
    """The tokens between pairs of times, cut between the times of a pair; none where there is no pair."""
    are_times = [tokens.is_time(token) for token in written]
    cuts = [i for i in range(1, len(written)) if are_times[i - 1] and are_times[i]]
    if not cuts:
        return []
    if are_times[-1] and not are_times[-2]:
        cuts.append(len(written))
    return [written[first:last] for first, last in zip([0, *cuts], cuts, strict=False)]


def ends_alone(written: Sequence[int], tokens: SpeechTokens) -> bool:
    """Whether a single time is the end of a window's text, which means silence after it."""
    return len(written) > 1 and tokens.is_time(written[-1]) and not tokens.is_time(written[-2])


def check_options(tokens: SpeechTokens, options: TranscribeOptions) -> None:
    """Refuse what a model does not know."""
    if options.has_words and not tokens.alignment_heads:
        raise ConfigError(
            "Times of words cannot be found: generation_config.json of this model names alignment_heads that it does "
            "not have. Leave times of words out, or remove that field: then the upper half of its layers counts."
        )
    if not tokens.languages:
        if options.language not in (None, "en"):
            raise ConfigError(
                f"This model knows English alone, not {options.language!r:.40}: leave the language out, or use a "
                "multilingual model."
            )
        if options.task != "transcribe":
            raise ConfigError("This model knows English alone and does not translate: use a multilingual model.")
    elif options.language is not None and options.language not in tokens.languages:
        known = ", ".join(sorted(tokens.languages))
        raise ConfigError(f"The language {options.language!r:.40} is none of this model's: {known}.")
    elif options.task not in tokens.tasks:
        raise ConfigError("This model does not translate: use another one, or the task transcribe.")

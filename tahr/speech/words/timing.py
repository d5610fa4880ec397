"""Words of a window with their times, and the segments that they belong to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tahr.speech.words.looks import Looks, alignment_of, first_rows
from tahr.speech.words.splitting import BEFORE, BEHIND, words_of

ROWS_A_SECOND = 50
FRAMES_A_ROW = 2
SENTENCE_ENDS = ".。!！?？"
MOST_MEDIAN_S = 0.7
LATE_S = 0.5  # a segment's own times count where its words' are this far beyond them


@dataclass(slots=True)
class WordTime:
    """A word of a window and its times, from the window's beginning; in segments, from the recording's."""

    text: str
    n_tokens: int
    start: float
    end: float
    probability: float


@dataclass(slots=True)
class OpenSegment:
    """A segment whose times may still change."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]  # times among them
    text_tokens: list[int]
    words: list[WordTime] = field(default_factory=list)


def word_times(
    looks: Looks, n_before: int, tokens: Sequence[int], n_frames: int, decode: Callable[[Sequence[int]], str],
    language: str,
) -> list[WordTime]:  # fmt: skip
    """Times of the words of a text, of whose tokens `n_before` others stand in front."""
    alignment = alignment_of(looks, max(1, n_frames // FRAMES_A_ROW))
    starts = first_rows(alignment[n_before:-1]) / ROWS_A_SECOND
    found: list[WordTime] = []
    begin = 0
    for word in words_of(tokens, decode, language):
        end = begin + len(word.tokens)
        probability = float(looks.probabilities[begin:end].mean())
        found.append(WordTime(word.text, len(word.tokens), float(starts[begin]), float(starts[end]), probability))
        begin = end
    return found


def median_length(words: Sequence[WordTime]) -> float:
    """The usual length of a word; 0 where no word takes time."""
    lengths = [word.end - word.start for word in words if word.end != word.start]
    return min(MOST_MEDIAN_S, float(np.median(lengths))) if lengths else 0.0


def cut_long(words: Sequence[WordTime], most_s: float) -> None:
    """Pauses between sentences belong to no word."""
    for before, word in pairwise(words):
        if word.end - word.start > most_s:
            if word.text in SENTENCE_ENDS:
                word.end = word.start + most_s
            elif before.text in SENTENCE_ENDS:
                word.start = word.end - most_s


def merge_punctuation(words: Sequence[WordTime]) -> None:
    """Punctuation joins the word it belongs to; its own place stays, without text and tokens."""
    following = len(words) - 1
    for i in reversed(range(len(words) - 1)):
        if words[i].text.startswith(" ") and words[i].text.strip() in BEFORE:
            words[following].text = words[i].text + words[following].text
            hand_over(words[i], words[following])
        else:
            following = i
    previous = 0
    for i in range(1, len(words)):
        if not words[previous].text.endswith(" ") and words[i].text in BEHIND:
            words[previous].text += words[i].text
            hand_over(words[i], words[previous])
        else:
            previous = i


def hand_over(word: WordTime, other: WordTime) -> None:
    other.n_tokens += word.n_tokens
    word.text = ""
    word.n_tokens = 0


def put_words(segments: Sequence[OpenSegment], words: list[WordTime], begin_s: float, last_speech_s: float) -> None:
    """Give segments their words, and times that fit these."""
    median_s = median_length(words)
    if median_s:
        cut_long(words, 2 * median_s)
    merge_punctuation(words)
    left = iter(words)
    for segment in segments:
        n_taken = 0
        while n_taken < len(segment.text_tokens) and (word := next(left, None)):
            n_taken += word.n_tokens
            if word.text:
                word.start = round(begin_s + word.start, 2)
                word.end = round(begin_s + word.end, 2)
                segment.words.append(word)
        if segment.words:
            fit(segment, median_s, last_speech_s)
            last_speech_s = segment.end


def fit(segment: OpenSegment, median_s: float, last_speech_s: float) -> None:
    """Bring the times of a segment and of its first and last words together."""
    first, last = segment.words[0], segment.words[-1]
    if first.end - last_speech_s > 4 * median_s:
        cut_first(segment.words, 2 * median_s)
    if segment.start < first.end and segment.start - LATE_S > first.start:
        first.start = max(0.0, min(first.end - median_s, segment.start))
    else:
        segment.start = first.start
    if segment.end > last.start and segment.end + LATE_S < last.end:
        last.end = max(last.start + median_s, segment.end)
    else:
        segment.end = last.end


def cut_first(words: Sequence[WordTime], most_s: float) -> None:
    """The first words after a pause are not as long as the pause."""
    first = words[0]
    second = words[1] if len(words) > 1 else None
    if first.end - first.start <= most_s and (second is None or second.end - first.start <= 2 * most_s):
        return
    if second and second.end - second.start > most_s:
        first.end = second.start = max(second.end / 2, second.end - most_s)
    first.start = max(0.0, first.end - most_s)

"""Segments that were made up in silence: by words that are improbable, or last too short or too long."""

from collections.abc import Sequence
from dataclasses import dataclass

from tahr.speech.words.splitting import BEFORE, BEHIND
from tahr.speech.words.timing import OpenSegment, WordTime

FRAMES_A_SECOND = 100
N_WORDS = 8  # the first words of a segment tell
LEAST_PROBABILITY = 0.15
LEAST_WORD_S = 0.133
MOST_WORD_S = 2.0
AT_EDGE_S = 2.0  # limit on how near to a window's ends silence may lie beyond them


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """Where a window lies in a recording."""

    frame: int
    n_frames: int  # frames before the recording ends
    n_whole: int  # frames that a model reads at once

    @property
    def start(self) -> float:
        return self.frame / FRAMES_A_SECOND

    @property
    def end(self) -> float:
        """The end of what the model reads, which may lie behind that of the recording."""
        return (self.frame + self.n_whole) / FRAMES_A_SECOND

    @property
    def sound_end(self) -> float:
        return (self.frame + self.n_frames) / FRAMES_A_SECOND


def anomaly(word: WordTime) -> float:
    length = word.end - word.start
    score = float(word.probability < LEAST_PROBABILITY)
    if length < LEAST_WORD_S:
        score += (LEAST_WORD_S - length) * 15
    return score + max(0.0, length - MOST_WORD_S)


def is_anomalous(segment: OpenSegment | None) -> bool:
    if segment is None or not segment.words:
        return False
    words = [word for word in segment.words if word.text not in BEFORE + BEHIND][:N_WORDS]
    score = sum(map(anomaly, words))
    return score >= 3 or score + 0.01 >= len(words)


def leading_silence(segments: Sequence[OpenSegment], place: WindowPlace, most_s: float) -> int | None:
    """Frames of silence at the window's beginning, where its first segment seems made up; None: it does not."""
    first = next_spoken(segments)
    if first is None or not is_anomalous(first):
        return None
    silence_s = first.start - place.start
    return round(silence_s * FRAMES_A_SECOND) if silence_s > most_s else None


def first_made_up(
    segments: Sequence[OpenSegment], place: WindowPlace, most_s: float, last_speech_s: float
) -> int | None:
    """The first segment that seems made up and has silence, or other such segments, on both sides."""
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        following = next_spoken(segments[i + 1 :])
        if is_anomalous(segment):
            start, end = segment.start, segment.end
            next_start = following.words[0].start if following else place.sound_end
            is_after = start - last_speech_s > most_s or start < most_s or start - place.start < AT_EDGE_S
            is_before = next_start - end > most_s or is_anomalous(following) or place.end - end < AT_EDGE_S
            if is_after and is_before:
                return i
        last_speech_s = segment.end
    return None


def next_spoken(segments: Sequence[OpenSegment]) -> OpenSegment | None:
    return next((segment for segment in segments if segment.words), None)


def last_word_end(segments: Sequence[OpenSegment]) -> float | None:
    """The end of the last word, or of the last segment where there are no words."""
    words = [word.end for segment in segments for word in segment.words]
    if words:
        return words[-1]
    return segments[-1].end if segments else None

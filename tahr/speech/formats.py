"""Transcripts as text, JSON and subtitles."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tahr.speech.decoding.results import SpokenSegment, SpokenWord
from tahr.speech.languages import NAMES

FORMATS = ("text", "json", "verbose_json", "srt", "vtt")
VTT_HEAD = "WEBVTT\n\n"


def clock(seconds: float, point: str) -> str:
    """Hours, minutes and seconds, with thousandths behind `point`."""
    n = round(seconds * 1000)
    return f"{n // 3_600_000:02d}:{n // 60_000 % 60:02d}:{n // 1000 % 60:02d}{point}{n % 1000:03d}"


def srt_cue(segment: SpokenSegment) -> str:
    times = f"{clock(segment.start, ',')} --> {clock(segment.end, ',')}"
    return f"{segment.id + 1}\n{times}\n{cue_text(segment)}\n\n"


def vtt_cue(segment: SpokenSegment) -> str:
    times = f"{clock(segment.start, '.')} --> {clock(segment.end, '.')}"
    return f"{times}\n{cue_text(segment)}\n\n"


def cue_text(segment: SpokenSegment) -> str:
    """The text on one line; an arrow would look like another cue's times."""
    return segment.text.strip().replace("\n", " ").replace("-->", "->")


def by_word(segments: Iterable[SpokenSegment]) -> Iterator[SpokenSegment]:
    """Each word as a segment of its own."""
    numbers = count()
    for segment in segments:
        for word in segment.words or ():
            yield replace(segment, id=next(numbers), start=word.start, end=word.end, text=word.text)


def text_of(segments: Sequence[SpokenSegment]) -> str:
    return "".join(segment.text for segment in segments).strip()


def segment_object(segment: SpokenSegment) -> dict[str, Any]:
    window = segment.window
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": window.temperature,
        "avg_logprob": window.mean_logprob,
        "compression_ratio": window.compression_ratio,
        "no_speech_prob": window.no_speech,
    }


def word_object(word: SpokenWord) -> dict[str, Any]:
    return {"word": word.text.strip(), "start": word.start, "end": word.end}


def verbose_object(
    segments: Sequence[SpokenSegment], language: str, seconds: float, task: str, has_segments: bool = True
) -> dict[str, Any]:
    """The reply of `verbose_json`."""
    found: dict[str, Any] = {
        "task": task,
        "language": NAMES.get(language, language),
        "duration": round(seconds, 3),
        "text": text_of(segments),
    }
    if has_segments:
        found["segments"] = [segment_object(segment) for segment in segments]
    return found


def words_object(segments: Sequence[SpokenSegment]) -> dict[str, Any]:
    """The rest of `verbose_json`, where times of words were wanted."""
    return {"words": [word_object(word) for segment in segments for word in segment.words or ()]}

"""Transcripts as text, JSON and subtitles."""

from collections.abc import Sequence
from typing import Any

from tahr.speech.decoding.results import SpokenSegment
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


def verbose_object(segments: Sequence[SpokenSegment], language: str, seconds: float, task: str) -> dict[str, Any]:
    """The reply of `verbose_json`."""
    return {
        "task": task,
        "language": NAMES.get(language, language),
        "duration": round(seconds, 3),
        "text": text_of(segments),
        "segments": [segment_object(segment) for segment in segments],
    }

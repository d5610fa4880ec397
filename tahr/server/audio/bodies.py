"""The fields of requests about recordings."""

from typing import Annotated, Any

from msgspec import Struct

from tahr.server.bodies.decoding import Limited, Refused, described
from tahr.speech.decoding.options import MOST_BEAMS
from tahr.speech.formats import FORMATS

Upload = Annotated[Any, described(type="string", format="binary")]  # a memoryview


class TranslationBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of /v1/audio/translations."""

    file: Upload
    model: str | None = None
    prompt: str = ""
    response_format: Annotated[str, described(enum=list(FORMATS))] = "json"
    temperature: Annotated[float, described(minimum=0, maximum=1)] = 0.0  # 0: higher ones are tried where it is poor
    stream: bool | None = None
    seed: int | None = None
    beam_size: Annotated[int, described(minimum=1, maximum=MOST_BEAMS)] = 5
    patience: float = 1.0
    hotwords: str = ""
    vad_filter: bool = True  # windows of silence and steady noise are passed over


class TranscriptionBody(TranslationBody, kw_only=True, forbid_unknown_fields=True):
    """The form of /v1/audio/transcriptions."""

    language: str | None = None  # its code or its name
    timestamp_granularities: list[str] | None = None
    hallucination_silence_threshold: float | None = None  # seconds; needs times of words
    keywords: list[str] | None = None  # likely words, like hotwords
    chunking_strategy: Limited = None
    include: Refused = None
    languages: Refused = None
    known_speaker_names: Refused = None
    known_speaker_references: Refused = None


class DurationUsage(Struct, tag="duration"):
    """The length of a recording, as the cost of a request."""

    seconds: int


class TranscriptReply(Struct, omit_defaults=True):
    """The text of a recording; `verbose_json` has more beside it."""

    text: str
    usage: DurationUsage | None = None

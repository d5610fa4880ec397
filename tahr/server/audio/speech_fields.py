"""A body becomes a text to be spoken. A field is honoured or refused by name."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from tahr.errors import ConfigError
from tahr.server.bodies.decoding import Limited, Refused, check_limited, decode, described
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.speech.speaking.encoding import FORMS
from tahr.speech.speaking.options import MOST_CHUNK, MOST_FRAMES, SpeakOptions

MOST_CHARACTERS = 4096
MOST_VOICE_CHARS = 16 << 20
STREAMS = ("audio", "sse")
FIRST_CHUNK = 10
# Voices of OpenAI, for which clients ask that know no others.
OPENAI_VOICES = frozenset(
    [
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
        *("marin", "nova", "onyx", "sage", "shimmer", "verse", "default"),
    ]
)
# Fields by words of errors about options.
FIELDS = {
    "recording": "ref_audio",
    "voice": "voice",
    "language": "language",
    "speak '": "language",
    "instructions": "instructions",
    "description": "instructions",
    "text": "input",
    "say": "input",
}


class FrameFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The way frames are drawn, and how many at most."""

    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    chunk_frames: Annotated[int, described(minimum=1, maximum=MOST_CHUNK)] = FIRST_CHUNK
    max_new_tokens: Annotated[int, described(minimum=1, maximum=MOST_FRAMES)] = MOST_FRAMES  # frames of a part


class SpeechBody(FrameFields, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/audio/speech."""

    input: Annotated[str, described(maxLength=MOST_CHARACTERS)]
    model: str | None = None
    voice: Any = None  # a name, or an object with an id
    instructions: Annotated[str | None, described(maxLength=MOST_CHARACTERS)] = None
    response_format: Annotated[str, described(enum=list(FORMS))] = "mp3"
    speed: Limited = None
    stream_format: Annotated[str, described(enum=list(STREAMS))] = "audio"
    language: str | None = None
    ref_audio: str | None = None  # a recording of a voice, as a data URI
    ref_text: Refused = None
    streaming: bool = False  # the model reads the text word by word while it speaks


BODY = msgspec.json.Decoder(SpeechBody)


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A request, checked."""

    model: ServedModel
    text: str
    options: SpeakOptions
    form: str
    has_events: bool
    voice_file: bytes  # recording whose voice is copied; empty: none
    replaced_voice: bool  # a voice of OpenAI's was asked for


def read_speech(models: ModelRegistry, data: bytes) -> SpeechRequest:
    """Everything that can be wrong but the recording of a voice is found here."""
    body = decode(BODY, data)
    check(body)
    model = speaking_model(models, body.model)
    speaking = model.engine.speaking
    assert speaking, "it speaks"
    voice = voice_name(body.voice)
    replaced = voice.lower() in OPENAI_VOICES and voice.lower() not in speaking.voices
    try:
        options = SpeakOptions(
            voice="" if replaced else voice,
            language=body.language or "",
            instructions=body.instructions or "",
            is_streaming=body.streaming,
            chunk_frames=body.chunk_frames,
            max_frames=body.max_new_tokens,
            seed=body.seed,
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            repetition_penalty=body.repetition_penalty,
        )
    except ConfigError as error:
        raise refused_option(error) from error
    file = voice_file(body.ref_audio) if body.ref_audio else b""
    return SpeechRequest(model, body.input, options, body.response_format, body.stream_format == "sse", file, replaced)


def check(body: SpeechBody) -> None:
    n = len(body.input)
    if not body.input.strip() or n > MOST_CHARACTERS:
        what = f"input has {n} characters"
        raise bad_field("input", f"{what}, but it must have 1 to {MOST_CHARACTERS}, and not spaces alone.")
    if body.response_format not in FORMS:
        what = f"response_format is {body.response_format!r:.60}"
        raise bad_field("response_format", f"{what}, but it must be one of {', '.join(FORMS)}.")
    if body.stream_format not in STREAMS:
        raise bad_field("stream_format", f"stream_format is {body.stream_format!r:.60}: send audio or sse.")
    check_limited(body)
    if body.ref_text is not None:
        raise bad_field("ref_text", "ref_text is not supported by this server: leave it out.", "unsupported")


def voice_name(voice: Any) -> str:
    """The name of a voice, which clients send alone or as the id of an object."""
    name = voice.get("id") if isinstance(voice, dict) else voice
    if name is None and voice is None:
        return ""
    if not isinstance(name, str) or len(name) > 100:
        raise bad_field("voice", "voice must be the name of a voice, or an object with one as its id.")
    return name


def voice_file(text: str) -> bytes:
    """The bytes of a recording; nothing is fetched and no file is read."""
    head, comma, data = text.partition(",")
    if not comma or not head.lower().startswith("data:audio/") or not head.lower().endswith(";base64"):
        raise bad_field("ref_audio", "ref_audio must be a data URI, data:audio/wav;base64,...: no URL, and no path.")
    if len(data) > MOST_VOICE_CHARS:
        raise bad_field("ref_audio", "The recording of the voice is too large: some seconds are enough.")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_field("ref_audio", "ref_audio is no base64: send data:audio/wav;base64,....") from error


def refused_option(error: ConfigError) -> HttpError:
    """Wrong options, by the names of this API."""
    message = str(error)
    named = next((name for name in SpeechBody.__struct_fields__ if f", {name} " in message), None)
    return HttpError(400, message, param=named or next((f for words, f in FIELDS.items() if words in message), None))


def speakers_of(models: ModelRegistry) -> Sequence[ServedModel]:
    return [model for model in models.loaded if model.engine.speaking]


def speaking_model(models: ModelRegistry, name: str | None) -> ServedModel:
    """The model that is named, or the first one that speaks."""
    models.check_ready()
    found = models.get(name) if name else None
    if found:
        if not found.engine.speaking:
            raise bad_field("model", f"The model {found.name} does not speak: name a Qwen3-TTS.")
        return found
    able = speakers_of(models)
    if not able:
        message = "No model that speaks is served here: start the server with a Qwen3-TTS."
        raise HttpError(503, message, param="model", code="no_speech_model")
    if name:
        raise models.unknown(name)
    return able[0]

"""A form becomes the options of a recording. A field is honoured or refused by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tahr.errors import ConfigError
from tahr.server.audio.bodies import TranscriptionBody, TranslationBody
from tahr.server.bodies.decoding import check_limited, wrong_field
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.multipart import FormPart, read_form
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.speech.decoding.options import LADDER, TranscribeOptions
from tahr.speech.formats import FORMATS
from tahr.speech.languages import code_of

REFUSED = ("include", "languages", "known_speaker_names", "known_speaker_references")
LISTS = ("timestamp_granularities", "keywords", *REFUSED)
GRANULARITIES = ("segment", "word")
STREAMED = ("json", "text")
# Fields by how errors about options begin.
FIELDS = {
    "temperature": "temperature",
    "beams": "beam_size",
    "patience": "patience",
    "The prompt": "prompt",
    "The text of hotwords": "hotwords",
    "The language": "language",
    "This model knows English": "language",
    "Times of words": "timestamp_granularities",
    "hallucination_silence_threshold": "hallucination_silence_threshold",
}


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """A request, checked."""

    model: ServedModel
    file: memoryview
    options: TranscribeOptions
    form: str
    stream: bool
    has_segments: bool  # `verbose_json` lists them


def read_request(
    models: ModelRegistry, content_type: str, data: bytes, kind: type[TranslationBody], task: str
) -> RecordingRequest:
    """Everything that can be wrong but the recording itself is found here."""
    fields = fields_of(read_form(content_type, data))
    try:
        body = msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from error
    check_form(body)
    if isinstance(body, TranscriptionBody):
        check_transcription(body)
    model = model_for(models, body.model)
    has_segments = "word" not in wanted_times(body) or "segment" in wanted_times(body)
    options = options_of(body, task)
    return RecordingRequest(model, body.file, options, body.response_format, bool(body.stream), has_segments)


def fields_of(parts: Sequence[FormPart]) -> dict[str, Any]:
    """Values by name; `name[]` is part of a list, `name[key]` of an object."""
    found: dict[str, Any] = {}
    for part in parts:
        name, _, key = part.name.rstrip("]").partition("[")
        if key and name == "file":
            raise bad_field(name, f"The field {part.name:.60} is not one this route knows: send the file as file.")
        if key:
            found[name] = {key: part.text}  # no object is honoured, so one field of it is enough
        elif name in LISTS:
            found.setdefault(name, []).append(part.text)
        elif name in found:
            raise bad_field(name, f"The field {name} is sent twice: send it once.")
        elif name == "file":
            found[name] = part.data
        elif part.text:  # forms have empty fields where nothing was chosen
            found[name] = part.text
    return found


def check_form(body: TranslationBody) -> None:
    if body.response_format not in FORMATS:
        what = f"response_format is {body.response_format!r:.60}"
        raise bad_field("response_format", f"{what}, but it must be one of {', '.join(FORMATS)}.")
    if body.stream and body.response_format not in STREAMED:
        raise bad_field("stream", f"{body.response_format} is not streamed: send stream with json or text alone.")


def check_transcription(body: TranscriptionBody) -> None:
    for name in REFUSED:
        if getattr(body, name) is not None:
            raise bad_field(name, f"{name} is not supported by this server: leave it out.", "unsupported")
    check_limited(body)
    wanted = wanted_times(body)
    for each in wanted:
        if each not in GRANULARITIES:
            raise bad_field(
                "timestamp_granularities", f"timestamp_granularities is {each!r:.60}: ask for segment or word."
            )
    if "word" in wanted and body.response_format != "verbose_json":
        what = f"Times of words have no place in {body.response_format}"
        raise bad_field("timestamp_granularities", f"{what}: ask for verbose_json as response_format.")


def wanted_times(body: TranslationBody) -> Sequence[str]:
    return (body.timestamp_granularities or ()) if isinstance(body, TranscriptionBody) else ()


def of_transcriptions(body: TranslationBody) -> dict[str, Any]:
    """Options that translations do not have."""
    if not isinstance(body, TranscriptionBody):
        return {}
    return {
        "language": body.language and code_of(body.language),
        "has_words": "word" in wanted_times(body),
        "most_silence_s": body.hallucination_silence_threshold,
    }


def hotwords_of(body: TranslationBody) -> str:
    keywords = body.keywords if isinstance(body, TranscriptionBody) else None
    return ", ".join(filter(None, [body.hotwords, *(keywords or ())]))


def options_of(body: TranslationBody, task: str) -> TranscribeOptions:
    try:
        return TranscribeOptions(
            task=task,
            temperatures=(body.temperature,) if body.temperature else LADDER,
            beams=body.beam_size,
            patience=body.patience,
            prompt=body.prompt,
            hotwords=hotwords_of(body),
            passes_silence=body.vad_filter,
            seed=(body.seed or 0) % 2**31,
            **of_transcriptions(body),
        )
    except ConfigError as error:
        raise named(error) from error


def named(error: ConfigError) -> HttpError:
    """Wrong options, by the names of this API."""
    message = str(error)
    field = next((name for start, name in FIELDS.items() if message.startswith(start)), None)
    return HttpError(400, message, param=field)


def model_for(models: ModelRegistry, name: str | None) -> ServedModel:
    """The model that is named, or the first one that reads recordings."""
    models.check_ready()
    found = models.get(name) if name else None
    able = [model for model in models.loaded if model.engine.reads_recordings]
    if found:
        if not found.engine.reads_recordings:
            raise bad_field("model", f"The model {found.name} writes down no recordings: name a Whisper.")
        return found
    if not able:
        message = "No model that writes down recordings is served here: start the server with a Whisper."
        raise HttpError(503, message, param="model", code="no_speech_model")
    if name:
        raise models.unknown(name)
    return able[0]

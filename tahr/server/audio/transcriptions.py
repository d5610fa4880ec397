"""/v1/audio/transcriptions and /v1/audio/translations."""

import asyncio
from functools import partial
from math import ceil
from time import perf_counter

from tahr.errors import ConfigError
from tahr.server.audio.bodies import DurationUsage, TranscriptionBody, TranscriptReply, TranslationBody
from tahr.server.audio.fields import RecordingRequest, named, read_request
from tahr.server.http.errors import HttpError, bad_field, logged_error
from tahr.server.http.records import RecordingRecord
from tahr.server.http.request import ClientGone, HttpRequest
from tahr.server.http.sse import HEADERS, KEEP_ALIVE, encode, event
from tahr.server.models.engine_port import SpokenText
from tahr.server.replies.served import caller_of
from tahr.server.state.state import ServerState
from tahr.speech.audio.errors import AudioTooLong, BadAudio
from tahr.speech.decoding.results import SpokenSegment
from tahr.speech.formats import VTT_HEAD, srt_cue, text_of, verbose_object, vtt_cue, words_object

PLAIN = "text/plain; charset=utf-8"


async def transcribe(request: HttpRequest, state: ServerState) -> None:
    """Write down what is said in a recording, in its language."""
    await write_down(request, state, TranscriptionBody, "transcribe")


async def translate(request: HttpRequest, state: ServerState) -> None:
    """Write down what is said in a recording, in English."""
    await write_down(request, state, TranslationBody, "translate")


async def write_down(request: HttpRequest, state: ServerState, kind: type[TranslationBody], task: str) -> None:
    data = await request.body()
    content_type = request.header("content-type")
    work = partial(read_request, state.models, content_type, data, kind, task)
    requested = await state.text_pool.run_for(request, work, len(data))
    with state.admission.admitted(request, requested.model):
        try:
            with request.cancellable():
                await respond(request, state, requested)
        except ClientGone:
            raise
        except Exception as error:
            if not request.status:
                raise refused(error) from error
            await request.end_stream(event(request.error_body(logged_error(error))))


def refused(error: Exception) -> Exception:
    """An error about the recording or the options, with the field that is wrong."""
    if isinstance(error, AudioTooLong):
        return HttpError(413, str(error), param="file", code="audio_too_long")
    if isinstance(error, BadAudio):
        return bad_field("file", str(error))
    return named(error) if isinstance(error, ConfigError) else error


async def respond(request: HttpRequest, state: ServerState, requested: RecordingRequest) -> None:
    """Queue the recording, and send what comes of it; on the way out it leaves the engine."""
    began = perf_counter()
    salt = caller_of(request, state).salt
    engine = requested.model.engine
    spoken = await engine.transcribe(requested.file, requested.options, state.settings.max_audio_s, salt)
    try:
        if requested.stream:
            await stream(request, spoken, state.settings.keep_alive_s)
        else:
            segments = [segment async for segment in spoken]
            content_type, body = whole(requested, spoken, segments)
            await request.respond(body, content_type)
    finally:
        spoken.close()
        took = perf_counter() - began
        name, account = requested.model.name, request.account.name
        record = RecordingRecord(name, spoken.seconds, spoken.n_windows, spoken.n_fallbacks, took, account)
        state.observers.notify("recording_finished", record)


def whole(requested: RecordingRequest, spoken: SpokenText, segments: list[SpokenSegment]) -> tuple[str, bytes]:
    """The content type and the body of a reply."""
    if requested.form == "srt":
        return PLAIN, "".join(map(srt_cue, segments)).encode()
    if requested.form == "vtt":
        return PLAIN, (VTT_HEAD + "".join(map(vtt_cue, segments))).encode()
    if requested.form == "text":
        return PLAIN, f"{text_of(segments)}\n".encode()
    usage = DurationUsage(ceil(spoken.seconds))
    if requested.form == "json":
        return "application/json", encode(TranscriptReply(text_of(segments), usage))
    language = spoken.heard.language if spoken.heard else requested.options.language or "en"
    options = requested.options
    found = verbose_object(segments, language, spoken.seconds, options.task, requested.has_segments)
    if options.has_words:
        found |= words_object(segments)
    return "application/json", encode({**found, "usage": usage})


async def stream(request: HttpRequest, spoken: SpokenText, keep_alive_s: float) -> None:
    """Segments as events while later windows are still to come; what is wrong with a file is said before."""
    first = await anext(aiter(spoken), None)
    await request.begin_stream(HEADERS)
    keeping_alive = asyncio.create_task(keep_alive(request, keep_alive_s))
    segments: list[SpokenSegment] = []
    try:
        if first:
            await send(request, segments, first)
        async for segment in spoken:
            await send(request, segments, segment)
    finally:
        keeping_alive.cancel()
    await request.end_stream(event(encode({"type": "transcript.text.done", "text": text_of(segments)})))


async def send(request: HttpRequest, segments: list[SpokenSegment], segment: SpokenSegment) -> None:
    text = segment.text if segments else segment.text.lstrip()
    segments.append(segment)
    await request.send(event(encode({"type": "transcript.text.delta", "delta": text})))


async def keep_alive(request: HttpRequest, seconds: float) -> None:
    """Comments, lest a proxy close the stream."""
    while True:
        await asyncio.sleep(seconds)
        await request.send(KEEP_ALIVE)

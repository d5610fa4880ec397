"""/v1/audio/speech and /v1/audio/voices."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from tahr.errors import ConfigError
from tahr.server.audio.speech_fields import SpeechRequest, read_speech, refused_option, speakers_of
from tahr.server.http.errors import logged_error
from tahr.server.http.records import SpeechRecord
from tahr.server.http.request import ClientGone, HttpRequest
from tahr.server.http.sse import HEADERS, encode, event
from tahr.server.models.engine_port import SpokenSound
from tahr.server.replies.served import caller_of
from tahr.server.state.state import ServerState
from tahr.speech.audio.process import decoding
from tahr.speech.codec.speaker import RATE
from tahr.speech.codec.tensors import Floats
from tahr.speech.speaking.encoding import CONTENT_TYPES, SoundFile, sound_file

MOST_VOICE_S = 60  # limit on a recording of a voice, which a thread of the server computes on


class Voice(msgspec.Struct):
    """A voice of a model."""

    id: str
    name: str
    model: str
    languages: list[str]


class VoiceList(msgspec.Struct):
    """The voices of all models that are loaded."""

    voices: list[Voice]


async def voices(request: HttpRequest, state: ServerState) -> None:
    """The voices that speech may have."""
    found = [
        Voice(name, name, model.name, model.engine.speaking.languages)
        for model in speakers_of(state.models)
        if model.engine.speaking and request.account.may_use(model.names)
        for name in model.engine.speaking.voices
    ]
    await request.respond_json(VoiceList(found))


async def speak(request: HttpRequest, state: ServerState) -> None:
    """Speak a text."""
    sent = await request.body()
    requested = await state.text_pool.run_for(request, partial(read_speech, state.models, sent), len(sent))
    with state.admission.admitted(request, requested.model):
        try:
            with request.cancellable():
                await respond(request, state, requested)
        except ClientGone:
            raise
        except Exception as error:
            if not request.status:
                raise (refused_option(error) if isinstance(error, ConfigError) else error) from error
            if requested.has_events:
                await request.end_stream(event(request.error_body(logged_error(error))))
            else:
                raise


async def respond(request: HttpRequest, state: ServerState, requested: SpeechRequest) -> None:
    """Queue the text, and send its sound as it is made; on the way out it leaves the engine."""
    began = perf_counter()
    engine = requested.model.engine
    speaking = engine.speaking
    assert speaking, "the model was looked at before"
    made = sound_file(requested.form, speaking.sample_rate)
    vector = (
        await asyncio.to_thread(voice_of, speaking.voice_vector, requested.voice_file) if requested.voice_file else None
    )
    salt = caller_of(request, state).salt
    spoken = await engine.speak(requested.text, requested.options, vector, salt)
    try:
        first = await anext(aiter(spoken), None)
        await send(request, requested, spoken, made, first)
    finally:
        spoken.close()
        took = perf_counter() - began
        record = SpeechRecord(requested.model.name, spoken.n_frames, spoken.reason, took, request.account.name)
        state.observers.notify("speech_finished", record)


def voice_of(voice_vector: Callable[[Floats], Floats], data: bytes) -> Floats:
    """The voice of a recording, which a process of its own decodes."""
    import numpy as np

    with decoding(data, MOST_VOICE_S, RATE) as blocks:
        return voice_vector(np.concatenate([np.zeros(0, np.float32), *blocks]))


async def send(
    request: HttpRequest, requested: SpeechRequest, spoken: SpokenSound, made: SoundFile, first: Floats | None
) -> None:
    """Send the sound, as the bytes of a file or as events."""
    headers = {**HEADERS} if requested.has_events else {"content-type": CONTENT_TYPES[requested.form]}
    if requested.replaced_voice:
        headers["x-voice"] = requested.options.voice or "default"
    await request.begin_stream(headers)
    pass_on = partial(delta, request) if requested.has_events else request.send
    await passed(pass_on, made.begin())
    if first is not None:
        await passed(pass_on, await asyncio.to_thread(made.add, first))
    async for samples in spoken:
        await passed(pass_on, await asyncio.to_thread(made.add, samples))
    await passed(pass_on, await asyncio.to_thread(made.finish))
    usage = {"input_tokens": 0, "output_tokens": spoken.n_frames, "total_tokens": spoken.n_frames}
    last = event(encode({"type": "speech.audio.done", "usage": usage})) if requested.has_events else b""
    await request.end_stream(last)


async def passed(pass_on: Callable[[bytes], Awaitable[Any]], data: bytes) -> None:
    if data:
        await pass_on(data)


async def delta(request: HttpRequest, data: bytes) -> None:
    audio = base64.b64encode(data).decode()
    await request.send(event(encode({"type": "speech.audio.delta", "audio": audio})))

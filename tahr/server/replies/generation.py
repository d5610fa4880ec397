"""A prepared request becomes its response, streamed or whole; APIs differ only in their formatter."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from msgspec import Struct

from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import GrammarError
from tahr.generation.delivery import OnChunk
from tahr.generation.outputs import Chunk
from tahr.server.conversations.sessions import Turn
from tahr.server.http.errors import HttpError, bad_field, logged_error
from tahr.server.http.records import GenerationRecord
from tahr.server.http.request import ClientGone, HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.engine_port import EngineStream
from tahr.server.models.registry import ServedModel
from tahr.server.models.text_pool import TextPool
from tahr.server.observe.observer import Observers
from tahr.server.replies.buffering import as_chunk, check_whole, is_cut
from tahr.server.replies.formatter import CachedDetails, ChoiceOutput, Formatter, ReasoningDetails, Usage
from tahr.server.replies.logprobs import shown
from tahr.server.state.state import ServerState

PROGRESS_EVERY_S = 0.2
REQUEST_IDS = ("x-request-id", "request-id")  # headers: all APIs have the first, Anthropic's the second too


class PreparedReply(Struct, frozen=True):
    """A reply to a request that has been read, resolved and checked."""

    model: ServedModel
    resolved: list[ResolvedRequest]  # one request for each prompt
    formatter: Formatter
    stream: bool = False
    return_progress: bool = False
    turn: Turn | None = None  # turn in a session
    prefill_only: bool = False  # nothing is to be generated
    grammar_field: str = ""  # field that its grammar came from, if it has one
    buffered: bool = False  # nothing is sent before the reply is whole

    @property
    def n(self) -> int:
        """Choices of each prompt."""
        return self.resolved[0].params.n


class ActiveGeneration(Struct):
    """A request while the engine works on it."""

    request: HttpRequest
    reply: PreparedReply
    record: GenerationRecord
    observers: Observers
    text_pool: TextPool
    keep_alive_s: float
    streams: list[EngineStream]
    n_reported: int = 0  # steps of the prefill that the client was told of


async def generate(request: HttpRequest, state: ServerState, reply: PreparedReply) -> None:
    """Respond to a request. However it ends, the engine holds nothing of it afterwards."""
    record = request.record.generation = record_of(request, reply, state.settings.request_dump_texts)
    request.response_headers |= {name: reply.formatter.id for name in REQUEST_IDS if name in request.response_headers}
    active = ActiveGeneration(request, reply, record, state.observers, state.text_pool, state.settings.keep_alive_s, [])
    with state.admission.admitted(request, reply.model, most_tokens(reply)):
        await respond_observed(active)


def most_tokens(reply: PreparedReply) -> int:
    """How many tokens a reply may take, those of its prompts included."""
    context_size = reply.model.engine.context_size
    n_tokens = 0
    for each in reply.resolved:
        n_prompt = len(each.tokens)
        n_tokens += n_prompt + each.params.n * min(each.params.max_tokens or context_size, context_size - n_prompt)
    return n_tokens


def record_of(request: HttpRequest, reply: PreparedReply, texts: bool) -> GenerationRecord:
    return GenerationRecord(
        id=reply.formatter.id,
        route=request.path,
        model=reply.model.name,
        backend=reply.model.engine.backend_summary,
        context_size=reply.model.engine.context_size,
        params=reply.resolved[0].params,
        prompts=[each.tokens for each in reply.resolved],
        stream=reply.stream,
        texts={} if texts else None,
        arrived=request.record.arrived,
        account=request.account.name,
    )


async def respond_observed(active: ActiveGeneration) -> None:
    """Observers are notified of the beginning and of the end, whatever the end is."""
    record = active.record
    observers = active.observers
    observers.notify("generation_started", record)
    try:
        await respond(active)
    except BaseException as error:
        record.finish = "client_gone" if isinstance(error, ClientGone) else "error"
        raise
    finally:
        record.finish = record.finish or "error"
        observers.notify("generation_finished", record, perf_counter() - record.arrived)


async def respond(active: ActiveGeneration) -> None:
    """Generate and respond: an error before the first byte becomes a status, afterwards an event."""
    try:
        with active.request.cancellable():
            await compute(active)
    except ClientGone:
        raise
    except Exception as error:
        if not active.request.status:
            raise
        active.record.finish = "error"
        await active.request.end_stream(active.reply.formatter.failure(logged_error(error)))


async def compute(active: ActiveGeneration) -> None:
    """Submit all prompts to the engine and send what comes of them; what still runs on the way out is aborted."""
    engine = active.reply.model.engine
    reply = active.reply
    try:
        n_before = 0  # sequences for prompts of this request that come first
        background = active.request.on_behalf is not None
        for each in reply.resolved:
            check_images_of_batch(background and bool(each.rows))
            queued = replace(each, n_before=n_before, background=background, owner=active.record.account)
            active.streams.append(await engine.submit(queued, whole=not reply.stream))
            active.record.n_submitted_tokens += len(each.tokens)
            n_before += each.params.n
        await (respond_streamed(active) if reply.stream else respond_whole(active))
    except GrammarError as error:
        raise bad_field(reply.grammar_field, str(error)) from error
    finally:
        for stream in active.streams:
            stream.abort()


def check_images_of_batch(has_images: bool) -> None:
    """Refuse images of a batch: towers take images in the order in which they come, so others would wait for them."""
    if has_images:
        raise HttpError(400, "A batch of a server reads no images: send them one by one, or use `tahr batch`.")


def usage(record: GenerationRecord) -> Usage:
    n_prompt = record.n_prompt_tokens
    n_new = record.n_tokens
    details = CachedDetails(record.n_cached), ReasoningDetails(record.n_reasoning)
    return Usage(n_prompt, n_new, n_prompt + n_new, *details)


def received(active: ActiveGeneration, choice: int, chunk: Chunk) -> Chunk:
    """Handle a chunk before it is formatted: refuse, empty, remember or observe it."""
    if chunk.finish_reason == "cancelled":
        raise HttpError(503, "The request was cancelled by the server: try again.", code="cancelled")
    if active.reply.prefill_only:
        chunk = emptied(chunk)
    if active.reply.turn and not (active.reply.buffered and is_cut(chunk.finish_reason)):
        active.reply.turn.add(chunk)
    active.observers.chunk(active.record, choice, chunk)
    return chunk


def emptied(chunk: Chunk) -> Chunk:
    """A chunk without the one token that the engine makes of a prompt: nobody asked for it, nor for what it ended."""
    whole = chunk.completion
    if whole is None:
        return replace(chunk, deltas=(), token_ids=[], logprobs=())
    stats = replace(whole.stats, n_generated_tokens=0)
    whole = replace(whole, text="", token_ids=[], logprobs=[], finish_reason="length", matched_stop=None, stats=stats)
    return replace(chunk, deltas=(), token_ids=[], logprobs=(), finish_reason="length", completion=whole)


# ---- whole --------------------------------------------------------------------------------------------------


async def respond_whole(active: ActiveGeneration) -> None:
    reply = active.reply
    outputs = await whole_outputs(active)

    def body() -> bytes:
        return encode(reply.formatter.whole(outputs, active.streams, usage(active.record)))

    # Log-probabilities make a response so large that making it would hold up the loop.
    await active.request.respond(await active.text_pool.run(body) if reply.formatter.has_logprobs else body())


async def whole_outputs(active: ActiveGeneration) -> list[ChoiceOutput]:
    """All choices of all prompts."""
    reply = active.reply
    tokenizer = active.reply.model.engine.tokenizer
    outputs = [ChoiceOutput() for _ in range(len(active.streams) * reply.n)]

    def reader(first_choice: int) -> OnChunk:
        def on_chunk(chunk: Chunk) -> bool:
            chunk = received(active, first_choice + chunk.index, chunk)
            output = outputs[first_choice + chunk.index]
            output.deltas += chunk.deltas
            output.logprobs.extend(shown(tokenizer, chunk))
            output.completion = chunk.completion
            return True

        return on_chunk

    await run_together([stream.read(reader(at * reply.n)) for at, stream in enumerate(active.streams)])
    if reply.buffered:
        check_whole(outputs, reply.grammar_field)
    return outputs


async def run_together(works: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """All of them at once; the first error ends the others."""
    if len(works) == 1:
        await works[0]
        return
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


# ---- streamed -----------------------------------------------------------------------------------------------


async def respond_streamed(active: ActiveGeneration) -> None:
    """Events up to the end; what goes wrong on the way becomes an event too, in `respond`."""
    await active.request.begin_stream(active.reply.formatter.headers)
    opening = active.reply.formatter.opening()
    if active.reply.return_progress:
        opening += first_progress(active)
    await active.request.send(opening)
    keeping_alive = asyncio.create_task(keep_alive(active))
    if not active.reply.buffered:
        active.request.end_early = partial(end_early, active.streams)
    try:
        last = await (buffered_events(active) if active.reply.buffered else send_chunks(active))
    finally:
        keeping_alive.cancel()
    await active.request.end_stream(last + active.reply.formatter.ending(usage(active.record)))


def end_early(streams: Sequence[EngineStream]) -> None:
    for stream in streams:
        stream.end_early()


async def buffered_events(active: ActiveGeneration) -> bytes:
    """All events of a reply, when it is whole."""
    outputs = await whole_outputs(active)
    formatter = active.reply.formatter

    def events() -> bytes:
        made = []
        for choice, output in enumerate(outputs):
            chunk = as_chunk(output)
            made.append(formatter.chunk(choice, chunk, active.streams[choice // active.reply.n]))
            made.append(formatter.closing(choice, chunk))
        return b"".join(made)

    return await active.text_pool.run(events) if formatter.has_logprobs else events()


async def send_chunks(active: ActiveGeneration) -> bytes:
    """Send all but the last events, which are returned, so that the end is one write."""
    events = EventWriter(active)
    await run_together([events.follow(at) for at in range(len(active.streams))])
    return events.last


def is_plain(reply: PreparedReply) -> bool:
    """Whether chunks go from the engine to the client without a detour."""
    return not (reply.turn or reply.prefill_only or reply.formatter.has_logprobs)


class EventWriter:
    """Formats chunks and sends them as events; the last is kept in `last`."""

    def __init__(self, active: ActiveGeneration):
        self._active = active
        self._n_left = len(active.streams) * active.reply.n  # choices
        self.last = b""

    async def follow(self, at: int) -> None:
        """Everything of one prompt."""
        active = self._active
        heavy = list[tuple[int, Chunk]]()
        on_chunk = self._reader(at, heavy)
        while await active.streams[at].read(on_chunk):
            for choice, chunk in heavy:
                self._send(choice, chunk, await active.text_pool.run(partial(self._format, at, choice, chunk)))
            heavy.clear()
            await active.request.drained()

    def _reader(self, at: int, heavy: list[tuple[int, Chunk]]) -> OnChunk:
        active = self._active
        first_choice = at * self._active.reply.n
        record = active.record
        formatter = active.reply.formatter
        stream = active.streams[at]
        reports = active.reply.return_progress
        is_simple = is_plain(active.reply)
        observe = active.observers.chunk
        send_chunk = active.request.send_chunk
        is_heavy = formatter.is_heavy
        format_chunk = formatter.chunk

        def on_chunk(chunk: Chunk) -> bool:  # runs for every token, so the rare cases are elsewhere
            choice = first_choice + chunk.index
            if reports and not record.token_at:
                send_chunk(last_progress(active))
            if is_simple and not chunk.finish_reason:
                observe(record, choice, chunk)
                return send_chunk(format_chunk(choice, chunk, stream))
            chunk = received(active, choice, chunk)
            if is_heavy(choice):
                heavy.append((choice, chunk))
                return False
            return self._send(choice, chunk, self._format(at, choice, chunk))

        return on_chunk

    def _format(self, at: int, choice: int, chunk: Chunk) -> bytes:
        formatter = self._active.reply.formatter
        data = formatter.chunk(choice, chunk, self._active.streams[at])
        return data + formatter.closing(choice, chunk) if chunk.finish_reason else data

    def _send(self, choice: int, chunk: Chunk, data: bytes) -> bool:
        """Whether the client keeps up."""
        if chunk.finish_reason:
            self._n_left -= 1
        if not self._n_left:
            self.last = data
            return True
        return self._active.request.send_chunk(data)


async def keep_alive(active: ActiveGeneration) -> None:
    """Progress while the prompt is in prefill; a keep-alive while there is no event, lest a proxy close the stream.

    A client that reads neither is cut off by its connection.
    """
    record = active.record
    reports = active.reply.return_progress
    quiet_since = perf_counter()
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S if reports and not record.token_at else active.keep_alive_s)
        now = perf_counter()
        if not active.reply.buffered:
            quiet_since = max(quiet_since, record.last_token_at)
        if reports and not record.token_at and (events := chunk_progress(active)):
            quiet_since = now
            await active.request.send(events)
        elif now - quiet_since >= active.keep_alive_s * 0.9:
            await active.request.send(active.reply.formatter.keep_alive)
            quiet_since = now


def first_progress(active: ActiveGeneration) -> bytes:
    """The event before anything is computed, though the engine may have begun: its time is not after a chunk's."""
    stream = active.streams[0]
    progress = stream.progress
    begun = replace(progress, n_computed=progress.n_cached)
    at = min([perf_counter(), *(end for _, end in stream.chunk_ends[:1])])
    return active.reply.formatter.progress(begun, at - active.record.began)


def chunk_progress(active: ActiveGeneration) -> bytes:
    """An event for every step of the prefill since the last event."""
    stream = active.streams[0]
    ends = stream.chunk_ends[active.n_reported :]
    active.n_reported += len(ends)
    formatter = active.reply.formatter
    progress = stream.progress
    began = active.record.began
    return b"".join(formatter.progress(replace(progress, n_computed=end), at - began) for end, at in ends)


def last_progress(active: ActiveGeneration) -> bytes:
    """The events before the first token, the last of which says that all of the prompt is processed."""
    events = chunk_progress(active)
    progress = active.streams[0].progress
    whole = replace(progress, n_computed=progress.n_tokens)
    return events + active.reply.formatter.progress(whole, perf_counter() - active.record.began)

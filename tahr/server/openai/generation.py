"""From a prepared request to its answer, streamed or whole; chats and completions differ only in their dialect."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

from tahr.config import SamplingParams
from tahr.library.delivery import OnChunk
from tahr.library.outputs import Chunk
from tahr.server.engine_port import Reply
from tahr.server.http.errors import Refusal
from tahr.server.http.internal_errors import told
from tahr.server.http.request import Call, ClientGone
from tahr.server.http.sse import DONE, HEADERS, KEEP_ALIVE, event
from tahr.server.observe.server_metrics import Meter
from tahr.server.openai.formatters import Dialect, Gathered
from tahr.server.openai.logprobs import shown
from tahr.server.openai.replies import CachedDetails, ReasoningDetails, Usage
from tahr.server.sessions import Turn
from tahr.server.state import Served

Hear = Callable[[int, Chunk], bool]  # a choice and what it has gained; whether more may come at once

PROGRESS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one engine request is made of."""

    tokens: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that has been read, checked and tokenised."""

    served: Served
    prompts: list[Prompt]
    dialect: Dialect
    is_reply: bool  # to a conversation; else it continues a text
    stream: bool = False
    include_usage: bool = False
    return_progress: bool = False
    turn: Turn | None = None  # of a session
    mute: bool = False  # nothing was to be generated: the prompt is only read

    @property
    def n_answers(self) -> int:
        return self.prompts[0].params.n


async def generate(call: Call, ask: Ask) -> None:
    """Answer a request. However it ends, the engine holds nothing of it afterwards."""
    meter = Meter(
        measures=call.front.measures,
        model=ask.served.name,
        n_prompt_tokens=sum(len(prompt.tokens) for prompt in ask.prompts),
        n_choices=len(ask.prompts) * ask.n_answers,
        texts={} if call.front.bundles and call.front.bundles.texts else None,
    )
    call.ask, call.meter = ask, meter
    call.more_headers["x-request-id"] = ask.dialect.id
    with call.front.admitted(call), metered(meter, call, ask):
        try:
            async with call.interruptible(), submitted(ask) as replies:
                answer = stream if ask.stream else gather
                await answer(call, ask, replies, meter)
        except ClientGone:
            raise
        except Exception as error:
            if not call.status:  # nothing is on its way yet, so the error can be a status
                raise
            meter.ended = "error"
            await call.end(event(told(error).body) + DONE)


@contextmanager
def metered(meter: Meter, call: Call, ask: Ask) -> Iterator[None]:
    """Both lines of the log, and the numbers."""
    params = ask.prompts[0].params
    meter.start(
        route=call.path, reply=ask.dialect.id, prompts=len(ask.prompts), prompt_tokens=meter.n_prompt_tokens,
        n=params.n, max_tokens=params.max_tokens, stream=ask.stream,
    )  # fmt: skip
    try:
        yield
    except BaseException as error:
        meter.ended = "client_gone" if isinstance(error, ClientGone) else "error"
        raise
    finally:
        meter.end()


@asynccontextmanager
async def submitted(ask: Ask) -> AsyncIterator[list[Reply]]:
    """The engine's replies to all prompts, aborted on the way out."""
    engine = ask.served.engine
    replies: list[Reply] = []
    try:
        for prompt in ask.prompts:
            replies.append(await engine.submit(prompt.tokens, prompt.params, ask.is_reply, whole=not ask.stream))
        yield replies
    finally:
        for reply in replies:
            reply.abort()


# ---- whole --------------------------------------------------------------------------------------------------


async def gather(call: Call, ask: Ask, replies: Sequence[Reply], meter: Meter) -> None:
    answers = [Gathered() for _ in range(len(replies) * ask.n_answers)]
    tokenizer = ask.served.engine.tokenizer

    def keep(choice: int, chunk: Chunk) -> bool:
        answer = answers[choice]
        answer.texts.append(chunk.text)
        answer.picks.extend(shown(tokenizer, chunk))
        answer.finish_reason = chunk.finish_reason or ""
        return True

    await listen(call, ask, replies, meter, keep)
    await call.json(ask.dialect.whole(answers, replies, usage(meter)))


def usage(meter: Meter) -> Usage:
    n_prompt, n_new = meter.n_prompt_tokens, meter.n_tokens
    return Usage(n_prompt, n_new, n_prompt + n_new, CachedDetails(meter.n_cached), ReasoningDetails())


# ---- in pieces ----------------------------------------------------------------------------------------------


async def stream(call: Call, ask: Ask, replies: Sequence[Reply], meter: Meter) -> None:
    """Events up to [DONE]; what goes wrong on the way becomes an event too, in `generate`."""
    await call.begin(HEADERS)
    pulse = asyncio.create_task(beat(call, ask, replies, meter))
    try:
        last = await write_pieces(call, ask, replies, meter)
    finally:
        pulse.cancel()
    await call.end(last)


async def write_pieces(call: Call, ask: Ask, replies: Sequence[Reply], meter: Meter) -> bytes:
    """Write all but the last events, which are returned, so that the end is one write."""
    dialect, n_answers = ask.dialect, ask.n_answers
    if opening := dialect.opening():
        await call.write(opening)
    left = len(replies) * n_answers
    last = b""

    def write(choice: int, chunk: Chunk) -> bool:
        nonlocal left, last
        data = dialect.piece(choice, chunk, replies[choice // n_answers])
        if chunk.finish_reason:
            data += dialect.closing(choice, chunk.finish_reason)
            left -= 1
        if not left:
            last = data
        return not left or not data or call.put(data)

    await listen(call, ask, replies, meter, write)
    return last + (dialect.usage(usage(meter)) if ask.include_usage else b"") + DONE


async def beat(call: Call, ask: Ask, replies: Sequence[Reply], meter: Meter) -> None:
    """Comments while nothing comes, so that nobody on the way gives up; progress while the prompt is read."""
    every_s = call.front.settings.keep_alive_s
    quiet_since = shown_at = perf_counter()
    n_shown = -1
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S if ask.return_progress and not meter.last_token_at else every_s)
        now = perf_counter()
        quiet_since = max(quiet_since, meter.last_token_at)
        progress = replies[0].progress
        if ask.return_progress and not meter.last_token_at and progress.n_read != n_shown:
            n_shown, quiet_since = progress.n_read, now
            await call.write(ask.dialect.progress(progress, now - shown_at))
        elif now - quiet_since >= every_s * 0.9:
            await nudge(call)


async def nudge(call: Call) -> None:
    """A comment. A client that does not read even that for so long has left, whatever its connection says."""
    try:
        async with asyncio.timeout(call.front.settings.reader_timeout_s):
            await call.write(KEEP_ALIVE)
    except TimeoutError:
        call.interrupt(ClientGone())


# ---- what comes ---------------------------------------------------------------------------------------------


async def listen(call: Call, ask: Ask, replies: Sequence[Reply], meter: Meter, hear: Hear) -> None:
    """Give `hear` everything that comes with the choice it belongs to, until all is over; the first error ends it."""
    takes = [taking(ask, meter, at * ask.n_answers, hear) for at in range(len(replies))]
    if len(replies) == 1:
        return await follow(call, replies[0], takes[0])
    tasks = [asyncio.create_task(follow(call, *each)) for each in zip(replies, takes, strict=True)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return None


async def follow(call: Call, reply: Reply, take: OnChunk) -> None:
    while await reply.read(take):
        await call.drained()


def taking(ask: Ask, meter: Meter, first_choice: int, hear: Hear) -> OnChunk:
    """What is done with every chunk of a reply, on its way to `hear`. It runs for every token."""

    def take(chunk: Chunk) -> bool:
        if chunk.finish_reason == "cancelled":
            raise Refusal(503, "The request was cancelled by the server: try again.", code="cancelled")
        if ask.mute:
            chunk = replace(chunk, deltas=(), token_ids=[], logprobs=())
        if ask.turn:
            ask.turn.hear(chunk)
        choice = first_choice + chunk.index
        meter.hear(choice, chunk)
        return hear(choice, chunk)

    return take

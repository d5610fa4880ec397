"""`AsyncLLM`: an engine on a thread of its own, for many requests of an event loop at once.

The loop's side only ever leaves orders and takes what has come; the thread runs the orders between two steps, and
blocks when there is nothing to do. How what a step brought finds its readers is told in `mailbox`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as ListOf
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from tahr.backends.api import Floats
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.stats import StatsSnapshot
from tahr.errors import GenerateError, TahrError
from tahr.library.delivery import Loop, Mailbox, Rounds, Take
from tahr.library.embeddings import Pooling
from tahr.library.llm import LLM, Message, Texts
from tahr.library.outputs import Chunk, Completion, Request
from tahr.library.score import SCORING, Score, ScoringPrompt

Prompt = str | list[int]  # a text, or its tokens
Outcome = tuple["asyncio.Future[Any]", Any, Exception | None]  # who waits, for what it was, or why it failed
T = TypeVar("T")


class Stream:
    """The chunks of one request, as they come. One that is closed, or that nobody holds any more, is aborted."""

    def __init__(self, llm: "AsyncLLM", mailbox: Mailbox):
        assert mailbox.request
        self._llm, self._mailbox = llm, mailbox
        self.request = mailbox.request  # to look at while it runs; only the engine's thread changes it
        self.id = mailbox.request.id

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Chunk:
        return await self._mailbox.next()

    async def feed(self, take: Take) -> bool:
        """Give the chunks to `take` as they come, without waking a task for each, until it answers False.

        Then this answers True: there may be more. It answers False when none are left.
        """
        return await self._mailbox.feed(take)

    async def completion(self) -> Completion:
        """Wait for the end; the first answer, with the others beside it if there are more."""
        try:
            async for _ in self:
                pass
        except asyncio.CancelledError:
            self.close()
            raise
        assert self._mailbox.request
        return self._mailbox.request.completion()

    def close(self) -> None:
        """Abort the request, if it still runs; its memory is free before the next step."""
        self._llm._drop(self._mailbox)

    def __del__(self) -> None:
        self.close()


class AsyncLLM:
    """A loaded model for `async` code. Use it in `async with`, or call `close`."""

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        quantization: str | None = None,
        progress: Any = None,
        llm: LLM | None = None,  # a loaded one to take over, which nobody else may use from then on
        pause_s: float = 0.0,  # for which readers wait after a chunk, to get what comes meanwhile as one
    ):
        self.llm = llm or LLM(model, config=config, quantization=quantization, progress=progress)
        self._mailboxes: dict[int, Mailbox] = {}  # by request; only the engine's thread touches it
        self._lock = threading.Lock()
        self._pause_s = pause_s
        self._rounds: dict[Loop, Rounds] = {}
        self._orders: list[Callable[[], None]] = []
        self._outcomes: dict[Loop, list[Outcome]] = {}  # of orders that have been run; only the thread touches it
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="tahr-engine", daemon=True)
        self._thread.start()

    # ---- requests ---------------------------------------------------------------------------------------------

    async def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, reply: bool = False, whole: bool = False
    ) -> Stream:
        """Queue a prompt; what is wrong with it is raised here, before anything is computed.

        A `reply` is a text of its own, anything else continues the prompt's. A stream that is wanted `whole` gives
        each answer as one chunk, when all are over.
        """
        tokens = await asyncio.to_thread(self.llm.tokenizer.encode, prompt) if isinstance(prompt, str) else prompt
        return await self._submit(tokens, params, reply, whole)

    async def submit_chat(
        self, messages: ListOf[Message], params: SamplingParams | None = None, **variables: Any
    ) -> Stream:
        """Queue a conversation; `variables` reach the chat template."""
        tokens = await asyncio.to_thread(self.llm.encode_chat, messages, **variables)
        return await self._submit(tokens, params, reply=True)

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Chunk]:
        """Continue a prompt piece by piece; leaving the loop stops the request."""
        stream = await self.submit(prompt, params)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.close()

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Continue a prompt; cancelling the task stops the request."""
        return await (await self.submit(prompt, params, whole=True)).completion()

    async def chat(
        self, messages: ListOf[Message], params: SamplingParams | None = None, **variables: Any
    ) -> Completion:
        """Answer a conversation; cancelling the task stops the request."""
        return await (await self.submit_chat(messages, params, **variables)).completion()

    async def embed(self, texts: Texts, pooling: Pooling | str = Pooling.LAST) -> Floats:
        """A text as a vector of length 1, or several as the rows of an array; replies wait meanwhile."""
        return await self._ask(lambda: self.llm.embed(texts, pooling))

    async def score(self, prompt: str, continuation: str) -> Score:
        """How likely a continuation of the prompt is."""
        joined = await asyncio.to_thread(ScoringPrompt.join, self.llm.tokenizer, prompt, continuation)
        return joined.score((await self.generate(joined.tokens, SCORING)).prompt_logprobs)

    async def abort(self, request_id: int) -> None:
        """Stop a request by its id; its reader gets a last chunk that says so. Does nothing if it is over."""
        await self._ask(lambda: self._abort(request_id))

    def stats(self) -> StatsSnapshot:
        """The engine's counters at this moment."""
        return self.llm.stats()

    @property
    def alive(self) -> bool:
        """Whether requests still get tokens."""
        return self._thread.is_alive() and not self._closing

    async def close(self) -> None:
        """Stop everything, and wait for the thread to end. Readers get their last chunks."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("An AsyncLLM cannot be pickled: make one in each process, from the same name.")

    # ---- the loop's side --------------------------------------------------------------------------------------

    async def _submit(
        self, tokens: list[int], params: SamplingParams | None, reply: bool = False, whole: bool = False
    ) -> Stream:
        mailbox = Mailbox(self._rounds_of(asyncio.get_running_loop()), whole)
        try:
            await self._ask(lambda: self._open(mailbox, tokens, params, reply))
        except asyncio.CancelledError:
            self._drop(mailbox)
            raise
        return Stream(self, mailbox)

    def _rounds_of(self, loop: Loop) -> Rounds:
        with self._lock:
            if loop not in self._rounds:
                self._rounds = {each: rounds for each, rounds in self._rounds.items() if not each.is_closed()}
                self._rounds[loop] = Rounds(loop, self._lock, self._pause_s)
            return self._rounds[loop]

    def _ask(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Have something done between two steps."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def order() -> None:
            if future.cancelled():
                return
            outcomes = self._outcomes.setdefault(loop, [])
            try:
                outcomes.append((future, work(), None))
            except Exception as error:
                outcomes.append((future, None, error))

        if not self._order(order):
            raise GenerateError("The engine is closed: make a new AsyncLLM.")
        return future

    def _order(self, order: Callable[[], None]) -> bool:
        """Whether it will be done: a closed engine takes no orders."""
        with self._wake:
            if not self._closing:
                self._orders.append(order)
                self._wake.notify()
            return not self._closing

    def _drop(self, mailbox: Mailbox) -> None:
        """Nobody reads this any more."""
        if not (mailbox.request and mailbox.request.over):
            self._order(lambda: self._abort(mailbox.request.id) if mailbox.request else None)

    # ---- the engine's thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Orders, a step, news; again, until closed."""
        while self._run_orders():
            try:
                self._step()
            except Exception as error:  # an engine contains what requests do wrong, so this is a fault of its own
                self._fail_all(error)
        for request_id in list(self._mailboxes):
            self._abort(request_id)

    def _run_orders(self) -> bool:
        """Wait until there is something to do; False when closing."""
        with self._wake:
            while not (self._orders or self._closing or self.llm.engine.busy):
                self._wake.wait()
            orders, self._orders = self._orders, []
            closing = self._closing
        for order in orders:
            order()
        outcomes, self._outcomes = self._outcomes, {}
        for loop, each in outcomes.items():
            with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(settle, each)
        return not closing

    def _step(self) -> None:
        events = self.llm.engine.step()
        with self._lock:
            heard = self.llm.spread(events)
            boxes = [self._mailboxes[request.id] for request in heard if request.id in self._mailboxes]
        for request in heard:
            if request.over:
                self._forget(request)
        self._call(boxes)

    def _open(self, mailbox: Mailbox, tokens: list[int], params: SamplingParams | None, reply: bool) -> None:
        mailbox.request = self.llm.submit(tokens, params, reply=reply)
        self._mailboxes[mailbox.request.id] = mailbox

    def _abort(self, request_id: int, error: TahrError | None = None) -> None:
        mailbox = self._mailboxes.get(request_id)
        if mailbox and mailbox.request:
            self._forget(mailbox.request, error)
            self._call([mailbox])

    def _fail_all(self, error: Exception) -> None:
        """Nobody shall wait for what will not come; the next request finds an empty engine."""
        failure = GenerateError(f"The engine failed: {error!r}. Please report this.")
        failure.__cause__ = error
        for request_id in list(self._mailboxes):
            self._abort(request_id, failure)

    def _forget(self, request: Request, error: TahrError | None = None) -> None:
        with self._lock:
            self.llm.forget(request, error)
        self._mailboxes.pop(request.id, None)

    def _call(self, mailboxes: ListOf[Mailbox]) -> None:
        """Tell the readers of these, in each of their loops (there is one, as a rule)."""
        for rounds in {box.rounds for box in mailboxes}:
            boxes = [box for box in mailboxes if box.rounds is rounds]
            if not rounds.call(boxes):  # the loop has been closed, and its readers with it
                for request in [box.request for box in boxes if box.request]:
                    self._forget(request)


def settle(outcomes: ListOf[Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue  # nobody waits for it any more
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)

"""The grammars that requests of event loops wait for, each compiled on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from tahr.config import SamplingParams
from tahr.errors import GrammarBusy
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.state import GrammarState

MAX_COMPILING = 64  # grammars at once, those that wait for a worker included


class Compiling:
    """Compiles for tasks; one that is cancelled takes what is computed for it along."""

    def __init__(self, compiler: GrammarCompiler):
        self._compiler = compiler
        self._n = 0

    async def state(self, params: SamplingParams) -> GrammarState | None:
        """The beginning of a request's grammar, if it has one."""
        grammar = params.grammar
        after = params.grammar_after
        if grammar is None or (state := self._compiler.state_at_once(grammar, after)):
            return state if grammar else None
        if self._n >= MAX_COMPILING:
            raise GrammarBusy(f"{MAX_COMPILING} grammars are waiting to be compiled: try again in a moment.")
        job = self._compiler.new_job()
        self._n += 1
        try:
            return await on_daemon_thread(lambda: self._compiler.state(grammar, after, job))
        except asyncio.CancelledError:
            job.end()
            raise
        finally:
            self._n -= 1


async def on_daemon_thread(work: Callable[[], GrammarState]) -> GrammarState:
    """Run `work` on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[GrammarState] = loop.create_future()

    def settle(state: GrammarState | None, error: Exception | None) -> None:
        if not future.done():  # nobody waits any more
            future.set_exception(error) if error else future.set_result(state)  # type: ignore[arg-type]

    def run() -> None:
        outcome: tuple[GrammarState | None, Exception | None]
        try:
            outcome = work(), None
        except Exception as error:
            outcome = None, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="tahr-grammar", daemon=True).start()
    return await future

"""Who submits requests to an engine, steps it and aborts them, for all that use one."""

import threading
from collections.abc import Callable

from tahr.engine.engine import Engine, Event
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import GenerateError, TahrError
from tahr.generation.outputs import Request
from tahr.grammar.state import GrammarState


class Driver:
    """Runs an engine. Nobody else calls its `step`."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.lock = threading.RLock()  # guards the engine and the requests, where several threads drive
        self.requests: dict[int, Request] = {}  # keys are the ids of their sequences

    def submit(self, resolved: ResolvedRequest, grammar: GrammarState | None = None) -> Request:
        """Queue a request; its choices grow with every step, until `abort`."""
        with self.lock:
            request = Request(self.engine.submit(resolved, grammar))
            self.requests.update(dict.fromkeys(request.choices, request))
        return request

    def step(self) -> list[Event]:
        """One step of the engine, and what it brought each sequence."""
        return self.engine.step()

    def run(self, until: Callable[[], bool], on_events: Callable[[list[Event]], None] | None = None) -> None:
        """Step until a condition holds; `on_events` gets what each step brought."""
        while not until():
            events = self.step()
            if on_events:
                on_events(events)

    def advance(self) -> list[Request]:
        """One step whose events go to their requests, for threads that drive together; what `dispatch` returns.

        A step that breaks off, by an interrupt perhaps, takes what it brought with it. Only the thread that made it
        knows, and others must not wait for it: all requests fail.
        """
        with self.lock:
            try:
                return self.dispatch(self.step())
            except BaseException as error:
                self._fail_all(GenerateError(f"Another thread's step of the engine broke off ({error!r}): ask again."))
                raise

    def dispatch(self, events: list[Event]) -> list[Request]:
        """Give the events of a step to their requests.

        Returns the requests whose readers must be woken: first new output since their last chunk, or a finished choice.
        """
        requests = self.requests
        advanced: dict[Request, None] = {}
        for event in events:
            request = requests.get(event[0].id)
            if request is not None and request.add(event):
                advanced[request] = None
        return list(advanced)

    def abort(self, request: Request, error: TahrError | None = None) -> None:
        """Stop a request if it still runs (with an error, it has failed), and free what it holds."""
        with self.lock:
            for seq in request.sequences:
                self.engine.abort(seq, error)
                self.requests.pop(seq.id, None)
            request.update_finished()

    def end_early(self, request: Request) -> None:
        """End a request with what it has; the text that was held back is its last."""
        with self.lock:
            events = [self.engine.end_early(seq) for seq in request.sequences if not seq.done]
            self.dispatch(events)
            request.update_finished()

    def close(self) -> None:
        """Stop whatever still runs."""
        for request in list(self.requests.values()):
            self.abort(request)

    def _fail_all(self, failure: GenerateError) -> None:
        scheduler = self.engine.scheduler
        requests = set(self.requests.values())
        waiting = [seq for queue in scheduler.queues.values() for seq in queue.members]
        for seq in [*scheduler.running, *waiting]:
            self.engine.abort(seq, failure)
        for request in requests:
            request.fail(failure)

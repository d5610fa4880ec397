"""Works on the batches of a server, below everything that clients wait for."""

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from tahr.errors import TahrError
from tahr.regular_file import open_regular
from tahr.server.batches.lines import ENVELOPE_BYTES, BatchRequest, InputLine, LineError, custom_id_of, read_lines
from tahr.server.batches.results import BatchFault, BatchResult, ResultFiles, result_id
from tahr.server.batches.runner import Application, BatchRun, Exchange
from tahr.server.batches.validation import validated
from tahr.server.files.bodies import RESULTS
from tahr.server.http.errors import HttpError
from tahr.server.http.request import OnBehalf
from tahr.server.http.threads import to_the_end
from tahr.server.kept.batch_store import BatchError, BatchRecord, BatchStore
from tahr.server.kept.file_store import FileStore
from tahr.server.models.registry import Phase
from tahr.server.state.admission import check_model
from tahr.server.state.state import ServerState

log = logging.getLogger("tahr.server")

AT_ONCE = 2  # batches that are worked on at a time, of different keys if there are any
LEAST_AT_ONCE = 4  # requests of a batch, also where no model is loaded yet
RETRY_S = 10.0  # time between attempts where the disk or an engine fails
READY_S = 0.2  # time between looks whether the models are loaded
MakeApp = Callable[[ServerState], Application]
LOOK_S = 60.0  # time between looks for something to do that nobody has announced


class OutOfTokens(Exception):
    """A key has used its tokens of the day: its batches wait, and others take their turn."""


class ServedRun(BatchRun):
    """A run beside clients: they never wait for it, and it waits for them as long as it has to."""

    busy_s = math.inf
    owner = salt = ""

    def __init__(self, app: Application, state: ServerState, path: Path, files: ResultFiles):
        super().__init__(app, state, os.fdopen(open_regular(path), "rb"), files)

    @property
    def most_bytes(self) -> int:
        return self._state.settings.max_body_bytes + ENVELOPE_BYTES

    @property
    def n_at_once(self) -> int:
        return max(LEAST_AT_ONCE, super().n_at_once)

    async def _exchange(self, request: BatchRequest) -> Exchange:
        """The key counts as it is now: it may have been taken away, or have other limits than before."""
        account = self._state.keys.owner(self.owner)
        if account:
            self.on_behalf = OnBehalf(self.owner, self.salt, account)
            exchange = await super()._exchange(request)
        if account is None or exchange.status == 401:
            raise HttpError(
                401, "The key that made the batch is good no longer: make it with another.", code="key_revoked"
            )
        return exchange

    async def _next(self, lines: Iterator[InputLine]) -> tuple[InputLine, BatchRequest | LineError] | None:
        return await to_the_end(partial(self._read_next, lines))

    def close(self) -> None:
        self._requests.close()


class BatchService:
    """Begins batches, the oldest first, ends those that are cancelled or late, and goes on with those of earlier
    processes.
    """

    def __init__(self, state: ServerState, make_app: MakeApp, files: FileStore, store: BatchStore):
        self._state = state.for_batches()
        self._app = make_app(self._state)
        self._files = files
        self._store = store
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}  # owners of batches that are worked on
        self._is_ending = False

    async def run(self) -> None:
        """Work until cancelled; what is not finished is left to the next process."""
        try:
            while True:
                self._store.changed.clear()
                self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._store.changed.wait()
        finally:
            self._is_ending = True
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._state.text_pool.close()

    def _look(self) -> None:
        for batch in self._store.unfinished:
            task = self._tasks.get(batch.id)
            if task and batch.status == "cancelling" and not task.cancelling():
                task.cancel()
        while len(self._tasks) < AT_ONCE and (waiting := self._next()):
            self._begin(waiting)
        for batch in self._store.unfinished:  # one that was not begun has nothing to stop
            if batch.status == "cancelling" and batch.id not in self._tasks:
                self._begin(batch)

    def _next(self) -> BatchRecord | None:
        """The oldest that waits, of a key that has the fewest at work."""
        n_running = Counter(self._owners.values())
        waiting = [each for each in self._store.unfinished if each.id not in self._tasks and not self._rests(each)]
        return min(waiting, key=lambda each: n_running[each.owner], default=None)

    def _rests(self, batch: BatchRecord) -> bool:
        """Whether none of its lines could be answered today."""
        account = self._state.keys.owner(batch.owner)
        is_late = batch.expires_at <= self._store.clock()
        return account is not None and not is_late and self._state.admission.ledger.is_used_up(account)

    def _begin(self, batch: BatchRecord) -> None:
        task = self._tasks[batch.id] = asyncio.create_task(self._work(batch))
        self._owners[batch.id] = batch.owner
        task.add_done_callback(lambda _: self._ended(batch))

    def _ended(self, batch: BatchRecord) -> None:
        del self._tasks[batch.id], self._owners[batch.id]
        self._store.changed.set()

    # ---- one batch ----------------------------------------------------------------------------------------------

    async def _work(self, batch: BatchRecord) -> None:
        """Bring a batch to its end. Where the disk or an engine fails, it is tried again and again."""
        is_logged = False
        while not batch.is_finished:
            try:
                await self._advance(batch)
            except asyncio.CancelledError:
                if self._is_ending or batch.status != "cancelling":
                    raise
            except OutOfTokens:
                log.info("the batch %s waits: its key %s has used its tokens of today", batch.id, batch.owner)
                return
            except (OSError, TahrError, HttpError) as error:
                if not is_logged:
                    log.error("the batch %s cannot go on and is tried again: %s", batch.id, reason_of(error))
                is_logged = True
                await self._pause(batch)
            except Exception:
                log.exception("the batch %s has failed", batch.id)
                with suppress(OSError):
                    self._fail(batch, [BatchError("server_error", "The server failed: its log says where.")])
                await self._pause(batch)

    async def _pause(self, batch: BatchRecord) -> None:
        if batch.is_finished:
            return
        try:
            await asyncio.sleep(RETRY_S)
        except asyncio.CancelledError:
            if self._is_ending or batch.status != "cancelling":
                raise

    async def _advance(self, batch: BatchRecord) -> None:
        """The next part of a batch, by its status."""
        while self._state.models.phase is Phase.LOADING:
            await asyncio.sleep(READY_S)
        path = self._files.data_path(batch.terms.input_file_id)
        if batch.status in ("validating", "in_progress") and not path.exists():
            self._fail(batch, [BatchError("file_lost", f"The file {batch.terms.input_file_id} is no longer there.")])
        elif batch.status == "validating":
            await self._validate(batch)
        elif batch.status == "in_progress":
            await self._run_lines(batch)
        elif batch.status == "finalizing":
            self._publish(batch, "completed")
        else:
            self._publish(batch, "cancelled")

    async def _validate(self, batch: BatchRecord) -> None:
        most_bytes = self._state.settings.max_body_bytes + ENVELOPE_BYTES
        path = self._files.data_path(batch.terms.input_file_id)
        check = partial(self._check_model, batch.owner)
        found = await to_the_end(partial(validated, path, batch.terms.endpoint, most_bytes, check))
        if batch.status != "validating":
            return
        if found.errors:
            self._fail(batch, found.errors)
            return
        batch.progress.n_lines = found.n_lines
        self._store.enter(batch, "in_progress")

    def _check_model(self, owner: str, name: str | None) -> None:
        model, _ = self._state.models.find_adapted(name)
        if account := self._state.keys.owner(owner):
            check_model(account, model)

    async def _run_lines(self, batch: BatchRecord) -> None:
        """Answer what has no result yet, within the completion window."""
        left_s = batch.expires_at - self._store.clock()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._run(batch)
        except TimeoutError:
            await to_the_end(partial(self._write_expired, batch))
            self._publish(batch, "expired")
        except HttpError as error:  # its results take too much
            self._fail(batch, [BatchError(error.code or "failed", error.message)])
        else:
            if batch.status == "in_progress":  # nobody has cancelled it in this moment
                self._store.enter(batch, "finalizing")

    async def _run(self, batch: BatchRecord) -> None:
        path = self._files.data_path(batch.terms.input_file_id)
        with closing(await to_the_end(partial(self._results, batch), ResultFiles.close)) as results:
            self._count(batch, results)
            with closing(ServedRun(self._app, self._state, path, results)) as run:
                run.owner, run.salt = batch.owner, batch.salt
                await run.run(partial(self._count, batch, results))
                if run.is_out_of_tokens:
                    raise OutOfTokens

    def _results(self, batch: BatchRecord) -> ResultFiles:
        places = [self._files.data_path(id) for id in (batch.output_file_id, batch.error_file_id)]
        with os.fdopen(open_regular(self._files.data_path(batch.terms.input_file_id)), "rb") as requests:
            return ResultFiles(places[0], places[1], requests, 0o600)

    def _count(self, batch: BatchRecord, results: ResultFiles) -> None:
        progress = batch.progress
        progress.n_completed, progress.n_failed = results.n_replies, results.n_errors
        for id, n_bytes in zip((batch.output_file_id, batch.error_file_id), results.n_bytes, strict=True):
            self._files.result_grew(id, batch.owner, n_bytes)

    def _write_expired(self, batch: BatchRecord) -> None:
        """Say of each line without a result that its time is over."""
        fault = BatchFault("batch_expired", "The batch did not get so far within its completion window.")
        path = self._files.data_path(batch.terms.input_file_id)
        with closing(self._results(batch)) as results, os.fdopen(open_regular(path), "rb") as requests:
            for line in read_lines(requests, self._state.settings.max_body_bytes + ENVELOPE_BYTES):
                if not results.is_done(line):
                    results.write(BatchResult(result_id(line), custom_id_of(line.data), error=fault))
            batch.progress.n_failed = results.n_errors

    # ---- its end ------------------------------------------------------------------------------------------------

    def _fail(self, batch: BatchRecord, errors: list[BatchError]) -> None:
        batch.errors = errors
        self._publish(batch, "failed")

    def _publish(self, batch: BatchRecord, status: str) -> None:
        """The batch has ended, and its results are files as others are."""
        batch.progress.has_output = self._publish_file(batch, batch.output_file_id, "output")
        batch.progress.has_errors = self._publish_file(batch, batch.error_file_id, "error")
        self._store.enter(batch, status)

    def _publish_file(self, batch: BatchRecord, id: str, what: str) -> bool:
        """Whether there is anything in it."""
        path = self._files.data_path(id)
        n_bytes = path.stat().st_size if path.exists() else 0
        if not n_bytes:
            self._files.remove_result(id)
            return False
        name = f"{batch.id}_{what}.jsonl"
        self._files.end_result(self._files.record(id, batch.owner, name, RESULTS, n_bytes, batch.terms.output_age_s))
        return True


def reason_of(error: Exception) -> str:
    """Messages of other libraries may quote anything."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__


async def work_on_batches(state: ServerState, make_app: MakeApp) -> None:
    """Work on the batches of a server that keeps any, until cancelled."""
    if not (state.files and state.batches):
        return
    try:
        await BatchService(state, make_app, state.files, state.batches).run()
    except Exception:
        log.exception("batches have stopped: start the server again to go on with them")

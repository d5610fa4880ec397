"""A line per step about what the scheduler decided, for people who want to know why a request waited.

Off unless an engine is given one; then it costs one write per step, and the file never grows beyond a bound.
"""

import json
import logging
import threading
from collections.abc import Sequence as ListOf
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.engine.scheduling.scheduler import Scheduler
    from tahr.engine.scheduling.work import StepWork
    from tahr.engine.sequences.sequence import Sequence

MAX_BYTES = 64 * 2**20
MAX_IDS = 64  # of one kind in one line

Facts = dict[str, Any]

log = logging.getLogger("tahr.engine")


class StepLog(Protocol):
    """What an engine tells of a step that has run."""

    def step(self, model: str, facts: Facts, ended: "ListOf[Sequence]") -> None: ...
    def close(self) -> None: ...


class Watch:
    """Finds out what a step decided by looking at the scheduler before and after it."""

    def __init__(self, model: str, logs: ListOf[StepLog]):
        self._model = model
        self._logs = logs
        self._running: dict[int, Sequence] = {}
        self._n_preempted = 0

    def step(self, scheduler: "Scheduler", work: "StepWork", began: float) -> None:
        """A step has been decided on and run."""
        running = {seq.id: seq for seq in scheduler.running} | {seq.id: seq for seq in work.sequences}
        gone = [seq for id, seq in self._running.items() if id not in running or seq.done]
        most = scheduler.limits.n_decode_tokens
        facts = {
            "model": self._model,
            "step": scheduler.n_steps,
            "began_s": round(began, 6),
            "seconds": round(perf_counter() - began, 6),
            "admitted": [seq.id for seq in running.values() if seq.id not in self._running][:MAX_IDS],
            "preempted": [seq.id for seq in gone if not seq.done][:MAX_IDS],
            "n_preempted": scheduler.n_preempted - self._n_preempted,
            "decoding": [item.sequence.id for item in work if item.n_tokens <= most and item.samples][:MAX_IDS],
            "chunks": [[i.sequence.id, i.n_tokens] for i in work if i.n_tokens > most or not i.samples][:MAX_IDS],
            "n_tokens": sum(work.n_tokens),
            "running": len(scheduler.running),
            "waiting": scheduler.n_waiting,
            "pages_used": sum(pool.n_used for pool in scheduler.pools),
            "pages_total": sum(pool.n_pages for pool in scheduler.pools),
        }
        ended = {seq.id: seq for seq in (*gone, *running.values()) if seq.done}
        self._running = {id: seq for id, seq in running.items() if not seq.done}
        self._n_preempted = scheduler.n_preempted
        for log in self._logs:
            log.step(self._model, facts, list(ended.values()))


class BoundedFile:
    """Lines for a file that never holds more than `max_bytes`; what comes later is left out, and said so once."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        try:
            self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}): name another file.") from error
        self._left = max_bytes
        self._lock = threading.Lock()  # several models may share it

    def write(self, line: str, full: str) -> None:
        with self._lock:
            if self._left <= 0 or self._file.closed:
                return
            self._left -= len(line) + 1
            try:
                self._file.write((line if self._left > 0 else full) + "\n")
            except OSError as error:  # a full disk, say: requests go on
                self._left = 0
                log.error("A trace ends here (%s); requests go on.", error.strerror)

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()


class DecisionLog:
    """One JSON object per step and line."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        self._file = BoundedFile(path, max_bytes)

    def step(self, model: str, facts: Facts, ended: "ListOf[Sequence]") -> None:
        over = {"ended": {seq.id: seq.finish_reason for seq in ended[:MAX_IDS]}} if ended else {}
        self._file.write(json.dumps(facts | over), full='{"full": true}')

    def close(self) -> None:
        self._file.close()


class ChromeTrace:
    """The same as a picture: steps and the parts of requests, in the format of chrome://tracing and Perfetto."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        self._file = BoundedFile(path, max_bytes)
        self._file.write("[", full="[")  # the format allows that the end is missing

    def step(self, model: str, facts: Facts, ended: "ListOf[Sequence]") -> None:
        args = {name: facts[name] for name in ("step", "n_tokens", "running", "waiting", "pages_used", "n_preempted")}
        self._event("step", model, 0, facts["began_s"], facts["seconds"], args)
        for seq in ended:
            for name, begun, over in seq.stats.parts():
                self._event(name, model, seq.id, begun, over - begun, {"finish_reason": seq.finish_reason})

    def _event(self, name: str, model: str, row: int, began_s: float, seconds: float, args: Facts) -> None:
        event = {"name": name, "ph": "X", "pid": model, "tid": row, "ts": began_s * 1e6, "dur": seconds * 1e6}
        self._file.write(json.dumps(event | {"args": args}) + ",", full="{}]")

    def close(self) -> None:
        self._file.write("{}]", full="{}]")
        self._file.close()

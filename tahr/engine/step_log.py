"""A line per step about what the scheduler decided, for people who want to know why a request waited.

Off unless an engine is given one; then it costs one write per step, and the file never grows beyond a bound.
"""

from collections.abc import Sequence as ListOf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tahr.engine.scheduling.scheduler import Scheduler
    from tahr.engine.scheduling.work import StepWork
    from tahr.engine.sequences.sequence import Sequence


MAX_IDS = 64  # ids of one kind in one line

Facts = dict[str, Any]


class StepLog(Protocol):
    """Interface of an engine's report of a step that has run."""

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

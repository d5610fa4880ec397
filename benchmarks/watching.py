"""What it costs to watch a server: microseconds per step and per request of each kind of trace.

python benchmarks/watching.py
"""

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

from tahr.config import NEUTRAL_SAMPLING, SamplingParams
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.sequences.stats import RequestStats
from tahr.engine.step_log import Watch
from tahr.engine.step_traces import ChromeTrace, DecisionLog
from tahr.errors import ConfigError
from tahr.server.http.records import GenerationRecord, RequestRecord
from tahr.server.observe.tracing import Tracer

N_SEQUENCES = 16
UNBOUNDED = 2**40


def best_us(work: Callable[[], Any], times: int = 1000, rounds: int = 5) -> float:
    """Microseconds of one call in the best round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - began)
    return best / times * 1e6


def step_us(watch: Watch) -> float:
    sequences = [Sequence([1, 2, 3], SamplingParams(), ReplyState(10)) for _ in range(N_SEQUENCES)]
    work = StepWork()
    for each in sequences:
        work.add_last(each, 2)
    pools, limits = [Thing(n_used=3, n_pages=9)], Thing(n_decode_tokens=1)
    scheduler: Any = Thing(running=sequences, n_steps=1, n_preempted=0, n_waiting=0, pools=pools, limits=limits)
    return best_us(lambda: watch.step(scheduler, work, 0.0))


def span_us() -> float:
    logging.disable(logging.CRITICAL)  # nobody listens there
    tracer = Tracer("http://127.0.0.1:9", "127.0.0.1")
    stats = [RequestStats(10, 5, 0, 0, 1.0, 2.0, 3.0, 4.0)]
    generation = GenerationRecord(
        "x", "/v1/completions", "m", "cpu", 99, NEUTRAL_SAMPLING, [[1] * 10], False, stats=stats
    )
    record = RequestRecord("POST", "/v1/completions", {}, 1.0, 2.0, status=200, generation=generation)
    return best_us(lambda: tracer.request_finished(record), 200, 3)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, log in (("decision trace", DecisionLog), ("chrome trace", ChromeTrace)):
            watch = Watch("m", [log(Path(folder) / name, UNBOUNDED)])
            print(f"{name}: {step_us(watch):.0f} us per step of {N_SEQUENCES} sequences")
    try:
        print(f"span with three parts: {span_us():.0f} us per request")
    except ConfigError as error:
        print(error)


if __name__ == "__main__":
    main()

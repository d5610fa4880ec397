"""Joules per token on a GPU: Qwen3 shapes with random weights, prompts and decoding apart.

usage: benchmarks/gpu_energy.py [0.6B] [8B] [8B:fp8] ... [--requests=1,32,256]

Each number of equal requests (256 tokens in, 128 out) is served again and again for some seconds, first for the first
token alone, then in full: what the second takes more is decoding. Beside it stands what a server's meter, which reads
the same counter while the engine works, has shared out to both.
"""

import gc
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from gpu_cells import N_IN, N_OUT, PLAIN, SHAPES, make, make_engine, option, serve, warm_up
from tahr.backends.api import EnergyCounter
from tahr.engine.energy import EnergyMeter
from tahr.engine.engine import Engine

SIZES = "1,32,256"
WINDOW_S = 2.5  # of each figure: counters move ten times a second
SETTLE_S = 0.5


class Window(NamedTuple):
    """What some runs of a load took, and what the meter shared out to prompts and to decoding meanwhile."""

    n_runs: int
    seconds: float
    joules: float
    prefill_j: float
    decode_j: float


def window(run: Callable[[], object], counter: EnergyCounter, meter: EnergyMeter) -> Window:
    time.sleep(SETTLE_S)  # what the load before took is counted by then
    before, used = joules_of(counter), shares_of(meter)
    began = time.perf_counter()
    n_runs = 0
    while n_runs < 2 or time.perf_counter() - began < WINDOW_S:
        run()
        n_runs += 1
    seconds, joules = time.perf_counter() - began, joules_of(counter) - before
    time.sleep(SETTLE_S)
    now = shares_of(meter)
    return Window(n_runs, seconds, joules, now[0] - used[0], now[1] - used[1])


def joules_of(counter: EnergyCounter) -> float:
    joules = counter.joules()
    if joules is None:
        raise SystemExit(f"{counter.name} tells nothing any more.")
    return joules


def shares_of(meter: EnergyMeter) -> tuple[float, float]:
    use = meter.use()
    return (use.prefill_j, use.decode_j) if use else (0.0, 0.0)


def measure(engine: Engine, n: int, counter: EnergyCounter, meter: EnergyMeter) -> None:
    """A row: millijoules of a prompt token and of an output token, in both ways, and the watts."""
    prompts, whole = [(N_IN, 1)] * n, [(N_IN, N_OUT)] * n
    for lengths in (prompts, whole):
        warm_up(engine, lengths, PLAIN)
    first = window(lambda: serve(engine, prompts, PLAIN), counter, meter)
    both = window(lambda: serve(engine, whole, PLAIN), counter, meter)
    prompt_j = first.joules / first.n_runs
    decode_j = both.joules / both.n_runs - prompt_j
    n_decoded = n * (N_OUT - 1)
    rate = n * N_OUT * both.n_runs / both.seconds
    print(
        f"  {n:>4} requests  {1e3 * prompt_j / (n * N_IN):8.2f} mJ a prompt token"
        f"  {1e3 * decode_j / n_decoded:9.2f} mJ an output token   {first.joules / first.seconds:4.0f} W,"
        f" {both.joules / both.seconds:4.0f} W   {rate:8,.0f} tokens/s   meter:"
        f" {1e3 * both.prefill_j / (n * N_IN * both.n_runs):.2f},"
        f" {1e3 * both.decode_j / (n_decoded * both.n_runs):.2f}",
        flush=True,
    )


def main() -> None:
    """Every shape asked for."""
    names = [name for name in sys.argv[1:] if name.partition(":")[0] in SHAPES] or ["0.6B", "8B"]
    for name in names:
        _, backend, decoder, _ = make(name)
        engine = make_engine(decoder, backend)
        counter, meter = backend.energy_counter(), engine.measure_energy()
        if counter is None or meter is None:
            raise SystemExit("No counter of energy can be read here: NVML is missing, or the card has none.")
        print(f"Qwen3-{name} shape on {torch.cuda.get_device_name()}, {N_IN} tokens in, {N_OUT} out:", flush=True)
        for n in [int(each) for each in (option("requests") or SIZES).split(",")]:
            measure(engine, n, counter, meter)
        meter.close()
        del engine, decoder, backend, meter
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""How long a model on a GPU takes to sleep and to wake: a Qwen3 shape with random weights.

usage: benchmarks/sleeping.py [8B] [0.6B] ...

The first sleep locks the host's copy, later ones find it locked. "first token" is that of a prompt right after the
wake, whose steps run op by op until their graphs are captured anew.
"""

import sys
import time
from dataclasses import replace

import torch

from gpu_cells import GREEDY, SHAPES, RandomBackend, make_decoder, make_engine, serve
from silent import Silent
from tahr.engine import sleeping
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest


def measure(name: str) -> None:
    backend = RandomBackend()
    decoder, _ = make_decoder(SHAPES[name], backend)
    engine = make_engine(decoder, backend, n_seqs=32)
    for _ in range(2):
        serve(engine, [(256, 8)], GREEDY)
    wanted = tokens_of(engine)
    for number in (1, 2):
        began = time.perf_counter()
        n_bytes = sleeping.sleep(engine)
        slept_s = time.perf_counter() - began
        free, total = torch.cuda.mem_get_info()
        began = time.perf_counter()
        sleeping.wake(engine)
        woke_s = time.perf_counter() - began
        first_s = serve(engine, [(256, 1)], GREEDY).first_s
        same = "the same text" if tokens_of(engine) == wanted else "ANOTHER TEXT"
        print(
            f"{name} sleep {number}: {n_bytes / 1e9:.1f} GB given back in {slept_s:.2f} s, {free / total:.0%} of the "
            f"card free; awake after {woke_s:.3f} s, first token {first_s * 1e3:.0f} ms later, {same}",
            flush=True,
        )


def tokens_of(engine: Engine) -> list[int]:
    """What the model says to a prompt."""
    found: list[int] = []
    engine.submit(ResolvedRequest(list(range(100, 200)), replace(GREEDY, max_tokens=16), Silent))
    while engine.busy:
        found += [token for _, _, tokens in engine.step() for token in tokens]
    return found


if __name__ == "__main__":
    for shape in sys.argv[1:] or ["8B"]:
        measure(shape)

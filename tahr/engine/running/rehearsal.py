"""Steps with an adapter that no request uses, so that the kernels of adapters are there before the first one comes.

Kernels are compiled and loaded when they are first launched, which takes hundreds of milliseconds: all requests would
wait for the first one that uses an adapter.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from tahr.backends.api import LORA_TILE, LinearShape, LoraFactors, StepLimits
from tahr.engine.running.runner import Runner
from tahr.engine.running.warming import first_prepared
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_TOKENS = (1, 8, 32, 64, 256)  # of a step: more rows meet matrices in other kernels
SLOT = 1


def rehearsal(runner: Runner) -> Iterator[bool]:
    """Each turn runs a step of one more size, if one is prepared, and says True; nothing may be in flight then.

    The bank is its own, so that nothing stays of the adapter. It has rows behind matrices if no other one has them yet.
    """
    linears = one_of_each_kind(runner.decoder.linears)
    if not linears or runner.decoder.encoding or not runner.backend.wants_warming():
        return
    bank = runner.backend.lora_bank(runner.decoder.linears, runner.step.limits)
    bank.put(SLOT, bank.prepare({name: zeros(shape) for name, shape in linears.items()}))
    for rows in bank.rows.values():  # a tile that no row of the step belongs to
        rows.tiles[0, 0], rows.n_tiles[0] = (SLOT, 0, 0), 1
    bank.send()
    buckets = dict.fromkeys(bucket for n in N_TOKENS for bucket in buckets_of(runner, n))
    plans = [runner.rehearsed(bucket, bank) for bucket in buckets]
    while plans:
        if plan := first_prepared(runner.backend, plans):
            runner.run_empty(plan)
            plans.remove(plan)
        yield True


def one_of_each_kind(linears: Mapping[str, LinearShape]) -> dict[str, LinearShape]:
    """The linears of the first and the last layer: of the last one only some rows go on, and those between have the
    kernels of the first."""
    names = [name for name in linears if re.search(r"\d", name)]
    kinds = [{re.sub(r"\d+", "", name): name for name in order} for order in (names, reversed(names))]
    return {name: linears[name] for kind in kinds for name in kind.values()}


def zeros(shape: LinearShape) -> LoraFactors:
    """Factors of the smallest rank that kernels know."""
    sizes = {"a": (LORA_TILE, shape.n_cols), "b": (shape.n_rows, LORA_TILE)}
    a, b = (
        HostTensor(name, FORMATS["F32"], size, np.zeros(4 * size[0] * size[1], np.uint8))
        for name, size in sizes.items()
    )
    return LoraFactors(a, b, 1.0)


def buckets_of(runner: Runner, n_tokens: int) -> list[StepLimits]:
    """The smallest buckets for so many tokens: of sequences that decode, and of any kind with the most sequences."""
    fits = [bucket for bucket in runner.buckets if bucket.n_tokens >= n_tokens]
    decoding = [bucket for bucket in fits if bucket.n_tokens_per_seq == 1]
    others = [bucket for bucket in fits if bucket.n_tokens_per_seq >= bucket.n_tokens > 1]
    return [*decoding[:1], *[bucket for bucket in others if bucket.n_tokens == others[0].n_tokens][-1:]]

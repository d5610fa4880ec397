"""Steps with an adapter that no request uses, so that the kernels of adapters are there before the first one comes.

Kernels are compiled and loaded when they are first launched, which takes hundreds of milliseconds: all requests would
wait for the first one that uses an adapter.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tahr.backends.api import LORA_TILE, Backend, LinearShape, LoraFactors, StepLimits
from tahr.executor.output import Output
from tahr.executor.plans import ExecutedDecoder
from tahr.executor.preparing import first_prepared, run_empty
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_TOKENS = (1, 8, 32, 64, 256)  # sizes of steps: more rows meet matrices in other kernels
SLOT = 1


def warmed_steps(backend: Backend, model: ExecutedDecoder) -> Iterator[bool]:
    """Each turn runs a step of one more size, if one is prepared, and says True; nothing may be in flight then.

    The bank is its own, so that nothing stays of the adapter. It has rows behind matrices if no other one has them yet.
    """
    decoder = model.decoder
    inputs = model.inputs
    linears = one_of_each_kind(decoder.linears)
    if not linears or decoder.encoding or not backend.wants_warming():
        return
    bank = backend.lora_bank(decoder.linears, inputs.limits)
    bank.put(SLOT, bank.prepare({name: zeros(shape) for name, shape in linears.items()}))
    for rows in bank.rows.values():  # a tile that no row of the step belongs to
        rows.tiles[0, 0] = SLOT, 0, 0
        rows.n_tiles[0] = 1
    bank.send()
    buckets = model.buckets[Output.LOGITS]
    wanted = dict.fromkeys(bucket for n in N_TOKENS for bucket in buckets_of(buckets, n))
    plans = [model.record(backend, (Output.LOGITS, buckets.index(bucket), 1, 0), bank) for bucket in wanted]
    while plans:
        if plan := first_prepared(backend, plans):
            run_empty(backend, inputs, plan)
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


def buckets_of(buckets: Sequence[StepLimits], n_tokens: int) -> list[StepLimits]:
    """The smallest buckets for so many tokens: of sequences that decode, and of any kind with the most sequences."""
    fits = [bucket for bucket in buckets if bucket.n_tokens >= n_tokens]
    decoding = [bucket for bucket in fits if bucket.n_tokens_per_seq == 1]
    others = [bucket for bucket in fits if bucket.n_tokens_per_seq >= bucket.n_tokens > 1]
    return [*decoding[:1], *[bucket for bucket in others if bucket.n_tokens == others[0].n_tokens][-1:]]

"""Ops on rows that are no embeddings, rope by several axes, and keys of another length: against the reference."""

from dataclasses import replace

import numpy as np
import pytest

from backends_here import AND_PLAIN, REFUSED_OPS, backend, kv_store
from op_steps import PAGE, rows, step_of
from tahr.backends.api import (
    AttentionSpec,
    Backend,
    Extras,
    KVShape,
    KVStore,
    LayerMemory,
    Rope,
    Rotation,
    StepInputs,
    Tensor,
)
from test_ops import OTHERS, Arrays, Case, compare

WIDTH = 24
N_SLOTS = 7
SPANS = [(0, 6), (4, 7)]
ROW_OF = [-1, 3, -1, 0, 6, 3, -1, 2, -1]


def step_with(be: Backend, extras: Extras, spans: list[tuple[int, int]] = SPANS) -> StepInputs:
    """A step that has arrays of `Extras`, and buffers of two widths."""
    plain = step_of(be, spans, [5, 0, 8], 10)
    step = be.step_inputs(replace(plain.limits, extras=int(extras)))
    for name in ("counts", "positions", "slot_mapping", "query_start", "seq_lens", "page_table", "logit_rows"):
        getattr(step, name)[...] = getattr(plain, name)
    return replace(step, rows=be.row_store(N_SLOTS, 3 * WIDTH), target_rows=be.row_store(N_SLOTS, 2 * WIDTH))


def reading(be: Backend, rng: np.random.Generator) -> StepInputs:
    """One whose slots hold something."""
    step = step_with(be, Extras.ROWS | Extras.TARGETS)
    assert step.rows
    be.write_rows(step.rows, range(N_SLOTS), rows(rng, N_SLOTS, 3 * WIDTH))
    step.row_of[: len(ROW_OF)] = ROW_OF
    return step


def read_rows(be: Backend, rng: np.random.Generator) -> Arrays:
    step = reading(be, rng)
    x = be.tensor(rows(rng, len(ROW_OF), WIDTH))
    found = [be.with_rows(x, step), be.with_rows(x, step, add=True, begin=WIDTH), be.take_rows(step, WIDTH, 2 * WIDTH)]
    return [be.read(y).copy() for y in found]


def written_rows(be: Backend, rng: np.random.Generator) -> Arrays:
    """Rows of tokens, then rows that were gathered, in other columns; a later write is not seen by an earlier read."""
    step = reading(be, rng)
    assert step.target_rows
    x = be.tensor(rows(rng, len(ROW_OF), WIDTH))
    step.row_target[: len(ROW_OF)] = [4, -1, 0, -1, -1, 2, 6, -1, 1]
    be.store_rows(x, step)
    first = be.read_rows(step.target_rows, range(N_SLOTS)).copy()
    step.row_target[:3] = 5, -1, 3
    be.store_rows(be.gather_rows(x, step), step, begin=WIDTH)
    be.write_rows(step.target_rows, [2, 0], rows(rng, 2, WIDTH))  # narrower: the other columns stay
    return [first, be.read_rows(step.target_rows, [6, 5, 3, 2, 0])]


def joined_rows(be: Backend, rng: np.random.Generator) -> Arrays:
    """Three neighbours as one row, which other ops read; the rows themselves stay."""
    step = step_with(be, Extras.ROWS)
    x = be.scale(be.tensor(rows(rng, len(ROW_OF), WIDTH)), 2.0)
    step.counts[1] = len(ROW_OF) // 3
    joined = be.join_rows(x, 3, step)
    return [be.read(each).copy() for each in (joined, be.scale(joined, 0.5), x)]


def turned(axes: tuple[int, ...]) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        step = step_with(be, Extras.ROPE)
        step.rope_positions[:, :9] = rng.integers(0, 500, (3, 9))
        freq = (10000.0 ** -(np.arange(8) / 8)).astype(np.float32)
        return [be.read(be.cos_sin(step, Rope(freq, scale=1.2, axes=axes)))]

    return Case(f"turned-{''.join(map(str, axes))}", run)


def crossed(dtype: str) -> Case:
    """Queries of texts look at the keys of other ones, whose lengths are those of another group."""

    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        kv, outer = crossing(be, rng, dtype)
        q = be.tensor(rows(rng, 9, 64))
        angles = be.cos_sin(outer, Rope(np.zeros(16, np.float32)))
        memory = LayerMemory(outer, kv, 1)
        ready = be.rope_and_cache([q], Rotation(angles, "halves"), memory)
        return [be.read(be.attention(ready, AttentionSpec(0.2, causal=False), memory))]

    return Case(f"crossed-{dtype}", run, 5e-6 if dtype == "f32" else 1e-3)


def crossing(be: Backend, rng: np.random.Generator, dtype: str) -> tuple[KVStore, StepInputs]:
    """A store whose second group holds 40 and 11 keys, and a step whose queries read them."""
    kv = kv_store(be, [KVShape(2, 32), KVShape(2, 32)], [32, 32], PAGE, dtype, groups=[[0], [1]])
    limits = replace(step_of(be, [(0, 40), (0, 11)], [0], 10).limits, n_groups=2)
    inner, outer = (be.step_inputs(limits) for _ in range(2))
    for step, spans in ((inner, [(0, 40), (0, 11)]), (outer, SPANS)):
        plain = step_of(be, spans, [0], 10)
        for name in ("counts", "positions", "query_start", "logit_rows"):
            part = getattr(plain, name)
            getattr(step, name)[: len(part)] = part
        for name in ("slot_mapping", "page_table"):
            part = getattr(plain, name)
            getattr(step, name)[:, : part.shape[1]] = part
        step.seq_lens[0, :2] = [end for _, end in spans]
        step.seq_lens[1, :2] = 40, 11
    keys = [be.tensor(rows(rng, 51, 64)) for _ in range(2)]
    angles = be.cos_sin(inner, Rope(np.zeros(16, np.float32)))
    be.rope_and_cache([keys[0], *keys], Rotation(angles, "halves"), LayerMemory(inner, kv, 1))
    be.flush()
    return kv, outer


CASES = [
    *(Case("read-rows", read_rows, 0), Case("written-rows", written_rows, 0), Case("joined-rows", joined_rows, 0)),
    *map(turned, [(), (0,) * 3 + (1,) * 3 + (2,) * 2, (0, 1, 2, 0, 1, 2, 0, 0)]),
    *map(crossed, ["f32", "f16"]),
]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case: Case, name: str) -> None:
    compare(case, name)


WITH_ROWS = [name for name in AND_PLAIN if "read-rows" not in REFUSED_OPS.get(name, ())]


@pytest.mark.parametrize("name", WITH_ROWS)
def test_positions_alike_on_all_axes_turn_as_positions_do(name: str) -> None:
    be = backend(name)
    step = step_with(be, Extras.ROPE)
    step.rope_positions[:] = step.positions
    freq = (10000.0 ** -(np.arange(8) / 8)).astype(np.float32)
    wanted = be.read(be.cos_sin(step.within(replace(step.limits, extras=0)), Rope(freq, axes=(0, 1) * 4))).copy()
    assert be.read(be.cos_sin(step, Rope(freq, axes=(0, 1) * 4))).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", WITH_ROWS)
def test_a_plan_follows_slots_that_are_named_anew(name: str) -> None:
    """Rows put after recording are read, padding is not written, and rows of padding are nobody's."""
    be = backend(name)
    rng = np.random.default_rng(5)
    step = reading(be, rng)
    assert step.rows and step.target_rows

    def forward() -> Tensor:
        found = be.with_rows(be.take_rows(step, WIDTH), step, add=True, begin=WIDTH)
        be.store_rows(found, step)
        return be.gather_rows(found, step)

    plan = be.record(forward, step)
    for n in (9, 4):
        put = rows(rng, N_SLOTS, 3 * WIDTH)
        be.write_rows(step.rows, range(N_SLOTS), put)
        be.write_rows(step.target_rows, range(N_SLOTS), np.zeros((N_SLOTS, 2 * WIDTH), np.float32))
        step.counts[:] = n, 1, 1
        step.query_start[:2] = 0, n
        slots = rng.permutation(N_SLOTS)[:n] if n < N_SLOTS else np.array(ROW_OF)
        step.row_of[:n] = slots
        step.row_target[:] = 6
        step.row_target[:n] = -1
        step.row_target[1] = 2
        step.logit_rows[0] = 1
        plan.run()
        wanted = put[slots[1], :WIDTH] + put[slots[1], WIDTH : 2 * WIDTH]
        np.testing.assert_array_equal(be.read(plan.result)[0], wanted)
        stored = be.read_rows(step.target_rows, range(N_SLOTS))
        np.testing.assert_array_equal(stored[2, :WIDTH], wanted)
        assert not np.delete(stored, 2, axis=0).any()

"""What the conformance cases do not reach on a GPU: 16-bit products, padded plans, joined matrices, refusals."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import backends_here
from backends_here import kv_store
from lora_files import fill_rows, random_factors
from model_cases import CASES, make_weights, token_ids
from model_files import write_hf
from model_runs import Runs
from op_steps import PAGE, full_store, rows, step_of
from random_weights import random_tensor
from tahr.backends import open_backend
from tahr.backends.api import (
    AttentionSpec,
    Backend,
    ExpertMLPs,
    KVShape,
    LayerMemory,
    Linear,
    LinearShape,
    Plan,
    Rope,
    Rotation,
    Routing,
    Rows,
    StepInputs,
    StepLimits,
    Tensor,
)
from tahr.backends.cuda.layouts import presence as cuda_presence
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import ConfigError
from tahr.models.loader import load, open_model

needs_cuda = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")
# Triton's interpreter multiplies the bits of bf16 numbers as if they were integers; f16 it knows.
HALVES = ["F16"] if cuda_presence.interprets() else ["F16", "BF16"]
EIGHT_BITS = [] if cuda_presence.interprets() else ["fp8"]  # the interpreter rounds no numbers to 8-bit floats
LOOSE = 1e-2  # of the largest value: rows are rounded to 8 bits of fraction before they meet a matrix


def check(run, seed: int = 7, tolerance: float = LOOSE) -> None:  # type: ignore[no-untyped-def]
    """`run` on the GPU, in its fastest and its deterministic way, gives the arrays of its oracle."""
    wanted = run(backends_here.oracle("cuda"), np.random.default_rng(seed))
    for deterministic in (False, True):
        got = run(backends_here.backend("cuda", deterministic), np.random.default_rng(seed))
        for want, have in zip(wanted, got, strict=True):
            assert want.shape == have.shape
            np.testing.assert_allclose(have, want, rtol=0, atol=tolerance * np.abs(want).max())


def half_rows(be: Backend, form: str, n: int, width: int, rng: np.random.Generator) -> Tensor:
    """Rows of a model stored in that format: what its embedding table gives out."""
    table, most = be.weight(random_tensor(form, (64, width), rng)), 16 * PAGE
    spans = [(0, min(most, n - begin)) for begin in range(0, n, most)]
    return be.embed(table, step_of(be, spans, [0], 64), scale=10.0)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("n", [2, 16, 17, 40])
@pytest.mark.parametrize("unit", [8, 64])
@pytest.mark.parametrize("stacked", [False, True])
def test_half_adapters(form: str, n: int, unit: int, stacked: bool) -> None:
    """Rows with one adapter, several and none, in products of few rows and of many, three times in a row."""
    heights, width = {"q": 2 * unit, "k": unit, "v": unit, "o": 3 * unit}, 8 * unit if unit == 64 else 96
    shapes = {name: LinearShape(height, width, f"dense {form.lower()}") for name, height in heights.items()}

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        x = be.rms_norm(half_rows(be, form, n, width, rng), be.vector(np.ones(width, np.float32)), 1e-6)
        bank = be.lora_bank(shapes, StepLimits(n, n, n, 1))
        for slot in range(1, 11):
            factors = {name: random_factors(shape, 3 * slot, rng, form, 0.5) for name, shape in shapes.items()}
            bank.put(slot, bank.prepare(factors if slot != 3 else {"k": factors["k"]}))
        stacks = [[], [(1, 1.0)], [(2, -0.5), (1, 2.0)], *([(slot, 1.0)] for slot in range(3, 11)), [(1, 0.5)]]
        fill_rows(bank, Rows.TOKENS, [stack if stacked else stack[:1] for stack in (stacks * n)[:n]])
        *parts, o = (
            Linear(be.weight(random_tensor(form, (height, width), rng)), None, name) for name, height in heights.items()
        )
        bias = be.vector(rng.standard_normal(3 * unit).astype(np.float32))
        results: list[Tensor] = []
        with be.adapting(bank, 4 if stacked else 1):
            for _ in range(3):
                results += [*be.linears(x, be.join(parts)), be.linear(x, Linear(o.weight, bias, "o"))]
        return [np.array(be.read(y)) for y in results]

    check(run)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("n", [1, 5, 16, 17, 40, 64, 128])
def test_half_linear(form: str, n: int) -> None:
    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        x = half_rows(be, form, n, 128, rng)
        x = be.rms_norm(x, be.vector(np.ones(128, np.float32)), 1e-6)
        w, other = (be.weight(random_tensor(form, (n_rows, 128), rng)) for n_rows in (48, 32))
        bias, other_bias = (be.vector(rng.standard_normal(n).astype(np.float32)) for n in (48, 32))
        picked = be.gather_rows(x, step_of(be, [(0, n)], [n - 1, 0], 64))
        joined, twice = be.join([Linear(w, bias), Linear(other, other_bias)]), be.join([Linear(w)] * 2)
        results = [be.linear(x, Linear(w, bias)), be.linear(picked, Linear(w)), *be.linears(x, joined)]
        results += [be.linear(x, part) for part in joined.parts]
        return [np.array(be.read(y)) for y in [*results, be.gated(x, twice, "gelu_tanh")]]

    check(run)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("n", [1, 3, 17, 64, 100, 128, 320])
def test_half_linear_that_is_added(form: str, n: int) -> None:
    """A product may come in parts to what adds it to a stream; read before or after that, it is whole."""

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        x = half_rows(be, form, n, 512, rng)
        gain = be.vector(rng.uniform(0.5, 2, 512).astype(np.float32))
        w, bias = be.weight(random_tensor(form, (512, 512), rng)), be.vector(rng.standard_normal(512, np.float32))
        normed = be.rms_norm(x, gain, 1e-6)
        early, late = (be.linear(normed, Linear(w, bias)) for _ in range(2))
        seen = np.array(be.read(early))
        added = [*be.add_rms_norm(x, early, gain, 1e-6, 0.5), *be.add_rms_norm(x, late, gain, 1e-6), late]
        return [seen, *(np.array(be.read(y)) for y in added)]

    check(run)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("n", [1, 2, 3, 40, 200, 400])
def test_half_experts(form: str, n: int) -> None:
    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        x = half_rows(be, form, n, 64, rng)
        gate, up = (Linear(be.weight(random_tensor(form, (5, 40, 64), rng))) for _ in range(2))
        down = Linear(be.weight(random_tensor(form, (5, 64, 40), rng)))
        scores = be.tensor(rows(rng, n, 5))
        return [np.array(be.read(be.experts(x, scores, ExpertMLPs(gate, up, down, Routing(2, True), "silu"))))]

    check(run)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
def test_a_half_row_hardly_depends_on_few_neighbours(form: str) -> None:
    """One or two rows are summed by another kernel; from three to sixteen the bits are the same."""
    be, rng = backends_here.backend("cuda"), np.random.default_rng(1)
    w, table = (be.weight(random_tensor(form, (n_rows, 512), rng)) for n_rows in (40, 64))
    step = step_of(be, [(0, 16)], [0], 64)
    together = np.array(be.read(be.linear(be.embed(table, step), Linear(w))))
    for i in range(14):
        one, three = step_of(be, [(0, 1)], [0], 64), step_of(be, [(0, 3)], [0], 64)
        one.ids[0], three.ids[:3] = step.ids[i], step.ids[i : i + 3]
        np.testing.assert_array_equal(be.read(be.linear(be.embed(table, three), Linear(w)))[0], together[i])
        np.testing.assert_allclose(
            be.read(be.linear(be.embed(table, one), Linear(w)))[0], together[i], rtol=0, atol=1e-5
        )


@needs_cuda
def test_padding_writes_no_keys() -> None:
    """A plan for four sequences run on one: the KV store changes in that one's slot alone."""
    be, rng = backends_here.backend("cuda"), np.random.default_rng(2)
    kv = kv_store(be, [KVShape(1, 16)], [16], PAGE, "f32")
    table = be.weight(random_tensor("F32", (8, 16), rng))
    step = be.step_inputs(StepLimits(4, 4, 4, 16, n_tokens_per_seq=1))
    step.slot_mapping[:], step.ids[:], step.logit_rows[:], step.seq_lens[:] = [37, 5, 6, 7], 7, 99, 4
    step.counts[:] = 1, 1, 1
    step.query_start[:2], step.page_table[0, 0] = [0, 1], 4
    rope = Rope(np.ones(8, np.float32))

    def forward() -> Tensor:
        x = be.embed(table, step)
        q = be.rope_and_cache([x, x, x], Rotation(be.cos_sin(step, rope), "halves"), LayerMemory(step, kv, 0))
        return be.gather_rows(be.attention(q, AttentionSpec(1.0), LayerMemory(step, kv, 0)), step)

    step.logit_rows[0] = 0
    plan = be.record(forward, step)
    plan.run()
    assert be.read(plan.result).shape == (1, 16)
    written = np.argwhere(kv.layers[0].cpu().numpy().any(axis=(2, 4)))
    assert {(int(page), int(place)) for _, page, place in written} == {(37 // PAGE, 37 % PAGE)}


# ---- rows that keep to themselves -----------------------------------------------------------------------------

# The interpreter multiplies by NumPy, whose order of adding depends on how tall and wide a tile is.
STEADY = ["F32"] if cuda_presence.interprets() else ["F32", "F16", "BF16"]
TALL = 147 if cuda_presence.interprets() else 5000  # rows of a matrix that is cut into larger tiles


@needs_cuda
@pytest.mark.parametrize("form", STEADY)
@pytest.mark.parametrize("n_cols", [64, 576])
def test_a_row_is_the_same_among_any_number(form: str, n_cols: int) -> None:
    be, rng = backends_here.backend("cuda", deterministic=True), np.random.default_rng(5)
    table = be.weight(random_tensor(form, (200, n_cols), rng))
    shapes = [(147, n_cols), (TALL, n_cols), (5, 40, n_cols), (5, 40, n_cols), (5, n_cols, 40), (5, n_cols)]
    w, tall, gate, up, down, router = (Linear(be.weight(random_tensor(form, shape, rng))) for shape in shapes)
    mlps = ExpertMLPs(gate, up, down, Routing(3, True), "silu")

    def run(first: int, n: int) -> list[np.ndarray]:
        step = step_of(be, [(0, n)], [0], 200)
        step.ids[:n] = np.arange(first, first + n)
        x = be.rms_norm(be.embed(table, step, 10.0), be.vector(np.ones(n_cols, np.float32)), 1e-6)
        mixed = be.experts(x, be.linear(x, router), mlps)
        return [np.array(be.read(y)) for y in (be.linear(x, w), be.linear(x, tall), mixed)]

    together = run(0, 127)
    for first, n in [(0, 1), (126, 1), (3, 16), (5, 17), (40, 32), (20, 65), (1, 120)]:
        for some, all_rows in zip(run(first, n), together, strict=True):
            np.testing.assert_array_equal(some, all_rows[first : first + n])


@needs_cuda
@pytest.mark.parametrize("form", STEADY)
@pytest.mark.parametrize("window", [0, 21])
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0", *EIGHT_BITS])
def test_attention_is_the_same_by_any_cut(form: str, window: int, kv_dtype: str) -> None:
    """A text read at once, in pieces, and token by token, with and without neighbours."""
    be, rng = backends_here.backend("cuda", deterministic=True), np.random.default_rng(6)
    kv = full_store(be, rng, KVShape(2, 32), 3, kv_dtype)
    table = be.weight(random_tensor(form, (100, 6 * 32), rng))

    def attend(spans: list[tuple[int, int]], decodes: bool = False) -> np.ndarray:
        """Rows of the first sequence; the others are somewhere else."""
        step, n = step_of(be, spans, [0], 100), spans[0][1] - spans[0][0]
        step.ids[:n] = np.arange(*spans[0])
        if decodes:
            step = step.within(StepLimits(3, 3, 3, 16, n_tokens_per_seq=1))
        q = be.embed(table, step, 10.0)
        return np.array(be.read(be.attention(q, AttentionSpec(0.2, window), LayerMemory(step, kv, 0))))[:n]

    whole = attend([(0, 100), (3, 60), (0, 1)])
    for begin, end in [(0, 100), (0, 7), (7, 64), (64, 100), (99, 100)]:
        np.testing.assert_array_equal(attend([(begin, end), (9, 10), (5, 30)]), whole[begin:end])
    for at in (0, 31, 32, 70, 99):
        for neighbours in ([(1, 2), (2, 3)], [(88, 89), (0, 1)]):
            np.testing.assert_array_equal(attend([(at, at + 1), *neighbours], decodes=True), whole[at : at + 1])


def simple_plan(be: Backend) -> tuple[Plan, StepInputs]:
    """A decoding step that says its own token."""
    table = be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3)))
    step = be.step_inputs(StepLimits(2, 2, 2, 1, n_tokens_per_seq=1))
    step.counts[:] = 1, 1, 1
    return be.record(lambda: be.gather_rows(be.embed(table, step), step), step), step


@needs_cuda
def test_old_plans_found_to_be_garbage_do_not_break_a_capture() -> None:
    be = backends_here.backend("cuda")
    before = gc.get_threshold()
    for _ in range(3):
        ring: list[object] = [simple_plan(be)]
        ring.append(ring)
        del ring
    try:
        gc.set_threshold(1)  # the collector runs at the next occasion
        plan, _ = simple_plan(be)
    finally:
        gc.set_threshold(*before)
    plan.run()
    assert be.read(plan.result).shape == (1, 16)
    assert gc.isenabled()


@needs_cuda
def test_a_capture_that_fails_spoils_no_later_one() -> None:
    be = backends_here.backend("cuda")
    table = be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3)))
    step = be.step_inputs(StepLimits(2, 2, 2, 1, n_tokens_per_seq=1))
    step.counts[:] = 1, 1, 1
    runs = []

    def broken() -> Tensor:
        x = be.embed(table, step)
        if runs:
            raise ArithmeticError("while capturing, or at the second run where nothing is captured")
        return x

    plan = be.record(broken, step)
    plan.run()
    runs.append(1)
    with pytest.raises(ArithmeticError):
        plan.run()
    plan, _ = simple_plan(be)
    plan.run()
    assert be.read(plan.result).shape == (1, 16)


@needs_cuda
@pytest.mark.skipif(cuda_presence.interprets(), reason="the interpreter captures nothing")
def test_without_memory_for_a_graph_steps_run_op_by_op(caplog: pytest.LogCaptureFixture) -> None:
    import torch

    be = backends_here.backend("cuda")
    table = be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3)))
    step = be.step_inputs(StepLimits(2, 2, 2, 1, n_tokens_per_seq=1))
    step.counts[:] = 1, 1, 1

    def forward() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("in a capture")
        return be.embed(table, step)

    plan = be.record(forward, step)
    for token in range(5):
        step.ids[0] = token
        plan.run()
        np.testing.assert_array_equal(be.read(plan.result)[0], np.array(be.read(be.embed(table, step)))[0])
    assert len(caplog.records) == 1 and "--gpu-memory-utilization" in caplog.text


@needs_cuda
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", *EIGHT_BITS])
def test_pages_move_exactly(kv_dtype: str) -> None:
    be = backends_here.backend("cuda")
    kv = full_store(be, np.random.default_rng(4), KVShape(2, 16), 1, kv_dtype)
    before = be.read_pages(kv, range(16))[0]
    assert before.shape == (16 * PAGE, 2, 2 * 16 * {"f32": 4, "bf16": 2, "fp8": 1}[kv_dtype])
    be.copy_pages(kv, [(3, 5), (5, 3)])
    swapped = before.reshape(16, PAGE, 2, -1)[[*range(3), 5, 4, 3, *range(6, 16)]].reshape(before.shape)
    np.testing.assert_array_equal(be.read_pages(kv, range(16))[0], swapped)
    be.write_pages(kv, range(16), [before])
    np.testing.assert_array_equal(be.read_pages(kv, range(16))[0], before)


def test_refusals_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no threads to set"):
        open_backend("cuda", n_threads=2)
    monkeypatch.setattr(cuda_presence, "missing_packages", lambda: ["torch"])
    with pytest.raises(ConfigError, match=r"pip install '\.\[cuda\]'"):
        open_backend("cuda")
    monkeypatch.setattr(cuda_presence, "missing_packages", list)
    monkeypatch.setattr(cuda_presence, "interprets", lambda: False)
    monkeypatch.setattr(cuda_presence, "n_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="nvidia-smi"):
        open_backend("cuda")


def test_looking_for_a_gpu_does_not_import_torch() -> None:
    code = "import sys; from tahr.backends import automatic; automatic(None); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_cuda
@pytest.mark.skipif(cuda_presence.interprets(), reason="Triton's interpreter cannot multiply bf16")
@pytest.mark.parametrize("case", CASES)
def test_families_in_bf16(case: str, tmp_path: Path) -> None:
    """bf16 weights and rows cost at most 2e-2, or twice what rounding the rows of the reference to bf16 costs.

    Some tiny models magnify any rounding: a delta rule with few and narrow heads may answer a query with next to
    nothing, which its norm then enlarges. Of the rows the median counts, because one in which two experts nearly tie
    may choose the other one.
    """
    folder = write_hf(tmp_path, CASES[case], make_weights(CASES[case]), "BF16")
    found, rounded, wanted = (
        Runs(load(open_model([], folder), be), be).eager([(0, token_ids())])
        for be in (backends_here.backend("cuda"), backends_here.RoundedReference(), ReferenceBackend())
    )
    allowed = max(0.02, 2 * typical_error(rounded, wanted))
    assert typical_error(found, wanted) <= allowed <= 0.1


def typical_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The median over rows of the error as a share of the row."""
    return float(np.median(np.sqrt(np.square(found - wanted).sum(axis=1) / np.square(wanted).sum(axis=1))))

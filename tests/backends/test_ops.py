"""Op x backend x case = the reference backend, within the tolerance the op states."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from backends_here import AND_PLAIN, REFUSED_OPS, backend, kv_store, oracle, tolerance_of
from lora_files import fill_rows, random_factors
from op_steps import PAGE, full_store, rows, step_of
from random_weights import NATIVE, random_tensor
from tahr.backends import BACKENDS, open_backend
from tahr.backends.api import (
    AttentionSpec,
    Backend,
    ExpertMLPs,
    HeadNorms,
    KVShape,
    LayerMemory,
    Linear,
    LinearShape,
    Rope,
    Rotation,
    Routing,
    Rows,
    StepLimits,
    Tensor,
)
from tahr.errors import ConfigError, UnsupportedModel

Arrays = list[np.ndarray]
OTHERS = [name for name in AND_PLAIN if name != "reference"]
ADAPTING = [name for name in OTHERS if "lora-" not in REFUSED_OPS.get(name, ())]


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Backend, np.random.Generator], Arrays]
    tolerance: float = 2e-6  # of the largest value


# ---- steps ----------------------------------------------------------------------------------------------------


# ---- cases ----------------------------------------------------------------------------------------------------


def linear_case(form: str, n: int, n_rows: int, n_cols: int, bias: bool) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        w = be.weight(random_tensor(form, (n_rows, n_cols), rng))
        b = be.vector(rng.standard_normal(n_rows).astype(np.float32)) if bias else None
        return [be.read(be.linear(be.tensor(rows(rng, n, n_cols)), Linear(w, b)))]

    return Case(f"linear-{form}-{n}x{n_rows}x{n_cols}{'-bias' if bias else ''}", run, 1e-5)


def linears(be: Backend, rng: np.random.Generator) -> Arrays:
    x = be.tensor(rows(rng, 5, 256))
    shapes = [("Q4_0", 64), ("Q6_K", 24), ("F16", 40)]
    joined = be.join([Linear(be.weight(random_tensor(form, (n, 256), rng))) for form, n in shapes])
    return [be.read(y) for y in be.linears(x, joined)]


def embed(form: str) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        table = be.weight(random_tensor(form, (48, 256), rng))
        return [be.read(be.embed(table, step_of(be, [(0, 9)], [0], 48), scale=1.5))]

    return Case(f"embed-{form}", run, 0)


def norms(be: Backend, rng: np.random.Generator) -> Arrays:
    x, y = be.tensor(rows(rng, 3, 100)), be.tensor(rows(rng, 3, 100))
    gain = be.vector(rng.standard_normal(100).astype(np.float32))
    total, normed = be.add_rms_norm(x, y, gain, 1e-5, scale=0.3)
    return [be.read(t) for t in (be.rms_norm(x, gain, 1e-6), total, normed)]


def plain(be: Backend, rng: np.random.Generator) -> Arrays:
    x, y = be.tensor(rows(rng, 4, 75)), be.tensor(rows(rng, 4, 75))
    return [
        be.read(t) for t in (be.add(x, y), be.add(x, y, -0.5), be.scale(x, 3.0), be.softcap(be.scale(x, 9.0), 5.0))
    ] + [be.read(be.clip(x, 0.7))]


def activate(act: str) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        wide = np.linspace(-30, 30, 77, dtype=np.float32)[None]
        gate, up = be.tensor(wide), be.tensor(rows(rng, 1, 77))
        return [be.read(be.activate(gate, given, act)) for given in ((up,) if act == "clamped_swiglu" else (up, None))]  # type: ignore[arg-type]

    return Case(f"activate-{act}", run, 2e-6)


def gated(form: str) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        gate_up = be.join([Linear(be.weight(random_tensor(form, (96, 256), rng))) for _ in range(2)])
        return [be.read(be.gated(be.tensor(rows(rng, 6, 256)), gate_up, "silu"))]

    return Case(f"gated-{form}", run, 1e-5)


def experts(form: str, renormalise: bool, n: int) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        gate, up = (Linear(be.weight(random_tensor(form, (5, 64, 256), rng))) for _ in range(2))
        down = Linear(be.weight(random_tensor("F32", (5, 256, 64), rng)))
        mlps = ExpertMLPs(gate, up, down, Routing(2, renormalise), "silu")
        scores = rows(rng, n, 5)
        scores[0] = 1.0  # a tie goes to the lower index
        x = be.tensor(rows(rng, n, 256))
        return [be.read(be.experts(x, be.tensor(scores), mlps))]

    return Case(f"experts-{form}-{n}{'-renorm' if renormalise else ''}", run, 1e-5)


def angles(be: Backend, rng: np.random.Generator) -> Arrays:
    freq = (10000.0 ** -(np.arange(16) / 16)).astype(np.float32)
    step = step_of(be, [(0, 5), (60, 90)], [0], 10)
    return [be.read(be.cos_sin(step, Rope(freq, scale=1.2)))]


def place(style: str, with_norms: bool, dtype: str, rotated: int, with_mean: bool = False) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        step = step_of(be, [(3, 9), (17, 18)], [0], 10)
        kv = kv_store(be, [KVShape(2, 32)], [32], PAGE, dtype)
        freq = (1000.0 ** -(np.arange(rotated // 2) / 16)).astype(np.float32)
        q, k, v = (be.tensor(rows(rng, 7, w)) for w in (128, 64, 64))
        gains = [be.vector(rng.standard_normal(32).astype(np.float32)) for _ in range(2)]
        head_norms = HeadNorms(gains[0], gains[1], 1e-6) if with_norms else None
        mean = be.vector(rng.standard_normal(64).astype(np.float32)) if with_mean else None
        rotation = Rotation(be.cos_sin(step, Rope(freq)), style, head_norms, mean)  # type: ignore[arg-type]
        memory = LayerMemory(step, kv, 0)
        turned = be.rope_and_cache([q, k, v], rotation, memory)
        return [be.read(turned), be.read(be.attention(turned, AttentionSpec(0.2), memory))]

    name = f"place-{style}-{dtype}-{rotated}{'-norms' if with_norms else ''}{'-mean' * with_mean}"
    return Case(name, run, 1e-5 if dtype == "f32" else 1e-3)


def attention(name: str, spans: list[tuple[int, int]], dtype: str = "f32", dim: int = 32,
              heads: tuple[int, int] = (4, 2), window: int = 0, softcap: float = 0.0,
              sinks: bool = False, slopes: bool = False, causal: bool = True,
              chunked: bool = False) -> Case:  # fmt: skip
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        kv = full_store(be, rng, KVShape(heads[1], dim), len(spans), dtype)
        step = step_of(be, spans, [0], 10)
        q = be.tensor(rows(rng, step.n_tokens, heads[0] * dim))
        per_head = [be.vector(rows(rng, 1, heads[0])[0]) if given else None for given in (sinks, slopes)]
        spec = AttentionSpec(dim**-0.5, window, softcap, causal, *per_head, chunked=chunked)
        return [be.read(be.attention(q, spec, LayerMemory(step, kv, 0)))]

    return Case(f"attention-{name}-{dtype}", run, 5e-6)


def pick(be: Backend, rng: np.random.Generator) -> Arrays:
    step = step_of(be, [(0, 6), (4, 7)], [5, 0, 8], 10)
    return [be.read(be.gather_rows(be.tensor(rows(rng, 9, 33)), step))]


# Stacks of (slot, scale) by row: none, one, several, the same adapter for many rows, another rank, an absent linear.
STACKS: list[list[tuple[int, float]]] = [
    [], [(1, 1.0)], [(2, 0.5), (1, -2.0)], [(7, 1.0)], [], [(1, 0.25), (2, 1.0), (7, 1.0), (3, 3.0)], [(3, 1.0)],
]  # fmt: skip


def adapters(form: str, n: int, cols: int, heights: tuple[int, ...]) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        shapes = {f"linear{i}": LinearShape(height, cols, "f32") for i, height in enumerate(heights)}
        bank = be.lora_bank(shapes, StepLimits(n, n, n, 1))
        for slot, rank in ((1, 4), (2, 16), (7, 37)):
            bank.put(slot, bank.prepare({k: random_factors(s, rank, rng, form, 0.5) for k, s in shapes.items()}))
        bank.put(3, bank.prepare({"linear0": random_factors(shapes["linear0"], 1, rng, form)}))
        linears = [Linear(be.weight(random_tensor("F32", (s.n_rows, cols), rng)), None, k) for k, s in shapes.items()]
        x = rows(rng, n, cols)
        fill_rows(bank, Rows.TOKENS, (STACKS * n)[:n])
        with be.adapting(bank):
            together = [np.array(be.read(y)) for y in be.linears(be.tensor(x), be.join(linears))]
            alone = np.array(be.read(be.linear(be.tensor(x), linears[-1])))
        return [*together, alone]

    return Case(f"lora-{form}-{n}x{cols}", run, 1e-5)


CASES = [
    *(linear_case(form, n, 24, 512, bias=n == 3) for form in NATIVE for n in (1, 3, 4, 13)),
    *(linear_case(form, 5, 13, 256, bias=False) for form in NATIVE),  # rows that fill no panel
    *(linear_case(form, 2, 7, 75, bias=True) for form in ("F32", "F16", "BF16")),  # columns that fill no block
    # Kept dense: rows stay f32, the oracle's do not.
    replace(linear_case("Q2_0", 2, 16, 256, bias=False), tolerance=1e-2),
    Case("linears-Q4_0-Q6_K-F16", linears, 1e-5),
    *(embed(form) for form in NATIVE),
    Case("norms", norms),
    Case("plain", plain),
    *(activate(act) for act in ("silu", "gelu_tanh", "gelu", "sigmoid", "relu2", "clamped_swiglu", "quick_gelu")),
    gated("Q4_K"),
    gated("F32"),
    experts("Q8_0", True, 1),
    experts("Q4_K", False, 7),
    experts("F32", True, 40),
    Case("angles", angles),
    *(place(style, n, d, r) for style, n, d, r in [("halves", False, "f32", 32), ("pairs", True, "f32", 32),
                                                    ("halves", True, "f16", 32), ("halves", False, "f32", 16),
                                                    ("pairs", False, "q8_0", 16), ("halves", True, "q8_0/f16", 32),
                                                    ("halves", False, "f32/q8_0", 32)]),
    place("halves", False, "q8_0", 32, with_mean=True),
    place("halves", False, "f16", 32, with_mean=True),  # which only q8_0 goes without
    attention("decode", [(9, 10), (100, 101), (0, 1)]),
    attention("prefill", [(0, 70), (30, 61)]),
    attention("window", [(0, 70), (90, 91)], window=11),
    attention("softcap", [(5, 20)], softcap=4.0),
    attention("chunks", [(0, 70), (90, 91)], window=11, chunked=True),
    attention("sinks", [(0, 70), (100, 101)], sinks=True, window=20),
    attention("slopes", [(0, 70), (100, 101)], slopes=True, heads=(6, 2)),
    attention("softcap-slopes", [(3, 4), (0, 70)], softcap=4.0, slopes=True),
    attention("sinks-slopes", [(3, 4), (100, 101), (0, 1)], sinks=True, slopes=True),
    attention("odd-heads", [(0, 13)], dim=24, heads=(9, 3)),
    attention("both-ways", [(0, 70), (0, 1), (0, 100)], heads=(3, 3), causal=False),
    attention("both-ways-window", [(0, 100), (0, 5)], window=20, softcap=4.0, causal=False),
    attention("both-ways-slopes", [(0, 70)], slopes=True, sinks=True, dtype="f16", causal=False),
    attention("wide", [(10, 40)], dim=128, heads=(2, 1)),
    attention("decode", [(9, 10), (100, 101)], dtype="f16"),
    attention("prefill", [(0, 70)], dtype="f16", heads=(2, 2)),
    attention("decode", [(9, 10), (100, 101)], dtype="q8_0", dim=64),
    attention("prefill", [(0, 70)], dtype="q8_0", dim=96, heads=(3, 1)),
    attention("window", [(0, 70), (90, 91)], dtype="q8_0", window=11),
    attention("decode", [(9, 10), (100, 101)], dtype="q8_0/f32", dim=64),
    attention("prefill", [(0, 70)], dtype="f16/q8_0", dim=64, heads=(3, 1)),
    Case("pick", pick, 0),
    *(adapters(form, n, 96, (64, 40, 24)) for form in ("F32", "F16", "BF16") for n in (3, 70)),
    adapters("F32", 7, 75, (13, 33)),  # rows and columns that fill no vector
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_op_equals_reference(case: Case, name: str) -> None:
    compare(case, name)


@pytest.mark.skipif("cpu" not in OTHERS, reason="the CPU's attention is tested where its backend is")
@pytest.mark.parametrize("case", [case for case in CASES if "attention" in case.name], ids=lambda case: case.name)
def test_plain_attention_equals_reference(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAHR_NO_FLASH", "1")
    be = open_backend("cpu", 2)
    assert be.summary.endswith("plain attention")
    plain = case.run(be, np.random.default_rng(7))
    fast = case.run(backend("cpu"), np.random.default_rng(7))
    assert not all(map(np.array_equal, plain, fast)), "another kernel rounds otherwise"
    check(case.run(oracle("cpu"), np.random.default_rng(7)), plain, case.tolerance)


def test_plain_attention_is_the_cpu_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAHR_NO_FLASH", "1")
    assert open_backend("reference").name == "reference", "which has no other"
    monkeypatch.setitem(BACKENDS, "other", BACKENDS["reference"])
    with pytest.raises(
        ConfigError, match="TAHR_NO_FLASH=1 selects the plain attention of cpu and reference, not of other"
    ):
        open_backend("other")


def compare(case: Case, name: str) -> None:
    """A case on a backend and on its oracle."""
    if case.name.startswith(REFUSED_OPS.get(name, ("\0",))):
        with pytest.raises(UnsupportedModel, match=rf"the {name} backend does not"):
            case.run(backend(name), np.random.default_rng(7))
        return
    if "q8_0" in case.name and "q8_0" not in backend(name).kv_dtypes:
        pytest.skip(f"{name} has no q8_0 KV cache")
    if "/" in case.name and not backend(name).mixes_kv_dtypes:
        pytest.skip(f"{name} stores keys and values in one type")
    expected = [np.array(a) for a in case.run(oracle(name), np.random.default_rng(7))]
    got = [np.array(a) for a in case.run(backend(name), np.random.default_rng(7))]
    check(expected, got, tolerance_of(name, case.name, case.tolerance))


def check(expected: Arrays, got: Arrays, tolerance: float) -> None:
    assert len(expected) == len(got)
    for want, have in zip(expected, got, strict=True):
        assert want.shape == have.shape
        np.testing.assert_allclose(have, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("form", NATIVE)
def test_a_row_never_depends_on_its_neighbours(name: str, form: str) -> None:
    be, rng = backend(name, deterministic=name == "vulkan"), np.random.default_rng(3)
    w = Linear(be.weight(random_tensor(form, (40, 512), rng)))
    x = rows(rng, 17, 512)
    together = np.array(be.read(be.linear(be.tensor(x), w)))
    for i in range(17):
        alone = be.read(be.linear(be.tensor(x[i : i + 1]), w))
        np.testing.assert_array_equal(together[i], alone[0])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_attention_never_depends_on_chunking_or_neighbours(name: str, dtype: str) -> None:
    be = backend(name, deterministic=name == "vulkan")
    if dtype not in be.kv_dtypes:
        pytest.skip(f"{name} has no {dtype} KV cache")
    shape = KVShape(2, 64)
    kv = full_store(be, np.random.default_rng(1), shape, 2, dtype)
    q = rows(np.random.default_rng(2), 100, 4 * 64)
    step = step_of(be, [(0, 100), (0, 1)], [0], 10)
    spec = AttentionSpec(0.125)
    whole = np.array(be.read(be.attention(be.tensor(np.vstack([q, q[:1]])), spec, LayerMemory(step, kv, 0))))
    for begin, end in [(0, 1), (1, 8), (8, 77), (77, 99), (99, 100)]:
        part = step_of(be, [(begin, end), (0, 1)], [0], 10)
        part.counts[:] = end - begin, 1, 1
        alone = be.read(be.attention(be.tensor(q[begin:end]), spec, LayerMemory(part, kv, 0)))
        np.testing.assert_array_equal(whole[begin:end], alone)


# ---- rows that are rounded by the op that makes them ----------------------------------------------------------


def makers(be: Backend, rng: np.random.Generator) -> list[Callable[[], Tensor]]:
    """Ops whose rows a quantised matrix is likely to read."""
    x, y = be.tensor(rows(rng, 9, 256)), be.tensor(rows(rng, 9, 256))
    gain = be.vector(rng.standard_normal(256).astype(np.float32))
    kv = full_store(be, rng, KVShape(4, 64), 2, "f32")
    step = step_of(be, [(70, 78), (3, 4)], [0], 10)
    return [
        lambda: be.rms_norm(x, gain, 1e-6),
        lambda: be.add_rms_norm(x, y, gain, 1e-6)[1],
        lambda: be.activate(x, y, "silu"),
        lambda: be.attention(x, AttentionSpec(0.1), LayerMemory(step, kv, 0)),
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_rows_are_rounded_alike_before_and_after_they_were_read(name: str) -> None:
    be, rng = backend(name), np.random.default_rng(6)
    w = Linear(be.weight(random_tensor("Q8_0", (40, 256), rng)))
    for make in makers(be, rng):
        made = make()
        host = np.array(be.read(made))  # flushed: the op has run and nobody had asked for int8 rows
        afterwards = np.array(be.read(be.linear(made, w)))
        np.testing.assert_array_equal(afterwards, np.array(be.read(be.linear(make(), w))))
        np.testing.assert_array_equal(afterwards, np.array(be.read(be.linear(be.tensor(host), w))))


@pytest.mark.parametrize("name", [name for name in OTHERS if name == "cpu"])  # no other backend rounds rows
def test_room_for_rounded_rows_is_nobody_elses(name: str) -> None:
    """What a norm reads is dropped right after it was enqueued: what it rounds must not land there."""
    be, rng = backend(name), np.random.default_rng(8)
    w = Linear(be.weight(random_tensor("Q8_0", (40, 256), rng)))
    gain = be.vector(np.ones(256, np.float32))
    x, y = (be.tensor(rows(rng, 2048, 256)) for _ in range(2))

    def step() -> Tensor:
        stream, normed = be.add_rms_norm(be.scale(x, 2.0), be.scale(y, 2.0), gain, 1e-6)
        return be.add(be.linear(normed, w), be.linear(stream, w))

    doubled = [be.tensor(2 * np.array(be.read(t))) for t in (x, y)]
    stream, normed = be.add_rms_norm(*doubled, gain, 1e-6)
    apart = [be.linear(be.tensor(np.array(be.read(t))), w) for t in (normed, stream)]
    wanted = np.array(be.read(be.add(*apart)))
    plan = be.record(step, be.step_inputs(StepLimits(1, 1, 1, 1)))
    for _ in range(30):  # a mistake shows when threads are in each other's way, which they are not every time
        plan.run()
        np.testing.assert_array_equal(np.array(be.read(plan.result)), wanted)


@pytest.mark.parametrize("name", [name for name in OTHERS if name == "cpu"])
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    from tahr.backends import open_backend

    def run(n_threads: int) -> np.ndarray:
        be, rng = open_backend(name, n_threads=n_threads), np.random.default_rng(5)
        w = Linear(be.weight(random_tensor("Q4_K", (520, 512), rng)))
        return np.array(be.read(be.linear(be.tensor(rows(rng, 9, 512)), w)))

    one = run(1)
    for n in (2, 3, 5):
        np.testing.assert_array_equal(one, run(n))


# ---- what is refused when a model is loaded -------------------------------------------------------------------


@pytest.mark.parametrize("name", AND_PLAIN)
def test_attention_of_every_kind_is_let_in(name: str) -> None:
    be, shape = backend(name), KVShape(2, 32)
    be.check_attention(AttentionSpec(1.0, window=5, softcap=3.0), shape, 4)
    be.check_attention(AttentionSpec(1.0, causal=False), shape, 4)


@pytest.mark.parametrize("name", [name for name in OTHERS if name == "cpu"])
def test_heads_that_no_kernel_has_room_for_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"heads of 4096: choose another"):
        backend(name).check_attention(AttentionSpec(1.0), KVShape(1, 4096), 2)


# ---- adapters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTING)
@pytest.mark.parametrize("form", ["F32", "BF16"])
def test_an_adapted_row_never_depends_on_its_neighbours(name: str, form: str) -> None:
    """Nor does a row without adapter change by a bit because others have one."""
    be, rng = backend(name, deterministic=True), np.random.default_rng(4)
    shapes = {"up": LinearShape(72, 96, "f32")}
    linear = Linear(be.weight(random_tensor("F32", (72, 96), rng)), name="up")
    bank = be.lora_bank(shapes, StepLimits(64, 64, 64, 1))
    for slot, rank in ((1, 4), (2, 16), (3, 7), (7, 8)):
        bank.put(slot, bank.prepare({"up": random_factors(shapes["up"], rank, rng, form)}))
    x, stacks = rows(rng, 63, 96), (STACKS * 9)[:63]

    def adapted(some: slice) -> np.ndarray:
        fill_rows(bank, Rows.TOKENS, stacks[some])
        with be.adapting(bank):
            return np.array(be.read(be.linear(be.tensor(x[some]), linear)))

    together = adapted(slice(0, 63))
    for i in range(63):
        np.testing.assert_array_equal(together[i], adapted(slice(i, i + 1))[0])
        if not stacks[i]:
            np.testing.assert_array_equal(together[i], be.read(be.linear(be.tensor(x[i : i + 1]), linear))[0])


@pytest.mark.parametrize("name", ADAPTING)
def test_a_slot_may_get_another_adapter_between_runs_of_a_plan(name: str) -> None:
    be, rng = backend(name), np.random.default_rng(5)
    shapes = {"up": LinearShape(40, 64, "f32")}
    linear = Linear(be.weight(random_tensor("F32", (40, 64), rng)), name="up")
    step = be.step_inputs(StepLimits(4, 4, 4, 1))
    bank = be.lora_bank(shapes, step.limits)
    first, second = (bank.prepare({"up": random_factors(shapes["up"], rank, rng)}) for rank in (16, 5))
    bank.put(1, first)
    table = be.weight(random_tensor("F32", (9, 64), rng))
    step.ids[:3], step.counts[:] = (3, 1, 8), (3, 1, 1)

    def forward() -> Tensor:
        with be.adapting(bank, n_rounds=1):
            return be.linear(be.embed(table, step), linear)

    fill_rows(bank, Rows.TOKENS, [[(1, 1.0)], [], [(1, 2.0)]])
    plan = be.record(forward, step)
    found = []
    for change in (lambda: None, lambda: bank.put(1, second), lambda: bank.clear(1), lambda: bank.put(1, first)):
        change()
        plan.run()
        found.append(np.array(be.read(plan.result)))
        np.testing.assert_array_equal(found[-1][1], found[0][1])
    np.testing.assert_array_equal(found[0], found[3])
    assert np.abs(found[1] - found[0])[[0, 2]].min(axis=1).max() > 0
    assert np.abs(found[2] - found[1])[[0, 2]].max() > 0

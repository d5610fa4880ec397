"""Memory, tapes and plans of the Vulkan backend; and what no tool sees: missing barriers, and ops that lie."""

import gc
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import backends_here
from model_cases import CASES, make_weights, token_ids
from model_files import write_hf
from model_runs import Runs
from op_steps import rows
from python_here import python_here
from random_weights import random_tensor
from replaying import STEPS, Replay
from tahr.backends.api import AttentionSpec, KVShape, LayerMemory, Linear, Rope, Rotation, StepLimits
from tahr.errors import GenerateError
from tahr.models.loader import load, open_model
from tiers import full_but

pytestmark = pytest.mark.skipif("vulkan" not in backends_here.NAMES, reason="there is no Vulkan device here")

if "vulkan" in backends_here.NAMES:
    from tahr import _vulkan as native
    from tahr.backends.vulkan.backend import VulkanBackend
    from tahr.backends.vulkan.queue import OpQueue

DENSE = [case for case in CASES if case not in backends_here.REFUSED_FAMILIES["vulkan"]]
SOME = ["llama", "llama_biased", "qwen3", "gemma3", "granite"]


@pytest.fixture(scope="module")
def be() -> "VulkanBackend":
    found = backends_here.backend("vulkan")
    assert isinstance(found, VulkanBackend)
    return found


# ---- modes that show what is hidden ---------------------------------------------------------------------------


def logits(case: str, folder: Path, mode: str) -> list[np.ndarray]:
    """What steps of a family give, eagerly and as plans."""
    backend = VulkanBackend(mode=mode)
    loaded = load(open_model([], write_hf(folder, CASES[case], make_weights(CASES[case]))), backend)
    runs = Runs(loaded, backend, n_seqs=2)
    replay = Replay(Runs(loaded, backend, n_seqs=2))
    found = []
    for parts in STEPS[:4] if mode != "declared" else STEPS[:2]:
        found.append(np.array(runs.eager(parts)))
        found.append(np.array(replay.logits(parts, runs.limits)))
    return found


@pytest.mark.parametrize("case", full_but(SOME, DENSE))
def test_the_order_between_barriers_changes_no_bit(case: str, tmp_path: Path) -> None:
    plain = logits(case, tmp_path, "plain")
    for mode in ("barriers", "permuted"):
        for wanted, found in zip(plain, logits(case, tmp_path, mode), strict=True):
            np.testing.assert_array_equal(wanted, found)


@pytest.mark.parametrize("case", full_but(["qwen3"], SOME))
def test_ops_read_and_write_what_they_declare(case: str, tmp_path: Path) -> None:
    """Everything else is poisoned before an op, and unchanged after it; the host must see the device's memory."""
    if not backends_here.backend("vulkan").device.is_unified:  # type: ignore[attr-defined]
        pytest.skip("the host does not see this device's memory")
    plain = logits(case, tmp_path, "plain")
    for wanted, found in zip(plain, logits(case, tmp_path, "declared"), strict=False):
        np.testing.assert_array_equal(wanted, found)


def test_an_op_that_lies_is_found(be: "VulkanBackend") -> None:
    if not be.device.is_unified:
        pytest.skip("the host does not see this device's memory")
    other = VulkanBackend(mode="declared")
    x = other.tensor(np.ones((2, 40), np.float32))
    queue = other._queue
    add = queue.add

    def without_reads(pipeline, groups, constants, reads, writes):  # type: ignore[no-untyped-def]
        return add(pipeline, groups, constants, reads[:1], writes)

    queue.add = without_reads  # type: ignore[method-assign]
    y = other.scale(x, 2.0)
    with pytest.raises(GenerateError, match="depend on what it does not declare as read"):
        other.read(y)

    queue.add = lambda pipeline, groups, constants, reads, writes: add(pipeline, groups, constants, reads, [])  # type: ignore[method-assign]
    y = other.scale(x, 2.0)
    with pytest.raises(GenerateError, match="writes what it does not declare as written"):
        other.read(y)


# ---- hazards --------------------------------------------------------------------------------------------------


def test_ops_that_share_nothing_need_no_barrier(be: "VulkanBackend") -> None:
    queue = OpQueue(be._running, be._planned)
    before, be._queue = be._queue, queue
    try:
        x = be.tensor(np.ones((1, 64), np.float32))
        some = [be.scale(x, float(i)) for i in range(4)]
        assert queue.tape.n_runs == 1
        total = be.add(some[0], some[1])
        assert queue.tape.n_runs == 2
        del some[2]  # its memory is free for the next op, which must wait for what wrote it
        be.scale(x, 9.0)
        be.add(total, total)
        assert queue.tape.n_runs == 3
    finally:
        be._queue = before


def test_three_products_of_the_same_rows_run_side_by_side(be: "VulkanBackend") -> None:
    rng = np.random.default_rng(1)
    gain = be.vector(np.ones(64, np.float32))
    joined = be.join([Linear(be.weight(random_tensor("Q8_0", (24, 64), rng))) for _ in range(3)])
    be.flush()
    normed = be.rms_norm(be.tensor(rows(rng, 1, 64)), gain, 1e-6)
    kept = be.linears(normed, joined)
    assert len(be._queue.tape) == 4, "the norm rounds its rows itself"
    assert be._queue.tape.n_runs == 2
    assert be.read(kept[0]).shape == (1, 24)


# ---- plans ----------------------------------------------------------------------------------------------------


def plan_of_ten(be: "VulkanBackend"):  # type: ignore[no-untyped-def]
    step = be.step_inputs(StepLimits(4, 4, 4, 1))
    table = be.weight(random_tensor("F32", (9, 64), np.random.default_rng(2)))

    def forward():  # type: ignore[no-untyped-def]
        x = be.embed(table, step)
        for _ in range(10):
            x = be.scale(x, 1.5)
        return x

    step.ids[:3], step.counts[:] = (3, 1, 8), (3, 1, 1)
    return be.record(forward, step), step


def test_a_long_plan_is_cut_into_pieces(be: "VulkanBackend") -> None:
    plan, _ = plan_of_ten(be)
    plan.run()
    whole = np.array(be.read(plan.result))
    tape = plan._queue.tape
    for n in (2, 5, 400):
        recording = tape.record(n_segments=n)
        recording.run()
        recording.wait()
        np.testing.assert_array_equal(whole, be.read(plan.result))
    plan._n_segments, plan._is_long = 7, lambda recording: True
    plan.run()
    np.testing.assert_array_equal(whole, be.read(plan.result))


def test_a_plan_may_go_while_it_runs(be: "VulkanBackend") -> None:
    for _ in range(5):
        plan, step = plan_of_ten(be)
        plan.run()
        del plan, step
        gc.collect()
    plan, _ = plan_of_ten(be)
    plan.run()
    plan.run()
    assert np.isfinite(be.read(plan.result)).all()


def test_inputs_may_be_rewritten_once_a_run_has_begun(be: "VulkanBackend") -> None:
    plan, step = plan_of_ten(be)
    plan.run()
    first = np.array(be.read(plan.result))
    plan.run()
    step.ids[:] = 0
    np.testing.assert_array_equal(first, be.read(plan.result))
    plan.run()
    assert not np.array_equal(first, be.read(plan.result))


def test_ids_outside_of_the_table_are_refused(be: "VulkanBackend") -> None:
    plan, step = plan_of_ten(be)
    step.ids[1] = 9
    with pytest.raises(GenerateError, match="the lowest is 3, the highest 9"):
        plan.run()


def test_a_tensor_outlives_what_comes_after_it(be: "VulkanBackend") -> None:
    """Plans share memory with each other, never with tensors that are still there."""
    plan, _ = plan_of_ten(be)
    kept = be.scale(be.tensor(np.full((4, 64), 3.0, np.float32)), 1.0)
    be.flush()
    plan.run()
    assert (be.read(kept) == 3).all()


# ---- memory ---------------------------------------------------------------------------------------------------


def test_a_full_device_says_so(be: "VulkanBackend") -> None:
    with pytest.raises(native.DeviceFull, match=r"has not enough memory to take 1\d{9} MB"):
        native.Buffer(be.device, 10**15, native.Home.DEVICE)
    free, total = be.device.memory_bytes()
    assert 0 < free <= total


def test_copies_stay_inside_their_memory(be: "VulkanBackend") -> None:
    buffer = native.Buffer(be.device, 64, native.Home.DEVICE)
    staging = native.Buffer(be.device, 16, native.Home.HOST)
    for call in (
        lambda: buffer.write(60, np.zeros(8, np.uint8), staging),
        lambda: buffer.read(2**63, np.zeros(8, np.uint8), staging),
        lambda: buffer.fill(0, 68, 0),
        lambda: buffer.copy(staging, [(0, 56, 16)]),
        lambda: buffer.copy(staging, [(8, 0, 2**64 - 4)]),
    ):
        with pytest.raises(native.DeviceError, match="A copy reaches beyond its memory"):
            call()


def test_bytes_go_by_way_of_small_staging(be: "VulkanBackend") -> None:
    buffer = native.Buffer(be.device, 4096, native.Home.DEVICE)
    other = native.Buffer(be.device, 4096, native.Home.DEVICE)
    staging = native.Buffer(be.device, 48, native.Home.HOST)
    content = np.random.default_rng(3).integers(0, 256, 4000, np.uint8)
    buffer.write(16, content, staging)
    other.copy(buffer, [(16, 0, 2000), (2016, 2000, 2000)])
    found = np.empty(4000, np.uint8)
    other.read(0, found, staging)
    np.testing.assert_array_equal(found, content)


# ---- no other backend computes --------------------------------------------------------------------------------


def test_no_kernel_of_the_cpu_runs(tmp_path: Path) -> None:
    """A family in a process whose CPU backend has lost its threads, tapes and matrices."""
    folder = write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"]))
    code = (
        "from tahr import _native\n_native.Tape = _native.Pool = _native.Matrix = None\n"
        "from pathlib import Path\nfrom model_runs import greedy\n"
        "from tahr.backends.vulkan.backend import VulkanBackend\n"
        "from tahr.models.loader import load, open_model\n"
        f"be = VulkanBackend()\nmodel = load(open_model([], Path({str(folder)!r})), be)\n"
        f"print(greedy(model, be, {token_ids()[:5]}, 4))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    done = subprocess.run(python_here("-c", code), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(token_ids()[:5])[:-1])


def test_attention_without_any_key_before(be: "VulkanBackend") -> None:
    """The first token of a text sees itself alone."""
    shape = KVShape(1, 16)
    step = be.step_inputs(StepLimits(1, 1, 1, 1))
    step.counts[:] = 1, 1, 1
    step.query_start[:2], step.seq_lens[:, 0] = (0, 1), 1
    kv = backends_here.kv_store(be, [shape], [1], 8, "f32")
    rng = np.random.default_rng(0)
    q, k, v = (rows(rng, 1, 16) for _ in range(3))
    rotation = Rotation(be.cos_sin(step, Rope(np.zeros(8, np.float32))), "halves")
    memory = LayerMemory(step, kv, 0)
    turned = be.rope_and_cache([be.tensor(q), be.tensor(k), be.tensor(v)], rotation, memory)
    np.testing.assert_array_equal(be.read(be.attention(turned, AttentionSpec(1.0), memory)), v)

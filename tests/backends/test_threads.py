"""The thread pool: any number of threads, no work while idle, callers that take turns, a clean end."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from backends_here import kv_store
from random_weights import random_tensor
from tahr.backends import describe_devices, open_backend
from tahr.backends.api import AttentionSpec, KVShape, LayerMemory, Linear, Rotation, StepLimits
from tahr.errors import ConfigError, GenerateError

pytestmark = pytest.mark.serial

native = pytest.importorskip("tahr._native", reason="the native code is not built")

PROCESS = Path("/proc/self")
needs_proc = pytest.mark.skipif(not PROCESS.is_dir(), reason="this system has no /proc to count threads and pages in")


def os_threads() -> set[str]:
    return {task.name for task in (PROCESS / "task").iterdir()}


@needs_proc
def test_threads_are_as_many_as_asked_for_and_end_with_the_pool() -> None:
    before = os_threads()
    pool = native.Pool(5)
    ours = os_threads() - before
    assert len(ours) == 4  # the caller is the fifth
    del pool
    deadline = time.monotonic() + 5  # a joined thread may stay listed for a moment
    while ours & os_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not ours & os_threads()


@pytest.mark.parametrize("n_threads", [0, -3, 100_000])
def test_absurd_numbers_of_threads_are_refused(n_threads: int) -> None:
    with pytest.raises(ConfigError, match="threads"):
        open_backend("cpu", n_threads=n_threads)


def test_a_plan_runs_without_the_interpreter() -> None:
    """A C caller that holds Python's lock all the time would wait for ever if the pool needed it."""
    from tahr.backends.cpu.queue import CpuPlan

    be, rng = open_backend("cpu", n_threads=3), np.random.default_rng(1)
    w, x = be.weight(random_tensor("F32", (64, 32), rng)), be.tensor(np.zeros((5, 32), np.float32))
    plan = be.record(lambda: be.linear(x, Linear(w)), be.step_inputs(StepLimits(5, 1, 5, 1)))
    assert isinstance(plan, CpuPlan)
    function, tape, pool = plan.native_call()
    run = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(function)
    for _ in range(3):
        rows = rng.standard_normal((5, 32)).astype(np.float32)
        x.data.floats()[:] = rows
        run(tape, pool)
        np.testing.assert_array_equal(be.read(plan.result), be.read(be.linear(be.tensor(rows), Linear(w))))


def test_the_reference_has_no_threads() -> None:
    with pytest.raises(ConfigError, match="threads"):
        open_backend("reference", n_threads=2)


def test_an_absent_backend_is_an_error() -> None:
    with pytest.raises(ConfigError, match="abacus"):
        open_backend("abacus")


def test_an_absent_instruction_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAHR_CPU_ISA", "altivec")
    with pytest.raises(ConfigError, match="altivec"):
        open_backend("cpu")


def test_devices_say_what_was_found_and_chosen() -> None:
    text = "\n".join(describe_devices())
    assert text.count("(default)") == 1
    assert native.isas()[0] in text and "threads" in text


def sums(n_threads: int, n_rounds: int) -> np.ndarray:
    """A chain of ops in which a missing barrier would let a thread read what another has not written yet."""
    be = open_backend("cpu", n_threads=n_threads)
    x = be.tensor(np.arange(64 * 257, dtype=np.float32).reshape(64, 257) % 7)
    gain = be.vector(np.ones(257, np.float32))
    for _ in range(n_rounds):
        x = be.add(be.rms_norm(x, gain, 1e-5), x, 0.5)
    return np.array(be.read(x))


@pytest.mark.parametrize("n_threads", [2, 3, 16])  # 16: far more than cores
def test_barriers_hold_when_oversubscribed(n_threads: int) -> None:
    np.testing.assert_array_equal(sums(1, 200), sums(n_threads, 200))


BUSY = "while True: pass"


def test_threads_beside_busy_processes_do_not_wait_for_their_time_slices() -> None:
    """One thread does the work of all where they would wait for each other at every op; the bits are the same."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        time.sleep(0.2)
        began = time.perf_counter()
        beside = sums(2, 4000)
        assert time.perf_counter() - began < 12  # 1 to 2 s; 56 s where threads only yield
    finally:
        for each in busy:
            each.kill()
            each.wait()
    np.testing.assert_array_equal(sums(1, 4000), beside)


def test_an_idle_pool_takes_no_time() -> None:
    be = open_backend("cpu", n_threads=2)
    be.read(be.scale(be.tensor(np.ones((4, 64), np.float32)), 2.0))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_callers_take_turns_on_one_pool() -> None:
    pool = native.Pool(2)
    results: list[np.ndarray] = []

    def work(seed: int) -> None:
        be = open_backend("cpu", n_threads=1)
        be.pool = pool  # type: ignore[attr-defined]
        x = np.full((8, 512), seed, np.float32)
        for _ in range(50):
            x = np.array(be.read(be.add(be.tensor(x), be.tensor(np.ones_like(x)))))
        results.append(x - seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all((result == 50).all() for result in results)


def test_other_python_threads_run_during_a_step() -> None:
    be, rng = open_backend("cpu", n_threads=1), np.random.default_rng(0)
    w = be.weight(random_tensor("F32", (2048, 2048), rng))
    x = be.tensor(rng.standard_normal((256, 2048)).astype(np.float32))
    plan = be.record(lambda: be.linear(x, Linear(w)), be.step_inputs(StepLimits(1, 1, 1, 1)))
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    plan.run()
    end = time.perf_counter()
    done.set()
    ticker.join()
    assert sum(begin < t < end for t in ticks) > 3


def test_ids_outside_of_the_table_are_refused_before_they_are_read() -> None:
    be = open_backend("cpu", n_threads=1)
    table = be.weight(random_tensor("Q8_0", (10, 32), np.random.default_rng(0)))
    step = be.step_inputs(StepLimits(4, 1, 1, 1))
    step.counts[:] = 2, 1, 1
    plan = be.record(lambda: be.embed(table, step), step)
    for bad in (10, -1, 2**31 - 1):
        step.ids[1] = bad
        with pytest.raises(GenerateError, match="token id"):
            plan.run()
    step.ids[1] = 9
    plan.run()


@needs_proc
def test_memory_of_dead_tensors_is_used_again() -> None:
    be = open_backend("cpu", n_threads=1)
    n_rows, width = 1024, 4096  # 16 MB a tensor

    def chain() -> "object":
        x = be.tensor(np.zeros((n_rows, width), np.float32))
        for _ in range(40):
            x = be.scale(x, 1.0)
        return x

    before = resident_bytes()
    plan = be.record(chain, be.step_inputs(StepLimits(1, 1, 1, 1)))  # type: ignore[arg-type]
    plan.run()
    assert resident_bytes() - before < 6 * n_rows * width * 4


def resident_bytes() -> int:
    return int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("n_threads", [2, 3, 5, 16])
@pytest.mark.parametrize("n", [400, 1300])  # one span of tokens, and several
@pytest.mark.parametrize(("n_q", "n_kv"), [(6, 2), (8, 1)])
def test_decode_equals_the_same_row_of_a_prefill(n_threads: int, n: int, n_q: int, n_kv: int) -> None:
    """Few queries are shared out by spans of tokens, and cut where threads would wait, many by queries: same bits."""
    be, rng = open_backend("cpu", n_threads=n_threads), np.random.default_rng(1)
    page, shape = 16, KVShape(n_kv, 32)
    kv = kv_store(be, [shape], [100], page, "f16")
    step = be.step_inputs(StepLimits(n, 1, 1, 90))
    q, k, v = (rng.standard_normal((n, heads * 32)).astype(np.float32) for heads in (n_q, n_kv, n_kv))
    step.page_table[0, 0] = rng.permutation(100)[:90]
    angles = be.tensor(np.repeat(np.array([[1.0, 0.0]], np.float32), n, axis=0))

    def run(begin: int, window: int) -> np.ndarray:
        where = np.arange(begin, n)
        step.counts[:] = n - begin, 1, 1
        step.positions[: n - begin] = where
        step.slot_mapping[0, : n - begin] = step.page_table[0, 0][where // page] * page + where % page
        step.query_start[1], step.seq_lens[:, 0] = n - begin, n
        some = [be.tensor(a[begin:]) for a in (q, k, v)]
        turned = be.rope_and_cache(some, Rotation(angles, "halves"), LayerMemory(step, kv, 0))
        return np.array(be.read(be.attention(turned, AttentionSpec(0.2, window), LayerMemory(step, kv, 0))))

    for window in (0, 700):
        whole = run(0, window)
        for begin in (n - 1, n - 2, n - 5, n - 9, n - 16, n - 40):
            np.testing.assert_array_equal(whole[begin:], run(begin, window))


ENDS_EARLY = """
import asyncio, sys
from tahr import AsyncLLM, EngineConfig, SamplingParams

async def main():
    llm = AsyncLLM(sys.argv[1], config=EngineConfig(n_threads=2))
    endless = SamplingParams(temperature=0, max_tokens=450, ignore_eos=True)
    kept.extend([llm, *[await llm.submit("Once upon a time", endless) for _ in range(8)]])
    raise SystemExit(3)

kept = []
asyncio.run(main())
"""


def test_a_process_that_ends_while_requests_run_ends_as_it_wants_to(stories: Path) -> None:
    """The engine's thread is in native code then, and the interpreter must not be gone when it comes back."""
    ended = subprocess.run([sys.executable, "-c", ENDS_EARLY, str(stories)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (3, "")


DAEMON = """
import sys, threading
from tahr import LLM, EngineConfig, SamplingParams

def work():
    while True:
        llm.generate(["Once upon a time"] * 8, endless, progress=False)

llm = LLM(sys.argv[1], config=EngineConfig(n_threads=2))
endless = SamplingParams(temperature=0, max_tokens=450, ignore_eos=True)
threading.Thread(target=work, daemon=True).start()
while llm.stats().steps < 20:
    pass
raise SystemExit(3)
"""


def test_a_process_ends_as_it_wants_to_while_a_daemon_thread_generates(stories: Path) -> None:
    """Python would unwind the thread's stack when it comes back, and C++ aborts where that reaches a destructor."""
    ended = subprocess.run([sys.executable, "-c", DAEMON, str(stories)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (3, "")

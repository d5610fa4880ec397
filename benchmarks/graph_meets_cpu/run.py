"""One layer of experts on the CPU inside a captured CUDA graph: equal bits, no deadlock, microseconds.

usage: benchmarks/graph_meets_cpu/run.py [THREADS] [ARCH]      (default: 14 sm_90)

Builds `meeting.cu` with nvcc. The layer is Qwen3-30B-A3B's: 128 experts of 768, 8 of them active, rows of 2,048. The
graph posts rows and router scores into pinned memory, a C++ thread runs a tape of the CPU backend, the graph waits.
Every request has other rows, so that experts come from memory. Ends with status 1 if a bit differs from what the
backend computes without a graph, or if the device waits in vain.
"""

import ctypes
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from tahr._native import address_of
from tahr.backends.api import ExpertMLPs, Linear, Routing, StepLimits
from tahr.backends.cpu.backend import CpuBackend
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_EXPERTS, N_ACTIVE, N_FFN, WIDTH, N_LAYERS = 128, 8, 768, 2048, 48
N_SETS = {1: 64, 4: 32, 32: 8}  # by the rows of a request: requests that differ
N_BESIDE, N_HOLDING = 10_000, 1_000  # replays beside a busy Python thread, and by a thread that holds Python's lock
WAITS = {0: "polled", 1: "stream wait"}
ROUND_S = 1.5  # of a measurement, about


class Tape(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("run", "tape", "pool", "rows", "scores", "result"))


class Options(ctypes.Structure):
    COUNTS = ("n_blocks", "n_sets", "n_meetings", "waits", "n_values", "n_scores")
    _fields_ = (*((name, ctypes.c_int) for name in COUNTS), ("tape", Tape), ("requests", ctypes.c_void_p))


def build(arch: str, folder: str) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The library, once as others call it, once for calls that keep Python's lock."""
    source, path = Path(__file__).with_name("meeting.cu"), f"{folder}/meeting.so"
    flags = ["-O2", "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", "-ldl"]
    subprocess.run(["nvcc", *flags, source, "-o", path], check=True)
    libraries = ctypes.CDLL(path), ctypes.PyDLL(path)
    for library in libraries:
        library.meeting_open.restype = ctypes.c_void_p
    return libraries


def seconds(work: Callable[[], object]) -> float:
    """The median of as many calls as a measurement has time for."""
    times: list[float] = []
    while sum(times) < ROUND_S:
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times)


class Layer:
    """A layer's experts as a tape for so many rows, with requests and the results of the backend itself."""

    def __init__(self, be: CpuBackend, mlps: ExpertMLPs, n_rows: int):
        n_sets, rng = N_SETS[n_rows], np.random.default_rng(2)
        self.n_rows = n_rows
        self.rows = rng.standard_normal((n_sets, n_rows, WIDTH), np.float32)
        self.scores = rng.standard_normal((n_sets, n_rows, N_EXPERTS), np.float32)
        pairs = [(be.tensor(x), be.tensor(scores)) for x, scores in zip(self.rows, self.scores, strict=True)]
        self.expected = np.stack([np.array(be.read(be.experts(*pair, mlps))) for pair in pairs])
        assert np.isfinite(self.expected).all() and self.expected.any(axis=(1, 2)).all()
        self.inputs, self._turn = pairs[0], 0
        self.plan = be.record(lambda: be.experts(*self.inputs, mlps), be.step_inputs(StepLimits(n_rows, 1, n_rows, 1)))
        buffers = [tensor.data.address for tensor in (*self.inputs, self.plan.result)]
        self.tape = Tape(*self.plan.native_call(), *buffers)  # type: ignore[attr-defined]

    def run(self) -> None:
        """The tape on the next request, without a graph."""
        self._turn = (self._turn + 1) % len(self.rows)
        for tensor, values in zip(self.inputs, (self.rows, self.scores), strict=True):
            tensor.data.floats()[:] = values[self._turn]
        self.plan.run()


class Meetings:
    """A captured graph of so many meetings, and the thread that serves it: with a layer's tape, or with none."""

    def __init__(self, library: ctypes.CDLL, layer: Layer, n_meetings: int, waits: int, has_experts: bool = True):
        self._library, self._n_meetings = library, n_meetings
        self._expected = layer.expected if has_experts else layer.rows
        n_sets, tape = len(layer.rows), layer.tape if has_experts else Tape()
        requests = np.hstack([layer.rows.reshape(n_sets, -1), layer.scores.reshape(n_sets, -1)])
        counts = (layer.n_rows, n_sets, n_meetings, waits, layer.n_rows * WIDTH, layer.n_rows * N_EXPERTS)
        options = Options(*counts, tape, address_of(requests))
        self._handle = ctypes.c_void_p(library.meeting_open(ctypes.byref(options)))

    def replay(self, n: int, library: ctypes.CDLL | None = None) -> float:
        """Microseconds of a meeting, in replays one behind the other."""
        began = perf_counter()
        if failed := (library or self._library).meeting_replay(self._handle, n):
            sys.exit(f"FAILED: {('the device waited 20 s for the CPU', 'a result has changed')[failed - 1]}")
        return (perf_counter() - began) * 1e6 / (n * self._n_meetings)

    def close(self) -> None:
        """Check the bits of the results; all results of a request have been equal."""
        found = np.empty_like(self._expected)
        self._library.meeting_close(self._handle, ctypes.c_void_p(address_of(found)))
        if n_wrong := np.count_nonzero(found.view(np.uint32) != self._expected.view(np.uint32)):
            sys.exit(f"FAILED: {n_wrong} of {found.size} numbers differ from the CPU backend's")

    def microseconds(self) -> float:
        """Of a meeting, where all requests have been met once."""
        self.replay(1 + len(self._expected) // self._n_meetings)
        median_us = seconds(lambda: self.replay(4)) * 1e6 / (4 * self._n_meetings)
        self.close()
        return median_us


@contextmanager
def busy_python() -> Iterator[list[int]]:
    """A thread that computes in Python all the time; how often it went round."""
    closing, turns = threading.Event(), [0]

    def spin() -> None:
        while not closing.is_set():
            turns[0] += 1

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    yield turns
    closing.set()
    thread.join()


def show_times(library: ctypes.CDLL, layer: Layer) -> None:
    line = f"  {layer.n_rows:2} rows: tape alone {seconds(layer.run) * 1e6:8.1f} us"
    for waits, name in WAITS.items():
        in_graph = Meetings(library, layer, 8, waits).microseconds()
        bare = Meetings(library, layer, N_LAYERS, waits, has_experts=False).microseconds()
        line += f"; {name} {in_graph:8.1f}, without experts {bare:5.1f}"
    print(line, flush=True)


def show_beside_python(library: ctypes.CDLL, holding: ctypes.CDLL, layer: Layer) -> None:
    """Replays while Python's lock is hardly ever free, and while the thread that waits for the device holds it."""
    for waits, name in WAITS.items():
        graph = Meetings(library, layer, 1, waits)
        with busy_python() as turns:
            beside_us = graph.replay(N_BESIDE)
        print(f"  {N_BESIDE} replays, {name}, beside busy Python ({turns[0]} turns): {beside_us:.1f} us", flush=True)
        print(f"  {N_HOLDING} replays, {name}, holding Python's lock: {graph.replay(N_HOLDING, holding):.1f} us")
        graph.close()


def random_experts(be: CpuBackend, form: str) -> ExpertMLPs:
    """Stacks of random matrices with values of about the usual size."""
    kind, rng, linears = FORMATS[form], np.random.default_rng(1), []
    for n_rows, n_cols in ((N_FFN, WIDTH), (N_FFN, WIDTH), (WIDTH, N_FFN)):
        shape = (N_EXPERTS, n_rows, n_cols)
        blocks = rng.integers(0, 256, (int(np.prod(shape)) // kind.block, kind.block_bytes), np.uint8)
        if form == "BF16":
            blocks[:, 1] = blocks[:, 1] & 0x80 | 0x3C  # +-2^-7 to 2^-5
        else:
            blocks[:, :2] = np.array([0.002], np.float16).view(np.uint8)  # the scale
        linears.append(Linear(be.weight(HostTensor("experts", kind, shape, blocks.reshape(-1)))))
    return ExpertMLPs(*linears, Routing(N_ACTIVE, renormalise=True), "silu")


def main(n_threads: int = 14, arch: str = "sm_90") -> None:
    be = CpuBackend(n_threads)
    with tempfile.TemporaryDirectory() as folder:
        library, holding = build(arch, folder)
    for form in ("BF16", "Q4_0"):
        mlps = random_experts(be, form)
        megabytes = sum(linear.weight.n_bytes for linear in (mlps.gate, mlps.up, mlps.down)) / N_EXPERTS / 1e6
        print(f"{be.summary}; experts in {form}, {megabytes:.2f} MB each; us a layer:", flush=True)
        for n_rows in N_SETS:
            show_times(library, Layer(be, mlps, n_rows))
        show_beside_python(library, holding, Layer(be, mlps, 1))
    print("ok: every result has the bits of the CPU backend, and nobody waited in vain")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])

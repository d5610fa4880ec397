"""Experts in the host's memory beside a GPU: what a meeting takes, logits beside those of a resident model, and speed
beside what the memory of the host allows.

usage: benchmarks/gpu_experts.py [meetings] [logits] [speed] [--formats=Q4_0,BF16] [--requests=1,32]

`meetings` replays captured graphs whose experts are no work, and graphs of small experts beside a busy Python thread.
`logits` compares shapes of Qwen3-30B-A3B with few layers, `speed` has all 48, with random weights. Without any of them
all are done.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from gpu_cells import GREEDY, SHAPES, RandomBackend, Shape, make_source, serve
from gpu_offload import graph_logits, option
from tahr import _native as native
from tahr.backends.api import ExpertMLPs, Linear, Routing, Weight
from tahr.backends.cpu.expert_tapes import ExchangeSizes
from tahr.backends.cuda.backend import CudaBackend
from tahr.backends.cuda.host_experts import MOST_ROWS, HostExchange, HostExperts
from tahr.backends.cuda.kernels.meeting import ExpertRequest, receive, send
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.loading.builder import build_engine
from tahr.models.loader.load import load
from tahr.offload.expert_homes import HOST
from tahr.offload.homes import Home
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

SHAPE = SHAPES["30B-A3B"]
SEED, N_IN, N_OUT = 3, 16, 48
N_MEETINGS, N_A_REPLAY = 10_000, 20  # beside busy Python, whose lock each launch waits for
GPU_S = 0.002  # of a step of that shape, without its experts
READ_BYTES = 8 << 30
TOKEN_BYTES = 98_304  # keys and values of a token in 16 bits


def random_stack(name: str, form: str, shape: tuple[int, ...]) -> HostTensor:
    """Matrices with values of about the usual size."""
    kind = FORMATS[form]
    rng = np.random.default_rng(SEED)
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // kind.block, kind.block_bytes), np.uint8)
    if form == "BF16":
        blocks[:, 1] = blocks[:, 1] & 0x80 | 0x3C  # +-2^-7 to 2^-5
    else:
        scale = 0.002 if form == "Q4_0" else 0.0002
        blocks[:, :2] = np.array([scale], np.float16).view(np.uint8)
    return HostTensor(name, kind, shape, blocks.reshape(-1))


class ExpertsBackend(RandomBackend):
    """Random matrices, of experts the same ones for every layer, here or in the host's memory."""

    def __init__(self, form: str):
        super().__init__()
        self._form = form
        self._stacks: dict[tuple[int, ...], HostTensor] = {}
        self._taken: dict[tuple[int, ...], Weight] = {}

    def _stack(self, tensor: HostTensor) -> HostTensor:
        shape = tensor.shape
        if shape not in self._stacks:
            self._stacks[shape] = random_stack(tensor.name, self._form, shape)
        return replace(self._stacks[shape], name=tensor.name)

    def weight(self, tensor: HostTensor) -> Weight:
        if ".experts." not in tensor.name:
            return super().weight(tensor)
        if tensor.shape not in self._taken:
            self._taken[tensor.shape] = CudaBackend.weight(self, self._stack(tensor))
        return self._taken[tensor.shape]

    def weight_elsewhere(self, tensor: HostTensor, home: Home) -> Weight:
        return super().weight_elsewhere(self._stack(tensor), home)


def engine_of(shape: Shape, form: str, n_seqs: int, on_host: bool) -> tuple[Engine, ExpertsBackend]:
    """An engine around a model of random numbers, the same ones every time."""
    torch.manual_seed(SEED)
    backend = ExpertsBackend(form)
    source = make_source(shape)
    homes = {name: HOST for name in source.tensors if on_host and ".experts." in name}
    config = EngineConfig(
        context_size=512,
        max_batch_size=n_seqs,
        max_prefill_batch=n_seqs,
        prefix_cache=False,
        kv_bytes=n_seqs * (N_IN + N_OUT + 64) * TOKEN_BYTES + (64 << 20),
        admit_below=1.0,
    )
    loaded = load(source, backend, homes=homes)
    return build_engine(backend, loaded.decoder, config)[0], backend


# ---- meetings ---------------------------------------------------------------------------------------------------


def captured(step: "object", warm: int = 2) -> torch.cuda.CUDAGraph:
    """A graph of what a function launches."""
    for _ in range(warm):
        step()  # type: ignore[operator]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()  # type: ignore[operator]
    return graph


def bare_meetings(n_rows: int) -> float:
    """Microseconds of 48 meetings whose experts are no work."""
    device = torch.device("cuda")
    exchange = HostExchange(ExchangeSizes(MOST_ROWS, SHAPE.width, SHAPE.n_active, SHAPE.width), device, 10.0)
    tape, pool = native.Tape(native.isas()[0]), native.Pool(1)  # a tape without ops
    names = ("n_rows", "rows", "experts", "shares", "result")
    spare = {name: np.zeros(MOST_ROWS * SHAPE.width, np.float32) for name in names}
    where = {name: array.ctypes.data for name, array in spare.items()}
    exchange.worker.add(run=native.RUN_TAPE, tape=tape.address, pool=pool.address, n_experts=SHAPE.n_experts, **where)
    x = torch.randn(n_rows, SHAPE.width, device=device)
    experts = torch.zeros(n_rows, SHAPE.n_active, dtype=torch.int32, device=device)
    shares = torch.ones(n_rows, SHAPE.n_active, device=device)
    out = torch.empty_like(x)

    def step() -> None:
        for _ in range(SHAPE.n_layers):
            if not torch.cuda.is_current_stream_capturing():
                exchange.worker.expect(1)
            send(exchange.memory, ExpertRequest(x, experts, shares, 0, True, 1.0), None, 0)
            receive(exchange.memory, out)

    graph = captured(step)
    times = []
    for _ in range(300):
        began = time.perf_counter()
        exchange.worker.expect(SHAPE.n_layers)
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    assert exchange.worker.take_failure(0, exchange.worker.n_expected) == ""
    exchange.worker.close()
    return float(np.median(times) * 1e6)


def beside_python() -> None:
    """Meetings of small experts while a thread computes in Python all the time: none without an end, no other bit."""
    device = torch.device("cuda")
    host = HostExperts(device)
    shapes = {"gate": (16, 64, 128), "up": (16, 64, 128), "down": (16, 128, 64)}
    made = [Linear(host.weight(random_stack(name, "Q8_0", shape))) for name, shape in shapes.items()]
    mlps = ExpertMLPs(*made, Routing(4, renormalise=True), "silu")
    x, scores = torch.randn(2, 128, device=device), torch.randn(2, 16, device=device)
    out = [host.run(x, scores, mlps, None)]
    want = out[0].clone()

    def step() -> None:
        for _ in range(N_A_REPLAY):
            out[0] = host.run(x, scores, mlps, None)

    graph = captured(step)
    requests = host.take_captured()
    ends, turns = threading.Event(), [0]

    def spin() -> None:
        while not ends.is_set():
            turns[0] += 1

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    began = time.perf_counter()
    for _ in range(N_MEETINGS // N_A_REPLAY):
        for exchange, n in requests.items():
            exchange.worker.expect(n)
        graph.replay()
    host.step_check()()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    ends.set()
    thread.join()
    same = torch.equal(out[0], want)
    print(
        f"  {N_MEETINGS} meetings beside busy Python ({turns[0]} turns): {seconds * 1e6 / N_MEETINGS:.1f} us each, "
        f"{'the same bits' if same else 'OTHER BITS'}",
        flush=True,
    )


def show_meetings() -> None:
    for n_rows in (1, 4, 32):
        print(f"  {n_rows} rows: {bare_meetings(n_rows):.0f} us for 48 meetings without work", flush=True)
    beside_python()


# ---- logits -----------------------------------------------------------------------------------------------------


def logits_of(form: str, on_host: bool) -> dict[str, torch.Tensor]:
    """Logits of decode steps and of a prompt, from captured graphs."""
    engine, backend = engine_of(replace(SHAPE, n_layers=6), form, 32, on_host)
    buckets = engine.executor.executed[0].buckets[0]
    found = {}
    for n, n_in in ((1, 32), (32, 16), (1, 300)):
        serve(engine, [(n_in, 3)] * n, GREEDY)
        decode = next(i for i, b in enumerate(buckets) if b.n_tokens_per_seq == 1 and b.n_seqs >= n)
        found[f"decode of {n} behind {n_in}"] = graph_logits(engine, backend, decode)
    return found


def show_logits(form: str) -> None:
    resident = logits_of(form, on_host=False)
    torch.cuda.empty_cache()
    for name, found in logits_of(form, on_host=True).items():
        p, q = (torch.log_softmax(each.double(), dim=1) for each in (resident[name], found))
        kl = (p.exp() * (p - q)).sum(dim=1).mean().item()
        same = (p.argmax(dim=1) == q.argmax(dim=1)).double().mean().item()
        print(f"  {form} {name}: KL {kl:.6f}, greedy {same:.1%} the same", flush=True)


# ---- speed ------------------------------------------------------------------------------------------------------


def read_rate(n_threads: int) -> float:
    """Bytes/s that so many threads read of the host's memory."""
    numbers = np.ones(READ_BYTES // 8, np.uint64)
    parts = np.array_split(numbers, n_threads)
    best = 0.0
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(4):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, READ_BYTES / (time.perf_counter() - began))
    return best


def bound(form: str, n: int, rate: float, meetings_s: float) -> float:
    """Tokens/s at most, where rows choose experts alike."""
    matrix = FORMATS[form].n_bytes(SHAPE.width * SHAPE.n_ffn)
    share = 1 - (1 - SHAPE.n_active / SHAPE.n_experts) ** n
    n_bytes = SHAPE.n_layers * 3 * matrix * SHAPE.n_experts * share
    return n / (n_bytes / rate + GPU_S + meetings_s)


def show_speed(form: str, numbers: list[int], rate: float, meetings_s: float) -> None:
    began = time.perf_counter()
    engine, backend = engine_of(SHAPE, form, max(numbers), on_host=True)
    print(f"{form}, ready in {time.perf_counter() - began:.0f} s; {backend.summary}", flush=True)
    for n in numbers:
        for _ in range(2):
            serve(engine, [(N_IN, 4)] * n, GREEDY)
        times = serve(engine, [(N_IN, N_OUT)] * n, GREEDY)
        most = bound(form, n, rate, meetings_s)
        print(
            f"  {n} requests: {times.decode_rate:.1f} tok/s, {times.decode_rate / most:.0%} of {most:.1f}, the bound "
            "of rows that choose experts evenly",
            flush=True,
        )


def main() -> None:
    """What was asked for, or all."""
    print(torch.cuda.get_device_name(), flush=True)
    asked = {"meetings", "logits", "speed"} & set(sys.argv) or {"meetings", "logits", "speed"}
    forms = option("formats", "Q4_0,BF16").split(",")
    if "meetings" in asked:
        show_meetings()
    for form in forms if "logits" in asked else ():
        show_logits(form)
    if "speed" in asked:
        meetings_s = bare_meetings(1) / 1e6
        rate = read_rate(14)
        print(f"14 threads read {rate / 1e9:.0f} GB/s of the host's memory", flush=True)
        for form in forms:
            show_speed(form, list(map(int, option("requests", "1,32").split(","))), rate, meetings_s)


if __name__ == "__main__":
    main()

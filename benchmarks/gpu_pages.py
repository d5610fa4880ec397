"""KV pages to the host and back: GB/s and the host's time per call, for the pages of an 8B model.

usage: benchmarks/gpu_pages.py [--dtype bf16] [--pages 1,4,16,64]

GB/s is that of calls one behind the other, until the last ticket is collected; latency that of one call alone.
The host's time is then shown by function.
Ends with status 1 if a byte differs after pages were stored, overwritten and loaded elsewhere.
"""

import argparse
import cProfile
import pstats
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter

import torch

from tahr.backends import open_backend
from tahr.backends.api import HostPage, KVShape, KVStore, MemoryLayout, PageIO, Ticket
from tahr.backends.cuda.pages import CudaPageIO
from tahr.config import EngineConfig

N_LAYERS, SHAPE, N_PAGES = 36, KVShape(8, 128), 512
BATCH_BYTES = 1 << 30  # of calls one behind the other
PINNED = 4 << 30
N_ROUNDS = 50
N_PROFILED = 20  # calls
LEAST_RATE = {1: 35.0, 16: 50.0}  # GB/s, by pages of a call
MOST_HOST_MS = 0.1

Begin = Callable[[int], Ticket]  # the i-th copy


def fill(kv: KVStore) -> None:
    for layer in kv.layers:
        layer.view(torch.uint8).random_(0, 256)


def overlapping(begin: Begin, n_calls: int) -> tuple[float, list[float]]:
    """Seconds until all calls have ended, and seconds of the host in each."""
    torch.cuda.synchronize()
    tickets, host_s = [], []
    began = perf_counter()
    for i in range(n_calls):
        before = perf_counter()
        tickets.append(begin(i))
        host_s.append(perf_counter() - before)
    for ticket in tickets:
        ticket.collect()
    torch.cuda.current_stream().synchronize()
    return perf_counter() - began, host_s


def alone(begin: Begin) -> float:
    return overlapping(begin, 1)[0]


def measure(name: str, begin: Begin, n: int, page_bytes: int) -> None:
    n_calls = max(2, min(N_PAGES, BATCH_BYTES // page_bytes) // n)
    for _ in range(2):
        overlapping(begin, n_calls)  # pins memory, compiles kernels
    rounds = [overlapping(begin, n_calls) for _ in range(N_ROUNDS)]
    rate = n * page_bytes * n_calls / median(seconds for seconds, _ in rounds) / 1e9
    host_ms = median(each for _, host_s in rounds for each in host_s) * 1e3
    latency_ms = median(alone(begin) for _ in range(N_ROUNDS)) * 1e3
    target = LEAST_RATE.get(n)
    notes = [f"target {target:.0f}: {'met' if rate >= target else 'MISSED'}"] if target else []
    notes += [] if host_ms <= MOST_HOST_MS else [f"host MISSED {MOST_HOST_MS} ms"]
    print(f"  {name:12} {n:3} pages: {rate:6.1f} GB/s, host {host_ms:.3f} ms a call, alone {latency_ms:.3f} ms  "
          f"{'; '.join(notes)}", flush=True)  # fmt: skip


def show_host_time(name: str, begin: Begin) -> None:
    """Where the time of calls goes, whose tickets are collected one by one."""
    profile = cProfile.Profile()
    for i in range(N_PROFILED):
        profile.enable()
        ticket = begin(i)
        profile.disable()
        ticket.collect()
        torch.cuda.synchronize()
    print(f"  {name}: {N_PROFILED} calls, profiled")
    stats = pstats.Stats(profile, stream=sys.stdout).strip_dirs()
    stats.sort_stats("tottime").print_stats(14)


def places(n: int) -> Iterator[list[int]]:
    """Pages of a call, scattered over the memory."""
    order = torch.randperm(N_PAGES, generator=torch.Generator().manual_seed(n)).tolist()
    while True:
        yield from (order[at : at + n] for at in range(0, N_PAGES - n + 1, n))


def stores(io: PageIO, chosen: Iterator[list[int]]) -> Begin:
    return lambda i: io.store(next(chosen))


def loads(io: PageIO, into: Iterator[list[int]], contents: list[Sequence[HostPage]]) -> Begin:
    return lambda i: io.load(next(into), 0, contents[i % len(contents)])


def differing(io: PageIO, kv: KVStore, n: int) -> int:
    """Bytes that differ where pages were loaded that had been stored, and overwritten while they travelled."""
    fill(kv)
    chosen = torch.randperm(N_PAGES).tolist()
    pages, elsewhere = chosen[:n], chosen[n : 2 * n]
    before = [layer[:, pages].clone() for layer in kv.layers]
    ticket = io.store(pages)
    fill(kv)
    io.load(elsewhere, 0, ticket.collect()).collect()
    pairs = zip(kv.layers, before, strict=True)
    return sum(int((layer[:, elsewhere].view(torch.uint8) != old.view(torch.uint8)).sum()) for layer, old in pairs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--pages", default="1,4,16,64")
    requested = parser.parse_args()
    be = open_backend("cuda")
    page_size = EngineConfig().page_size
    kv = be.kv_store(MemoryLayout((SHAPE,) * N_LAYERS, (N_PAGES,), page_size, requested.dtype))
    page_bytes = kv.n_bytes // N_PAGES
    io = be.page_io(kv, PINNED)
    assert isinstance(io, CudaPageIO)
    pages = f"pages of {page_size} tokens in {requested.dtype}: {page_bytes / 1e6:.2f} MB each"
    print(f"{be.summary}; {N_LAYERS} layers, {pages}")
    wrong = 0
    for n in map(int, requested.pages.split(",")):
        chosen, into = places(n), places(n)
        contents: list[Sequence[HostPage]] = [io.store(next(chosen)).collect() for _ in range(max(2, 64 // n))]
        store = stores(io, chosen)
        load = loads(io, into, contents)
        measure("store", store, n, page_bytes)
        measure("load", load, n, page_bytes)
        if n in LEAST_RATE:
            show_host_time(f"store {n}", store)
            show_host_time(f"load {n}", load)
        contents.clear()
        wrong += differing(io, kv, n)
    print("FAILED: bytes differ" if wrong else "ok: stored, overwritten, loaded elsewhere: every byte is the same")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

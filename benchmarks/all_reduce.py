"""Sums of rows over processes: Tahr's shared memory beside gloo, in turns, so that both meet the same machine.

    .venv-parity/bin/python benchmarks/all_reduce.py [--ranks 2] [--no-gloo]

Rank 0 prints microseconds of one sum: the best and the median of many, for each size.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from tahr._native import address_of
from tahr.executor.ranks.region import Region, RegionSizes, new_region

SIZES = (4 << 10, 16 << 10, 256 << 10, 4 << 20)  # bytes
N_TURNS = 300
N_ROUNDS = 5


def times(work: Callable[[], object], n: int) -> list[float]:
    found = []
    for _ in range(n):
        began = time.perf_counter()
        work()
        found.append(1e6 * (time.perf_counter() - began))
    return found


def rank_of(rank: int, n_ranks: int, descriptor: int, port: int) -> None:
    """The work of one rank; the first one prints."""
    region = Region(descriptor, RegionSizes(n_ranks, 1, 1, max(SIZES)))
    meeting = region.meeting(rank, 60.0)
    ways = ["tahr"]
    if port:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=n_ranks)
        ways.append("gloo")
    for size in SIZES:
        x = np.ones(size // 4, np.float32)
        out = np.zeros_like(x)
        work: dict[str, Callable[[], object]] = {
            "tahr": lambda x=x, out=out: meeting.all_reduce(address_of(x), len(x), address_of(out))
        }
        if port:
            tensor = torch.zeros(len(x))
            work["gloo"] = lambda tensor=tensor: dist.all_reduce(tensor)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(N_ROUNDS):
            for way in ways:
                spent[way] += times(work[way], N_TURNS if size < 1 << 20 else N_TURNS // 10)
        if rank == 0:
            said = [f"{way} best {min(spent[way]):.1f} median {statistics.median(spent[way]):.1f} us" for way in ways]
            ratio = f", median ratio {statistics.median(spent['gloo']) / statistics.median(spent['tahr']):.1f}"
            print(f"{n_ranks} ranks, {size >> 10} KB: {'; '.join(said)}{ratio if port else ''}", flush=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_of(*json.loads(args.rank))
        return
    region = new_region(RegionSizes(args.ranks, 1, 1, max(SIZES)))
    port = 0 if args.no_gloo else free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", json.dumps([rank, args.ranks, region.descriptor, port])],
            pass_fds=(region.descriptor,),
        )
        for rank in range(args.ranks)
    ]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()

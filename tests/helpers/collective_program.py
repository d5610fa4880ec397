"""A rank that takes part in sums of random numbers again and again, and writes out the last of each length."""

import json
import sys

import numpy as np

from tahr._native import address_of
from tahr.executor.ranks.region import Region, RegionSizes

if __name__ == "__main__":
    descriptor, n_ranks, rank, lengths, n_turns = json.loads(sys.argv[1])
    region = Region(descriptor, RegionSizes(n_ranks, 1, 1, 4 * max(lengths)))
    meeting = region.meeting(rank, 60.0)
    for n in lengths:
        mine = np.random.default_rng([rank, n]).standard_normal(n).astype(np.float32)
        out = np.zeros(n, np.float32)
        for _ in range(n_turns):
            out[:] = 0
            assert not meeting.all_reduce(address_of(mine), n, address_of(out))
        sys.stdout.buffer.write(out.tobytes())

"""A model run in stages, each on its own backend with the memory of its layers; rows cross by way of the host."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from model_runs import Part, Runs
from tahr.backends.api import Backend, KVStore, Tensor
from tahr.models.loader import Loaded
from tahr.models.parts.stages import Carried


class StagedRuns:
    """Stages in order: `cuts` are the first layers of all but the first."""

    def __init__(self, loaded: Sequence[Loaded], backends: Sequence[Backend], cuts: Sequence[int], n_seqs: int = 1):
        ends = [0, *cuts, len(loaded[0].decoder.layers)]
        self.ranges = [range(begin, end) for begin, end in pairwise(ends)]
        self.decoders = [one.decoder for one in loaded]
        self.backends = backends
        self.runs = Runs(loaded[0], backends[0], n_seqs=n_seqs)
        layout = self.runs.kv.layout
        self.stores: list[KVStore] = [
            backend.kv_store(layout.part(layers)) for backend, layers in zip(backends, self.ranges, strict=True)
        ]

    def eager(self, parts: Sequence[Part]) -> np.ndarray:
        """Logits of every token of one step."""
        backend = self.backends[-1]
        return backend.read(self.decoders[-1].logits(backend, self.carried(parts).rows)).copy()

    def hidden(self, parts: Sequence[Part]) -> np.ndarray:
        """Hidden rows of every token of one step."""
        return self.backends[-1].read(self.carried(parts).rows).copy()

    def carried(self, parts: Sequence[Part]) -> Carried:
        """What the last stage computes."""
        carried = None
        for i, backend in enumerate(self.backends):
            step = backend.step_inputs(self.runs.limits)
            self.runs.fill(step, parts)
            here = crossed(carried, self.backends[i - 1], backend) if carried else None
            carried = self.decoders[i].stage(backend, step, self.stores[i], self.ranges[i], here)
        assert carried
        return carried


def crossed(carried: Carried, source: Backend, to: Backend) -> Carried:
    """The same numbers on another backend."""

    def moved(tensor: Tensor) -> Tensor:
        return to.tensor(source.read(tensor).copy())

    return Carried(moved(carried.rows), moved(carried.per_layer) if carried.per_layer else None)

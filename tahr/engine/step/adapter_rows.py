"""Writes which rows of a step meet which adapters, grouped by adapter; the same as before while nothing changes."""

from collections.abc import Sequence as ListOf
from itertools import accumulate, groupby
from operator import itemgetter

from tahr.backends.api import LORA_TILE, MAX_STACK, LoraRows, Rows
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.adapter_stack import AdapterStack
from tahr.executor.protocol import AdapterPort


class AdapterRows:
    """The adapter rows of an executor, filled for one step after the other."""

    def __init__(self, adapters: AdapterPort):
        self._tokens = adapters.rows(Rows.TOKENS)
        self._logits = adapters.rows(Rows.LOGITS)
        self.n_rounds = 0  # rounds of the last step: 0 if none of its sequences has an adapter
        self._filled: tuple[list[AdapterStack], ListOf[int], ListOf[int]] = ([], (), ())

    def forget(self) -> None:
        """The rows of the last step may not have reached the device."""
        self._filled = ([], (), ())

    def fill(self, work: StepWork) -> tuple[int, bool]:
        """How many rounds the step needs: 0, 1 or `MAX_STACK`, because each number has plans of its own.

        And whether the rows are others than those of the step before.
        """
        stacks = [seq.adapters.stack for seq in work.sequences]
        wanted = stacks, work.n_tokens, work.n_rows
        if wanted == self._filled:
            return self.n_rounds, False
        self._filled = wanted
        most = max(len(stack.parts) for stack in stacks)
        self.n_rounds = most if most < 2 else MAX_STACK
        if most:
            write(self._tokens, stacks, work.n_tokens)
            write(self._logits, stacks, work.n_rows)
        return self.n_rounds, most > 0


def write(rows: LoraRows, stacks: ListOf[AdapterStack], counts: ListOf[int]) -> None:
    """Group the rows of sequences, of which sequence s has counts[s], by the adapter they meet in each round."""
    begins = [0, *accumulate(counts)]
    rows.n_tiles[:] = 0
    for k in range(max(len(stack.parts) for stack in stacks)):
        entries = sorted((*stack.parts[k], s) for s, stack in enumerate(stacks) if len(stack.parts) > k)
        found: list[int] = []
        scales: list[float] = []
        tiles: list[tuple[int, int, int]] = []
        for slot, some in groupby(entries, itemgetter(0)):
            first = len(found)
            for _, scale, s in some:
                found += range(begins[s], begins[s] + counts[s])
                scales += [scale] * counts[s]
            tiles += [(slot, at, min(LORA_TILE, len(found) - at)) for at in range(first, len(found), LORA_TILE)]
        rows.rows[k, : len(found)] = found
        rows.scales[k, : len(found)] = scales
        if tiles:
            rows.tiles[k, : len(tiles)] = tiles
        rows.n_tiles[k] = len(tiles)

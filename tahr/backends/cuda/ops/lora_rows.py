"""The rows of a step that meet adapters: on the host as they are filled, on the device tile by tile."""

import numpy as np
import torch

from tahr.backends.api import LORA_TILE, MAX_STACK, Ints, LoraRows
from tahr.backends.cuda.kernels.lora import ENTRY, RECORD, ROWS, SCALES, TileTables
from tahr.backends.cuda.ops.step_inputs import N_STAGING, Staging

HEADER = 8  # int32 numbers before the records: how many tiles each round has; records begin at a multiple of 32 bytes


class DeviceLoraRows:
    """The rows of one kind: on the host as they are filled, on the device tile by tile."""

    def __init__(self, n: int, n_seqs: int, runs: Ints, device: torch.device):
        """`runs` says of each slot which rows it has behind linears: the first, and how many."""
        self.host = LoraRows.empty(n)
        self._runs = runs
        n_most = most_tiles(n, n_seqs)
        self._numbers = np.zeros(HEADER + MAX_STACK * n_most * RECORD, np.int32)
        self._there = torch.zeros(len(self._numbers), dtype=torch.int32, device=device)
        self._staging = [Staging(len(self._numbers)) for _ in range(N_STAGING)] if device.type == "cuda" else []
        self._tiles = self._numbers[HEADER:].reshape(MAX_STACK, n_most, RECORD)
        self._records = self._there[HEADER:].view(MAX_STACK, n_most, RECORD)
        self._n_known = [0] * MAX_STACK  # tiles of each round that the device knows, or has known until the last change
        self._factors: dict[int, torch.Tensor] = {}  # factors by round: see `TileTables`

    def round(self, k: int, table: torch.Tensor) -> TileTables:
        """The arguments of kernels for a round. Captured graphs hold on to them: they are made once."""
        if k not in self._factors:
            shape = len(table), self._tiles.shape[1], ENTRY
            self._factors[k] = torch.zeros(shape, dtype=torch.int64, device=table.device)
            self._look_up(k, table)
        return TileTables(self._there[k : k + 1], self._records[k], self._factors[k])

    def send(self, table: torch.Tensor) -> None:
        """Bring what the host wrote to the device, behind everything enqueued."""
        n_tiles = self.host.n_tiles.tolist()
        n_changed = [max(pair) for pair in zip(n_tiles, self._n_known, strict=True)]
        for k, n in enumerate(n_changed):
            self._tiles[k, :n] = self._tiles_of(k, n)
        self._numbers[:MAX_STACK] = n_tiles
        last = max((k for k, n in enumerate(n_changed) if n), default=0)
        n_numbers = HEADER + (last * self._tiles.shape[1] + n_changed[last]) * RECORD
        self._copy(n_numbers)
        self._n_known = n_changed
        for k in self._factors:
            self._look_up(k, table)
        self._n_known = n_tiles

    def _tiles_of(self, k: int, n: int) -> Ints:
        """Records of the first n tiles of a round; those past the last one say slot 0, which holds nothing."""
        found = np.zeros((n, RECORD), np.int32)
        slots, first, n_rows = self.host.tiles[k, : self.host.n_tiles[k]].T
        places = np.arange(LORA_TILE)
        live = places < n_rows[:, None]
        entries = first[:, None] + places
        entries = np.where(live, entries, 0)
        tiles = found[: len(slots)]
        tiles[:, 0] = slots
        tiles[:, 1:3] = self._runs[slots]
        tiles[:, ROWS : ROWS + LORA_TILE] = np.where(live, self.host.rows[k][entries], -1)
        tiles[:, SCALES:] = self.host.scales[k][entries].view(np.int32)
        return found

    def _look_up(self, k: int, table: torch.Tensor) -> None:
        """Note for each tile of a round what the table says of its slot now."""
        if n := self._n_known[k]:
            self._factors[k][:, :n] = table.index_select(1, self._records[k, :n, 0])

    def _copy(self, n: int) -> None:
        if not self._staging:
            self._there[:n].copy_(torch.from_numpy(self._numbers[:n]))
            return
        self._staging.append(self._staging.pop(0))
        self._staging[0].ready()[:n] = self._numbers[:n]
        self._staging[0].send(self._there[:n])


def most_tiles(n_rows: int, n_seqs: int) -> int:
    """Tiles of a round: each sequence may have an adapter of its own."""
    return min(n_rows, n_rows // LORA_TILE + n_seqs)

"""Products of rows with matrices: row by row where they are few, in tiles where they are many."""

from typing import NamedTuple

import numpy as np

from tahr import _vulkan as native
from tahr.backends import api
from tahr.backends.api import Tensor
from tahr.backends.vulkan import weights
from tahr.backends.vulkan.memory import BlockArena, RowCount, Span
from tahr.backends.vulkan.queue import address_of, packed
from tahr.backends.vulkan.row_ops import ACTIVATIONS, VulkanRowOps
from tahr.backends.vulkan.weights import PlanedMatrix

N_SUBGROUPS = 4  # subgroups of a workgroup that multiplies few rows
TALL = 2048  # rows of a matrix that keep a device busy although subgroups have several
AHEAD = 4  # runs of columns whose bytes are under way at once
ROWS_AT_ONCE = (1, 2, 4, 8)  # few rows that meet a part of a matrix once it is read
AT_ONCE = {1: 2, 2: 2, 4: 4, 8: 4}  # rows of a tall matrix of a subgroup, by rows of x; gates and what they gate: half
FEW = 16  # rows that are not worth a tile
COLUMNS = 32  # f16 rows are filled to whole runs of so many
HALVE_THREADS = 128
BUSY = 100  # workgroups that keep a device busy
CHECKED = 24, 40, 64  # rows, results and columns of the product that shows whether units for matrices work


class ProductTile(NamedTuple):
    """The part of a product that a workgroup makes."""

    n_rows: int
    n_columns: int
    n_subgroups: int  # 0: `PLAIN_THREADS`, whatever the subgroups
    shared_bytes: int


# Tiles by the matrices that a device multiplies, the largest first.
TILES = {
    (16, 16, 16): (ProductTile(128, 128, 8, 40960), ProductTile(64, 64, 4, 20480), ProductTile(16, 64, 4, 18432)),
    (8, 16, 16): (ProductTile(64, 64, 4, 20480),),
    (8, 8, 16): (ProductTile(64, 64, 4, 20480),),
    (8, 8, 8): (ProductTile(16, 32, 4, 7680),),
}
PLAIN = ProductTile(64, 64, 0, 17408)
PLAIN_THREADS = 256


class HalvedRows:
    """Rows as f16 numbers, and a factor of each."""

    __slots__ = ("_arena", "factors", "numbers")

    def __init__(self, arena: BlockArena, count: RowCount, width: int):
        n_rows = max(1, count.limit)
        self._arena = arena
        self.numbers = arena.take(n_rows * -(-width // COLUMNS) * COLUMNS * 2)
        self.factors = arena.take(4 * n_rows)

    def __del__(self) -> None:
        if hasattr(self, "factors"):
            self._arena.give(self.numbers)
            self._arena.give(self.factors)


class ProductOps(VulkanRowOps):
    """`deterministic` multiplies row by row, however many there are."""

    device: native.Device
    deterministic: bool
    _tiles: tuple[ProductTile, ...] | None = None  # None: not tried yet

    def linear(self, x: Tensor, linear: api.Linear) -> Tensor:
        return self._multiply(x, linear, None, "silu")

    def gated(self, x: Tensor, gate_up: api.JoinedLinears, act: api.Activation) -> Tensor:
        gate, up = gate_up.parts
        if gate.weight.data.kind != up.weight.data.kind or (gate.bias is None) != (up.bias is None):
            return super().gated(x, gate_up, act)
        return self._multiply(x, gate, up, act)

    def _multiply(self, x: Tensor, linear: api.Linear, up: api.Linear | None, act: api.Activation) -> Tensor:
        """x @ weight.T + bias; with `up`, act of that times the same of `up`."""
        matrix: PlanedMatrix = linear.weight.data
        assert x.width == matrix.n_cols
        both = [matrix, up.weight.data] if up else [matrix]
        out = self._like(x, matrix.n_rows)
        count = x.data.count
        planes = [span for each in both for span in (each.codes, each.scales)]
        planes += [None] * (4 - len(planes))
        biases = [each.bias.data if each and each.bias else None for each in (linear, up)]
        tile = self._tile_for(matrix, count.limit, up is not None)
        rows = self._operand(x, matrix, tile)
        written = out.data.span
        spans = [*planes, *biases, *rows]
        addresses = [*map(address_of, spans), written.address, count.span.address]
        constants = packed(addresses, matrix.n_rows, matrix.n_cols, ACTIVATIONS[act])
        choose = self._few if tile is None else self._many
        pipeline, groups = choose(matrix, tile or PLAIN, count.limit, up is not None, linear.bias is not None)
        self._queue.add(pipeline, groups, constants, [count.span, *spans], [written])
        return out

    def _operand(self, x: Tensor, matrix: PlanedMatrix, tile: ProductTile | None) -> tuple[Span, Span | None]:
        """The rows as a kernel wants to meet them."""
        if tile is not None and tile.n_subgroups:
            halved = self._halved(x)
            return halved.numbers, halved.factors
        if tile is not None or matrix.is_dense:
            return self._queue.use(x), None
        rounded = self._rounded(x)
        return rounded.codes, rounded.scales

    def _few(
        self, matrix: PlanedMatrix, _: ProductTile, limit: int, gated: bool, biased: bool
    ) -> tuple[native.Pipeline, tuple[int, int, int]]:
        """The kernel that multiplies row by row, and its grid."""
        enough = [n for n in ROWS_AT_ONCE if n >= limit]
        n_x = enough[0] if enough else ROWS_AT_ONCE[-1]
        n_rows = AT_ONCE[n_x] if matrix.n_rows >= TALL else 1
        n_rows = max(1, n_rows // 2) if gated else n_rows
        ragged = matrix.is_dense and matrix.n_cols % weights.RUN != 0
        n_threads = N_SUBGROUPS * self._kernels.subgroup
        known = limit if 0 < limit <= n_x else 0
        choices = n_rows, n_x, gated, ragged, biased, AHEAD if n_x == 1 else 1, known
        pipeline = self._kernels.get(f"linear_{matrix.kind}", n_threads, *choices)
        return pipeline, (-(-matrix.n_rows // (N_SUBGROUPS * n_rows)), -(-max(1, limit) // n_x), 1)

    def _many(
        self, matrix: PlanedMatrix, tile: ProductTile, limit: int, gated: bool, biased: bool
    ) -> tuple[native.Pipeline, tuple[int, int, int]]:
        """The kernel that multiplies in tiles, and its grid."""
        n_threads = tile.n_subgroups * self._kernels.subgroup or self._kernels.threads(PLAIN_THREADS)
        name = f"tile_{matrix.kind}"
        if tile.n_subgroups:
            name = matrix_name(matrix.kind, self.device.facts.matrix, tile)
        return self._kernels.get(name, n_threads, n_threads, gated, biased), grid(tile, limit, matrix.n_rows, gated)

    def _tile_for(self, matrix: PlanedMatrix, limit: int, gated: bool) -> ProductTile | None:
        """The tile in which so many rows are multiplied; None: row by row."""
        if self.deterministic or limit <= FEW:
            return None
        tiles = () if matrix.kind == "f32" else self._known_tiles()
        for tile in tiles:
            across, along, _ = grid(tile, limit, matrix.n_rows, gated)
            if across * along >= BUSY and limit > tile.n_rows // 2:
                return tile
        return min(tiles, key=lambda tile: abs(tile.n_rows - min(limit, 64)), default=PLAIN)

    def _matrix_size(self) -> tuple[int, int, int] | None:
        if self.deterministic or not self._known_tiles():
            return None
        m, n, k = self.device.facts.matrix
        return m, n, k

    def _known_tiles(self) -> tuple[ProductTile, ...]:
        """The tiles that work here, found out once."""
        if self._tiles is None:
            self._tiles = self._working_tiles()
        return self._tiles

    def _halved(self, x: Tensor) -> HalvedRows:
        """x as f16 numbers, made once."""
        if x.data.halved is None:
            count = x.data.count
            own = self._queue.use(x)
            found = x.data.halved = HalvedRows(self._queue.arena, count, x.width)
            addresses = [count.span.address, own.address, found.numbers.address, found.factors.address]
            pipeline = self._kernels.get("halve", self._kernels.threads(HALVE_THREADS))
            written = [found.numbers, found.factors]
            self._queue.add(
                pipeline, (max(1, count.limit), 1, 1), packed(addresses, x.width), [count.span, own], written
            )
        halved: HalvedRows = x.data.halved
        return halved

    def _working_tiles(self) -> tuple[ProductTile, ...]:
        """The tiles for this device's units for matrices; none where those do not multiply as they should."""
        facts = self.device.facts
        m, n, k = facts.matrix
        tiles = tuple(tile for tile in TILES.get((m, n, k), ()) if tile.shared_bytes <= facts.shared_bytes)
        return tuple(tile for tile in tiles if self._multiplies(tile))

    def _multiplies(self, tile: ProductTile) -> bool:
        """Whether a tile gives a small product within the rounding of its numbers."""
        n, n_out, n_cols = CHECKED
        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal((rows, n_cols)).astype(np.float16) for rows in (n, n_out))
        x_span, w_span, factors = (self._memory.holding(each) for each in (x, w, np.ones(n, np.float32)))
        out = self._memory.take(4 * n * n_out)
        spans = [w_span, None, None, None, None, None, x_span, factors]
        count = self._constants.count(n)
        constants = packed([*map(address_of, spans), out.address, count.span.address], n_out, n_cols, 0)
        try:
            matrix = PlanedMatrix("f16", n_out, n_cols, w_span, None)
            pipeline, groups = self._many(matrix, tile, n, gated=False, biased=False)
            tape = native.Tape(self.device)
            reads = [span.range for span in (*spans, count.span) if span]
            tape.append(pipeline, constants, groups, reads, [out.range])
            recording = tape.record()
            recording.run()
            recording.wait()
            found = self._memory.read(out, 4 * n * n_out).view(np.float32).reshape(n, n_out)
        except native.DeviceLost:
            raise
        except native.DeviceError:  # a driver that cannot compile what it says it has
            return False
        return bool(np.abs(found - x.astype(np.float32) @ w.astype(np.float32).T).max() < 1e-2)


def matrix_name(kind: str, size: list[int], tile: ProductTile) -> str:
    """The kernel of a kind of matrix for a device's units."""
    return f"matrix_{kind}_{'x'.join(map(str, size))}_{tile.n_rows}x{tile.n_columns}"


def grid(tile: ProductTile, n_rows: int, n_out: int, gated: bool) -> tuple[int, int, int]:
    """The workgroups that make a product."""
    n_columns = tile.n_columns // 2 if gated else tile.n_columns
    return -(-n_out // n_columns), -(-max(1, n_rows) // tile.n_rows), 1

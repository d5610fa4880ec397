"""Attention over paged keys and values: which kernels a step takes, and how they are launched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from tahr.backends.api import AttentionSpec, LayerMemory
from tahr.backends.cuda.kernels.common import attention_kernels as kernels
from tahr.backends.cuda.kernels.common import decode_kernels
from tahr.backends.cuda.kernels.common.card import has_warp_groups, shared_bytes
from tahr.backends.cuda.kernels.common.dependent import OVERLAP
from tahr.backends.cuda.kernels.linear import TYPES
from tahr.backends.cuda.layouts import kv as cuda_kv

N_LARGE = 8192  # rows of a step from which large tiles fill the card
LEAST_ROWS = 16  # the smallest tile matrix units take
DECODE_WARPS = WARP_GROUP = 4
TILE_BYTES = 32768  # tile of a decoding sequence's keys: two of them, and as many values, fit a multiprocessor


class AttentionTile(NamedTuple):
    """How many rows of queries meet how many keys at a time."""

    rows: int
    keys: int
    n_warps: int
    n_stages: int

    def fits(self, dim: int, itemsize: int, n_bytes: int) -> bool:
        """Whether its rows, and the keys and values of its stages, fit into shared memory."""
        return (self.rows + 2 * self.n_stages * self.keys) * dim * itemsize <= n_bytes


# The first that fits is taken. As measured on an H200; the others are for wide heads and for cards with less memory.
LARGE_TILES = [AttentionTile(128, 64, 8, 3), AttentionTile(128, 64, 8, 2)]
SMALL_TILES = [AttentionTile(64, 64, 4, 2), AttentionTile(64, 32, 4, 2), AttentionTile(16, 16, 4, 1)]
# Where results must not depend on the step.
EXACT_TILES = [AttentionTile(64, 32, 4, 3), AttentionTile(64, 32, 4, 1), AttentionTile(16, 32, 4, 1)]


class StepRows(NamedTuple):
    """Keys, rotated as they are stored, and values of the tokens of a step: a row each."""

    keys: torch.Tensor
    values: torch.Tensor


class Splits(NamedTuple):
    """How many programs may share the keys of one sequence and key head."""

    most: int
    least: int  # tiles that a program has at least, where there are several
    keys: int = 64  # keys of a tile
    n_stages: int = 2


# Splits by pairs of a sequence and a key head, up to so many: about four programs for each multiprocessor, which
# together have enough keys on their way. Many pairs fill the card by themselves. Measured on an H200.
SPLITS = {
    8: Splits(64, 1, 32, 3),
    16: Splits(32, 1, 32, 3),
    32: Splits(16, 2, 32, 3),
    64: Splits(8, 1, 32, 3),
    128: Splits(4, 2, 32, 3),
    256: Splits(4, 4, 32, 3),
    512: Splits(4, 6),
    1024: Splits(2, 12),
    1 << 31: Splits(1, 1),
}
BYTE_KEYS = 64  # fewest keys of a tile, in two stages, where they are stored in 8 bits
AT_ONCE = 8  # splits whose sums are asked for together
N_HOPPER = 1024  # tokens of a step from which Hopper's own kernel of prompts is faster than others
LEAST_PROMPT = 128  # fewest new tokens of a sequence, and the widths of heads and sizes of pages that it takes
PROMPT_DIMS = (64, 128)
PROMPT_PAGES = (8, 16, 32, 64, 128)
N_FUSED = 256  # pairs up to which one kernel turns and writes keys, too


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments every attention kernel shares."""

    q: torch.Tensor
    store: torch.Tensor  # store of one layer: see `cuda_kv`
    pages: torch.Tensor  # page tables of the layer's group
    inputs: Any
    spec: AttentionSpec
    dtype: torch.dtype  # type of the factors of products
    seq_lens: torch.Tensor  # lengths in the layer's group

    @property
    def n_kv(self) -> int:
        return int(self.store.shape[2])

    @property
    def page_size(self) -> int:
        return int(self.store.shape[3])

    @property
    def dim(self) -> int:
        return cuda_kv.head_dim(self.store)

    @property
    def n_q(self) -> int:
        return int(self.q.shape[1]) // self.dim

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.n_q // self.n_kv

    @property
    def per_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The sinks and slopes of query heads; any memory stands for those that there are none of."""
        sinks, slopes = self.spec.sinks, self.spec.slopes
        return self.q if sinks is None else sinks.data, self.q if slopes is None else slopes.data

    @property
    def has_per_head(self) -> tuple[bool, bool]:
        return self.spec.sinks is not None, self.spec.slopes is not None

    @property
    def is_plain(self) -> bool:
        """Whether the fast kernels take it: 16-bit factors, keys stored as they are, whole tiles of columns."""
        return self.dtype != torch.float32 and cuda_kv.block_of(self.store) == 0 and block_d(self.dim) == self.dim


def attend_exact(call: AttentionCall, n_seqs: int) -> torch.Tensor:
    """Attention of any step; no row depends on other sequences or on how a prompt is cut into steps."""
    store, pages, inputs, spec = call.store, call.pages, call.inputs, call.spec
    out = torch.zeros_like(call.q)  # rows of padding stay zero
    tile = fitting(EXACT_TILES, call)
    kernels.exact_kernel[(n_tiles(call, n_seqs, tile.rows), call.n_kv)](
        out, call.q, store[0], store[1], *cuda_kv.scales(store), pages, inputs.query_start, inputs.positions,
        call.seq_lens, inputs.counts, spec.scale, spec.window, spec.softcap, *call.per_head, pages.stride(0),
        call.n_q, call.n_kv, call.dim, store.shape[4], call.page_size, call.group, *call.has_per_head,
        spec.softcap > 0, spec.causal, spec.chunked, TYPES[call.dtype], cuda_kv.block_of(store),
        cuda_kv.rotation_of(store), tile.rows, tile.keys, block_d(call.dim), num_warps=tile.n_warps,
        num_stages=tile.n_stages,
    )  # fmt: skip
    return out


def attend_mixed(call: AttentionCall, n_seqs: int, new: StepRows | None = None) -> torch.Tensor:
    """Attention of a step with prompts and decoding sequences, each by its own kernel."""
    if not call.is_plain:
        return attend_exact(call, n_seqs)
    store, pages, inputs, spec = call.store, call.pages, call.inputs, call.spec
    out = torch.empty_like(call.q)
    tiles = (*LARGE_TILES, *SMALL_TILES) if is_large(len(call.q), call.group) else SMALL_TILES
    tile, (new_keys, new_values) = fitting(tiles, call), new or (call.q, call.q)
    least_prompt = LEAST_PROMPT if new and takes_prompts(call, new) else 0
    kernels.prefill_kernel[(n_tiles(call, n_seqs, tile.rows), call.n_kv)](
        out, call.q, store[0], store[1], new_keys, new_values, pages, inputs.query_start, inputs.positions,
        inputs.counts, spec.scale, spec.window, spec.softcap, *call.per_head, pages.stride(0), len(call.q),
        new_keys.stride(0), new_values.stride(0), call.n_q, call.n_kv, store.shape[4], call.page_size, call.group,
        *call.has_per_head, n_seqs > 1, least_prompt, new is not None, spec.window > 0, spec.softcap > 0,
        TYPES[call.dtype], tile.rows, tile.keys, call.dim, num_warps=tile.n_warps, num_stages=tile.n_stages, **OVERLAP,
    )  # fmt: skip
    if new and least_prompt:
        attend_prompts(call, n_seqs, new, out)
    if n_seqs > 1:
        decode(call, n_seqs, out, mixed=True)
    return out


def takes_prompts(call: AttentionCall, new: StepRows) -> bool:
    """Whether Hopper's own kernel has the prompts of a step, whose new keys are in its rows."""
    spec, kinds = call.spec, {call.dtype, call.q.dtype, new.keys.dtype, new.values.dtype, call.store.dtype}
    is_bare = not any(call.has_per_head) and not spec.window and not spec.softcap and spec.causal
    fits = call.dim in PROMPT_DIMS and call.page_size in PROMPT_PAGES
    return is_bare and len(kinds) == 1 and fits and has_warp_groups(call.q.device)


def attend_prompts(call: AttentionCall, n_seqs: int, new: StepRows, out: torch.Tensor) -> None:
    """Write the rows of sequences that have `LEAST_PROMPT` tokens or more in this step."""
    from tahr.backends.cuda.kernels.hopper import prefill  # not every Triton has what it is written in

    inputs, pages, block_m, block_n = call.inputs, call.pages, prefill.BLOCK_M, LEAST_PROMPT
    n_tiles = len(call.q) * call.group // block_m + min(n_seqs, len(call.q) // block_n)  # see `first_tile`
    keys, values = (prefill.descriptor(rows, call.dim, block_n) for rows in new)
    key_pages, value_pages = (
        prefill.descriptor(side.view(-1, call.dim), call.dim, call.page_size) for side in call.store
    )
    prefill.prompt_kernel[(n_tiles, call.n_kv)](
        out, call.q, keys, values, key_pages, value_pages, pages, inputs.query_start, inputs.positions, inputs.counts,
        call.spec.scale, pages.stride(0), call.n_q, call.n_kv, call.group, call.page_size, call.dim, block_m, block_n,
        prefill.N_STAGES, num_warps=WARP_GROUP, **OVERLAP,
    )  # fmt: skip


def is_large(n_tokens: int, group: int) -> bool:
    """Whether a step has rows enough for large tiles."""
    return n_tokens * group >= N_LARGE


def fitting(tiles: Sequence[AttentionTile], call: AttentionCall) -> AttentionTile:
    """The first tile that fits into shared memory; the last, if none does."""
    dim, n_bytes = block_d(call.dim), shared_bytes(call.q.device)
    return next((tile for tile in tiles if tile.fits(dim, call.dtype.itemsize, n_bytes)), tiles[-1])


def attend_decode(call: AttentionCall) -> torch.Tensor:
    """Attention of a step in which every row of q is one sequence's newest token, or padding."""
    out = torch.empty_like(call.q)
    decode(call, len(call.q), out, mixed=False)
    return out


@dataclass(frozen=True, slots=True)
class KeyCut:
    """How the keys of a decoding step are shared out, and memory for the results of splits: sums, weights, maxima."""

    kind: Splits
    keys: int  # keys of a tile
    n_splits: int
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def cut_keys(call: AttentionCall, n_seqs: int) -> KeyCut:
    n_pairs, n_keys = n_seqs * call.n_kv, call.pages.shape[1] * call.page_size
    kind = next(kind for most, kind in SPLITS.items() if n_pairs <= most)
    if call.store.element_size() == 1:
        kind = kind._replace(keys=max(BYTE_KEYS, kind.keys), n_stages=2)
    keys = min(kind.keys, TILE_BYTES // (block_d(call.dim) * max(call.dtype.itemsize, call.store.element_size())))
    n_splits = 1 << min(kind.most, -(-n_keys // (kind.least * keys))).bit_length() - 1  # a power of two
    sums = call.q.new_empty((n_seqs * call.n_q, n_splits, call.dim), dtype=torch.float32)
    weights, maxima = (call.q.new_empty((n_seqs * call.n_q, n_splits), dtype=torch.float32) for _ in range(2))
    return KeyCut(kind, keys, n_splits, (sums, weights, maxima))


def decode(call: AttentionCall, n_seqs: int, out: torch.Tensor, mixed: bool) -> None:
    """Write the rows of sequences that have one query."""
    store, pages, inputs, spec, cut = call.store, call.pages, call.inputs, call.spec, cut_keys(call, n_seqs)
    decode_kernels.decode_kernel[(call.n_kv, n_seqs, cut.n_splits)](
        out, *cut.parts, call.q, store[0], store[1], *cuda_kv.scales(store), pages, inputs.order, inputs.query_start,
        call.seq_lens, inputs.counts, spec.scale, spec.window, spec.softcap, *call.per_head, pages.stride(0),
        cut.n_splits, call.n_q, call.n_kv, call.dim, store.shape[4], call.page_size, call.group, *call.has_per_head,
        mixed, spec.softcap > 0, TYPES[call.dtype], call.is_plain, cuda_kv.block_of(store), cuda_kv.rotation_of(store),
        cut.kind.least, max(LEAST_ROWS, triton.next_power_of_2(call.group)), cut.keys, block_d(call.dim),
        num_warps=DECODE_WARPS, num_stages=cut.kind.n_stages, **OVERLAP,
    )  # fmt: skip
    combine(call, cut, out, mixed)


def combine(call: AttentionCall, cut: KeyCut, out: torch.Tensor, mixed: bool) -> None:
    """Add up what the splits of a sequence found, where there are several."""
    if cut.n_splits == 1:
        return
    inputs, n_seqs = call.inputs, len(cut.parts[1]) // call.n_q
    n_heads, most = 1 if n_seqs * call.n_kv <= N_FUSED else call.group, cut.kind.most
    block_h = triton.next_power_of_2(n_heads)
    decode_kernels.combine_kernel[(n_seqs, call.n_q // n_heads)](
        out, *cut.parts, inputs.query_start, call.seq_lens, inputs.counts, call.spec.window, cut.n_splits,
        call.n_q, call.dim, n_heads, mixed, cuda_kv.rotation_of(call.store), cut.kind.least, cut.keys, most,
        min(most, AT_ONCE), block_h, block_d(call.dim), num_warps=min(block_h, DECODE_WARPS), **OVERLAP,
    )  # fmt: skip


def fuses_rope(n_parts: int, spec: AttentionSpec, memory: LayerMemory) -> bool:
    """Whether `rope_decode` takes a step: queries, keys and values of one token per sequence, stored as they are.

    In large steps two kernels are faster than one: 1,993 instead of 2,126 us for 256 sequences at 0.6B on an H200.
    """
    limits, shape = memory.step.limits, memory.kv_shape
    is_plain = not shape.latent and cuda_kv.block_of(memory.data) == 0
    fits = limits.n_tokens_per_seq == 1 and limits.n_seqs * shape.n_heads <= N_FUSED
    return n_parts == 3 and is_plain and fits and spec.causal and not spec.chunked


def reads_rows(q: torch.Tensor, kv: Sequence[torch.Tensor], spec: AttentionSpec, memory: LayerMemory) -> bool:
    """Whether `attend_mixed` takes new keys and values from the rows of a step: a large one, stored as the rows are."""
    store = memory.data
    if memory.kv_shape.latent or len(kv) != 2 or kv[1].dtype != store.dtype or spec.window or not spec.causal:
        return False
    dim = cuda_kv.head_dim(store)
    is_plain = cuda_kv.block_of(store) == 0 and block_d(dim) == dim and store.dtype != torch.float32
    large = is_large(len(q), q.shape[1] // kv[0].shape[1])
    large = large or (len(q) >= N_HOPPER and dim in PROMPT_DIMS and has_warp_groups(q.device))
    return is_plain and large and memory.step.limits.n_tokens_per_seq != 1


def n_tiles(call: AttentionCall, n_seqs: int, block_m: int) -> int:
    """Programs that hold every tile of query rows, however the rows are shared out: see `sequence_of`."""
    return len(call.q) * call.group // block_m + n_seqs


def product_type(math: torch.dtype, stored: torch.dtype) -> torch.dtype:
    """The type in which queries, keys and values are multiplied: the store's, where rows are rounded anyway."""
    return math if math == torch.float32 or stored in cuda_kv.EIGHT_BITS else stored


def block_d(dim: int) -> int:
    """Columns of a tile that holds a head."""
    size: int = max(LEAST_ROWS, triton.next_power_of_2(dim))
    return size

"""How ranks share what a model counts: heads evenly, widths and the vocabulary in whole blocks, even or not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from tahr.models.config.record import HeadPart, ModelConfig
from tahr.models.sharding.rules import EXPERT_FFN, FFN, KEY_HEADS, QUERY_HEADS, SHARED_FFN, VOCABULARY

# The part of every rank, by what is counted.
Shares: TypeAlias = Mapping[str, tuple[range, ...]]

FFN_UNIT = 32  # numbers that borders of widths are multiples of, where there are enough of them
VOCABULARY_UNIT = 64


class Indivisible(Exception):
    """A number of ranks that cannot share a model, and why."""


def shares_of(cfg: ModelConfig, blocks: Mapping[str, int], n_ranks: int) -> Shares:
    """The shares of every rank; `blocks` are the numbers that are stored together, by what columns count."""
    counts = {FFN: cfg.ffn_width, VOCABULARY: cfg.n_vocab}
    if cfg.moe:
        counts |= {EXPERT_FFN: cfg.moe.ffn_width, SHARED_FFN: cfg.moe.shared_width}
    sparse = cfg.moe is not None and all(kind.sparse for kind in cfg.kinds)
    unused = {FFN} if sparse else set()
    shares = heads_of(cfg, blocks.get(QUERY_HEADS, 1), n_ranks)
    for counted, n in counts.items():
        if n and counted not in unused:
            shares[counted] = borders(counted, n, blocks.get(counted, 1), n_ranks)
    return shares


def heads_of(cfg: ModelConfig, block: int, n_ranks: int) -> dict[str, tuple[range, ...]]:
    """Query heads with their key heads; where there are fewer key heads than ranks, several ranks have the same."""
    n_heads = cfg.n_heads
    n_kv_heads = cfg.n_kv_heads
    if n_heads % n_ranks or (n_kv_heads % n_ranks and n_ranks % n_kv_heads):
        raise Indivisible(f"{n_heads} query heads and {n_kv_heads} key heads are no whole groups on every rank")
    head_width = cfg.latent.value_dim if cfg.latent else cfg.head_dim
    width = n_heads // n_ranks * head_width
    if width % block:
        raise Indivisible(
            f"{n_heads // n_ranks} heads of {head_width} numbers are no whole blocks of {block}, which the matrix "
            "behind attention is stored in"
        )
    n_each = max(1, n_kv_heads // n_ranks)
    firsts = [rank * n_kv_heads // n_ranks for rank in range(n_ranks)]
    return {
        QUERY_HEADS: even(n_heads, n_ranks),
        KEY_HEADS: tuple(range(first, first + n_each) for first in firsts),
    }


def even(n: int, n_ranks: int) -> tuple[range, ...]:
    each = n // n_ranks
    return tuple(range(rank * each, (rank + 1) * each) for rank in range(n_ranks))


def borders(counted: str, n: int, block: int, n_ranks: int) -> tuple[range, ...]:
    """`n` in whole blocks, as evenly as these allow; the last rank has what is left of the last one."""
    preferred = VOCABULARY_UNIT if counted == VOCABULARY else max(block, FFN_UNIT)
    unit = preferred if n >= preferred * n_ranks and (counted == VOCABULARY or n % preferred == 0) else block
    n_units = -(-n // unit)
    if n_units < n_ranks:
        blocks = f", stored in blocks of {unit}," if unit > 1 else ""
        raise Indivisible(f"the {counted} of {n}{blocks} is too little for {n_ranks} ranks")
    begins = [min(n, unit * (n_units * rank // n_ranks)) for rank in range(n_ranks + 1)]
    begins[-1] = n
    return tuple(range(begins[rank], begins[rank + 1]) for rank in range(n_ranks))


def rank_config(cfg: ModelConfig, shares: Shares, rank: int) -> ModelConfig:
    """The model in the numbers of one rank. A head that is the embedding becomes one of its own, of fewer rows."""
    n_of = {counted: len(parts[rank]) for counted, parts in shares.items()}
    moe = cfg.moe
    if moe:
        moe = replace(moe, ffn_width=n_of[EXPERT_FFN], shared_width=n_of.get(SHARED_FFN, 0))
    return replace(
        cfg,
        n_heads=n_of[QUERY_HEADS],
        head_part=HeadPart(shares[QUERY_HEADS][rank].start, cfg.n_heads),
        n_kv_heads=n_of[KEY_HEADS],
        ffn_width=n_of.get(FFN, cfg.ffn_width),
        moe=moe,
        tied=False,
        n_head_rows=n_of[VOCABULARY],
    )

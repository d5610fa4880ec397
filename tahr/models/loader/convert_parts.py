"""Tensors of a GGUF that is written from a checkpoint: stacked, reordered or shifted."""

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from tahr.models.config.record import ModelConfig
from tahr.models.files.gguf_rope import ROPE_DIVISORS
from tahr.models.loader.convert_keys import PAIRED, rope_divisors
from tahr.models.parts.weights import stacked
from tahr.weights.formats import FORMATS
from tahr.weights.gguf_write import Part
from tahr.weights.tensor import HostTensor

EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+\.weight)")

Change = Callable[[HostTensor], HostTensor]


def part(cfg: ModelConfig, name: str, stored_name: str, tensors: list[HostTensor]) -> Part:
    """One tensor of the file: stacked, reordered or shifted when it is written."""
    first = tensors[0]
    stacks = EXPERT.fullmatch(first.name) is not None
    shape = (len(tensors), *first.shape) if stacks else first.shape
    change = change_for(cfg, name)
    stored_as = FORMATS["F32"] if cfg.norm_offset and name.endswith("norm.weight") else first.format
    return Part(stored_name, stored_as, shape, lambda: change(stacked(name, tensors) if stacks else first))


def change_for(cfg: ModelConfig, name: str) -> Change:
    if cfg.norm_offset and name.endswith("norm.weight"):
        return partial(shifted, offset=cfg.norm_offset)
    n_heads = {"q_proj": cfg.n_heads, "k_proj": cfg.n_kv_heads}.get(name.split(".")[-2])
    return partial(paired, n_heads=n_heads) if n_heads and cfg.family in PAIRED else lambda tensor: tensor


def paired(tensor: HostTensor, n_heads: int) -> HostTensor:
    """Rows of each head from halves order (0, d/2) to pairs order (0, 1)."""
    row_bytes = tensor.n_bytes // tensor.shape[0]
    halves = tensor.data.reshape(n_heads, 2, -1, row_bytes)
    return HostTensor(tensor.name, tensor.format, tensor.shape, halves.swapaxes(1, 2).reshape(-1))


def shifted(tensor: HostTensor, offset: float) -> HostTensor:
    """Gains as they are: the checkpoint holds them less `offset`."""
    return in_memory(tensor.name, tensor.dense() + np.float32(offset))


def rope_parts(cfg: ModelConfig) -> list[Part]:
    divisors = rope_divisors(cfg)
    if divisors is None:
        return []
    return [Part(ROPE_DIVISORS, FORMATS["F32"], divisors.shape, lambda: in_memory(ROPE_DIVISORS, divisors))]


def in_memory(name: str, values: np.ndarray) -> HostTensor:
    data = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    return HostTensor(name, FORMATS["F32"], values.shape, data)


def file_order(of: Part) -> tuple[int, int]:
    """The order in which a model reads its tensors: embedding, layers, final norm, head."""
    found = re.match(r"blk\.(\d+)\.", of.name)
    return (1, int(found[1])) if found else (2 if of.name.startswith("output") else 0, 0)

"""A Hugging Face checkpoint as GGUF: tensors under their GGUF names, rows in GGUF order."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tahr.errors import CorruptFile, QuantError, UnsupportedModel
from tahr.models.config.record import ModelConfig
from tahr.models.files.gguf import ROPE_DIVISORS
from tahr.models.loader.convert_keys import ARCHITECTURES, PAIRED, check_told, describe, rope_divisors
from tahr.models.loader.load import OpenedModel, canonical, quantised_by
from tahr.models.loader.registry import family_of
from tahr.models.loader.requantise import LAYER, gguf_name_of
from tahr.models.parts.weights import check_format, stacked
from tahr.weights.formats import FORMATS
from tahr.weights.gguf_write import Part
from tahr.weights.tensor import HostTensor

EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+\.weight)")
Change = Callable[[HostTensor], HostTensor]


@dataclass(frozen=True, slots=True)
class Converted:
    """Contents of a model's GGUF, save for its tokenizer; `left_out` names tensors no language model needs."""

    config: ModelConfig
    metadata: dict[str, Any]
    parts: list[Part]
    left_out: list[str]


def convert(source: OpenedModel) -> Converted:
    """The model of a checkpoint, ready to be written; refused where GGUF cannot describe it."""
    cfg = source.model_config()
    if cfg.family not in ARCHITECTURES:
        raise UnsupportedModel(f"Tahr does not convert {cfg.family} models; it does {', '.join(ARCHITECTURES)}.")
    if quantised_by(source, family_of(cfg)):
        raise QuantError("Tahr converts float checkpoints only; this one is quantised. Load it as it is.")
    tensors = canonical(source, cfg)
    if cfg.tied:
        tensors.drop("lm_head.weight")
    grouped = with_experts(tensors)
    names = {name: new_name(name, family_of(cfg).gguf_names) for name in grouped}
    parts = [part(cfg, name, new, grouped[name]) for name, new in names.items() if new]
    parts += rope_parts(cfg)
    metadata = describe(cfg, source.name)
    check_told(cfg, metadata, parts)
    left_out = [name for name, new in names.items() if not new]
    return Converted(cfg, metadata, sorted(parts, key=file_order), left_out)


def with_experts(tensors: Mapping[str, HostTensor]) -> dict[str, list[HostTensor]]:
    """Tensors by name; those of all experts of a layer come under one name, in their order."""
    experts: dict[str, dict[int, HostTensor]] = {}
    for name, tensor in tensors.items():
        check_format(tensor)
        found = EXPERT.fullmatch(name)
        home, index = (f"{found[1]}.{found[3]}", int(found[2])) if found else (name, 0)
        experts.setdefault(home, {})[index] = tensor
    for name, some in experts.items():
        if some.keys() != set(range(len(some))) or len({tensor.shape for tensor in some.values()}) > 1:
            raise CorruptFile(f"The experts of {name} are not all there, or of several shapes; fetch the model again.")
    return {name: [some[i] for i in sorted(some)] for name, some in experts.items()}


def new_name(name: str, layer_names: Mapping[str, str]) -> str:
    """The GGUF name of a tensor; empty for one outside the layers, such as a vision tower's."""
    found = gguf_name_of(name, layer_names)
    if not found and LAYER.fullmatch(name):
        raise UnsupportedModel(f"The checkpoint has a tensor {name}, for which GGUF files of its family have no name.")
    return found


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

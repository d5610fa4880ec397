"""A Hugging Face checkpoint as GGUF: tensors under their GGUF names, rows in GGUF order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tahr.errors import CorruptFile, QuantError, UnsupportedModel
from tahr.models.config.record import ModelConfig
from tahr.models.loader.convert_keys import ARCHITECTURES, check_told, describe
from tahr.models.loader.convert_parts import EXPERT, file_order, part, rope_parts
from tahr.models.loader.load import OpenedModel, canonical, quantised_by
from tahr.models.loader.registry import family_of
from tahr.models.loader.requantise import LAYER, gguf_name_of
from tahr.models.parts.weights import check_format
from tahr.weights.gguf_write import Part
from tahr.weights.tensor import HostTensor


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

"""A model with an adapter added to its weights, tensor by tensor, as it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tahr import hub
from tahr.backends.api import LinearShape, LoraFactors
from tahr.errors import QuantError
from tahr.models.loader.convert_parts import in_memory
from tahr.models.loader.load import open_model
from tahr.models.loader.registry import family_of
from tahr.models.lora import AdapterTarget, open_adapter
from tahr.models.lora.rope_order import REORDERED
from tahr.models.parts.weights import gguf_name
from tahr.weights.gguf_write import Part
from tahr.weights.tensor import HostTensor


def merged(parts: Sequence[Part], files: hub.ModelFiles, adapter: Path, scale: float = 1.0) -> list[Part]:
    """The parts of a GGUF, those that the adapter changes with it added; refused if it does not fit the model."""
    cfg = open_model(files.weights, files.directory).model_config()
    if cfg.family in REORDERED:
        cfg = replace(cfg, rope_style="pairs")  # the order of the parts, also those of a converted checkpoint
    names = {part.name: canonical(part.name, family_of(cfg).gguf_names) for part in parts}
    linears = {names[p.name]: LinearShape(*p.shape) for p in parts if len(p.shape) == 2 and is_linear(names[p.name])}
    factors = open_adapter(adapter, AdapterTarget(files.name, cfg, linears)).factors
    return [changed(part, factors, names[part.name], scale) for part in parts]


def canonical(name: str, layer_names: Mapping[str, str]) -> str:
    return gguf_name(name, layer_names).removesuffix(".weight")


def is_linear(name: str) -> bool:
    return name.startswith(("model.layers.", "lm_head"))


def changed(part: Part, factors: Mapping[str, LoraFactors], name: str, scale: float) -> Part:
    each = factors.get(name) if part.name.endswith(".weight") else None
    return replace(part, make=lambda: added(part.make(), each, scale)) if each else part


def added(tensor: HostTensor, factors: LoraFactors, scale: float) -> HostTensor:
    """W + scale * b @ a, in f32; whoever writes it rounds it to the format it had."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = factors.b.dense() @ factors.a.dense()
        values = tensor.dense() + np.float32(scale * factors.scale) * product
    if not np.isfinite(values).all():
        raise QuantError(
            f"With the adapter {scale:g} times, tensor {tensor.name} holds infinities or NaNs. Give another --scale, "
            "or fetch base and adapter again."
        )
    return in_memory(tensor.name, values)

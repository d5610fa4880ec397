"""Quantising a float checkpoint while it is loaded, by the same recipes that write files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from tahr.backends.api import Backend
from tahr.errors import QuantError
from tahr.models.config.record import ModelConfig
from tahr.models.parts.weights import GGUF_LAYER, GGUF_TOP
from tahr.weights.quantise.quantiser import is_float, quantised
from tahr.weights.quantise.recipes import Recipe, mix_named
from tahr.weights.tensor import HostTensor

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def gguf_name_of(name: str, layer_names: Mapping[str, str]) -> str:
    """A tensor's name in GGUF files by its canonical name; empty where they have none."""
    stem, _, kind = name.rpartition(".")
    top = {ours: theirs for theirs, ours in GGUF_TOP.items()}
    if stem in top:
        return f"{top[stem]}.{kind}"
    layer = {ours: theirs for theirs, ours in {**GGUF_LAYER, **layer_names}.items()}
    found = LAYER.fullmatch(name)
    return f"blk.{found[1]}.{layer[found[2]]}.{found[3]}" if found and found[2] in layer else ""


def backend_rounding(config: ModelConfig, name: str, backend: Backend) -> Callable[[str, HostTensor], HostTensor]:
    """A function that asks the backend to round the float matrices of layers, and the head to 8-bit codes in blocks.

    Four bits of precision would show in the logits, which nothing evens out any more.
    """
    if name not in backend.rounds_to:
        raise QuantError(
            f"The {backend.name} backend has no products of {name} matrices here: choose another type, such as int8, "
            "or use a GPU without --deterministic."
        )

    head = "" if config.bidirectional else "model.embed_tokens.weight" if config.tied else "lm_head.weight"

    def change(canonical: str, tensor: HostTensor) -> HostTensor:
        if not is_float(tensor) or len(tensor.shape) != 2:
            return tensor
        if canonical == head:
            return replace(tensor, stored_as="q8_0")
        return replace(tensor, stored_as=name) if LAYER.fullmatch(canonical) else tensor

    return change


def requantiser(
    config: ModelConfig, layer_names: Mapping[str, str], mix_name: str
) -> Callable[[str, HostTensor], HostTensor]:
    """A function that quantises a float matrix, given its canonical name, to the format the mix has for it."""
    _, mix = mix_named(mix_name)
    recipe = Recipe(mix, config.n_layers, config.n_heads // config.n_kv_heads, config.tied)

    def change(name: str, tensor: HostTensor) -> HostTensor:
        if not is_float(tensor):
            raise QuantError(
                f"Tensor {tensor.name} is {tensor.format.name} already, and quantising it again would lose more. "
                "Load the model as it is, or quantise its float checkpoint."
            )
        target = recipe.format_for(gguf_name_of(name, layer_names) or name, tensor.shape)
        return tensor if target is None else quantised(tensor, target)

    return change

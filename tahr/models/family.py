"""The record that describes a model family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tahr.config import GREEDY, SamplingParams
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.weights import Weights

Arrange = Callable[[ModelConfig, Tensors], Tensors]
Derived = Callable[[Mapping[str, Any]], Any]
Refine = Callable[[Fields, ModelConfig], ModelConfig]


def as_stored(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    return tensors


def unchanged(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return cfg


def with_prefix(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    """`names` as they are, and behind a prefix: checkpoints of the bare model have none."""
    return {**names, **{prefix + name: canonical for name, canonical in names.items()}}


@dataclass(frozen=True, slots=True)
class Family:
    """How to build a model of this family, and where its files differ from a plain llama's."""

    name: str
    build: Callable[[ModelConfig, Weights], Decoder]
    sampling: SamplingParams = GREEDY  # the makers' recommendation
    refine_hf: Refine = unchanged  # reader of config.json's fields that are not common to all families
    refine_gguf: Refine = unchanged
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)  # values of fields that its config.json may leave out
    gguf_names: Mapping[str, str] = field(default_factory=dict)  # layer tensors that GGUF files name otherwise
    # own names of its config.json for common fields
    hf_fields: Mapping[str, str | Derived] = field(default_factory=dict)
    hf_names: Mapping[str, str] = field(default_factory=dict)  # parts of names that checkpoints have otherwise
    per_layer: tuple[str, ...] = ()  # GGUF numbers that may differ from layer to layer
    quantised: tuple[str, ...] = ()  # methods of quantised checkpoints that `arrange` reads
    arrange: Arrange = as_stored  # cuts and order of matrices

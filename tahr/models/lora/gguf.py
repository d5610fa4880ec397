"""Adapters in GGUF files, as llama.cpp's converter writes them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tahr.errors import AdapterError
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.loader.convert_keys import ARCHITECTURES
from tahr.models.loader.registry import family_of, family_of_gguf
from tahr.models.lora.adapter import AdapterTarget, RawFactors
from tahr.models.lora.read import ReadAdapter
from tahr.models.lora.rope_order import REORDERED, to_halves
from tahr.models.parts.weights import gguf_name
from tahr.weights import HostTensor, open_gguf
from tahr.weights.limits import ADAPTER

TENSOR = re.compile(r"(?P<name>.+\.weight)\.lora_(?P<side>[ab])")
MOST_ALPHA = 1e6
# Families that have no architecture of their own.
SHARED = {"mixtral": "llama", "ministral": "llama", "internlm3": "llama", "olmo3": "olmo2"}


def read_gguf_adapter(path: Path, target: AdapterTarget) -> ReadAdapter:
    """The tensors of an adapter by the names of the model's linears."""
    file = open_gguf(path, ADAPTER)
    cfg = target.config
    check_kind(file.metadata, cfg)
    alpha = Fields(file.metadata, "the adapter's metadata").number("adapter.lora.alpha", -MOST_ALPHA, MOST_ALPHA)
    sides: dict[str, dict[str, HostTensor]] = {}
    names = family_of(cfg).gguf_names
    for name, tensor in file.tensors.items():
        found = TENSOR.fullmatch(name)
        if not found:
            raise AdapterError(
                f"The adapter holds the tensor {name}, which replaces a part of the model instead of adding to it. "
                "Tahr does not do that: merge it into the model."
            )
        home = gguf_name(found["name"], names).removesuffix(".weight")
        if sides.setdefault(home, {}).setdefault(found["side"], tensor) is not tensor:
            raise AdapterError(f"The adapter holds two tensors of {home}.lora_{found['side']}: fetch it again.")
    factors = {name: RawFactors(two.get("a"), two.get("b"), alpha) for name, two in sides.items()}
    if cfg.family in REORDERED and cfg.rope_style == "halves":
        factors = {name: in_halves(name, raw, cfg) for name, raw in factors.items()}
    base = file.metadata.get("general.base_model.0.name") or file.metadata.get("general.name")
    return ReadAdapter(factors, base if isinstance(base, str) else "")


def check_kind(metadata: Mapping[str, Any], cfg: ModelConfig) -> None:
    """Refuse files that are no LoRA adapter, or one for another architecture."""
    if metadata.get("general.type") != "adapter":
        raise AdapterError("The GGUF holds no adapter (its general.type says so): name an adapter's file.")
    if metadata.get("adapter.type") != "lora":
        raise AdapterError(f"The adapter is a {metadata.get('adapter.type')!r}; Tahr knows 'lora' alone.")
    ours = SHARED.get(cfg.family) or ARCHITECTURES.get(cfg.family, cfg.family)
    theirs = metadata.get("general.architecture")
    family = family_of_gguf(theirs)
    if theirs != ours and not (family and family.name == cfg.family):
        raise AdapterError(
            f"The adapter was made for a {theirs!r} model, but this one is a {ours!r}: use it with its own base model."
        )
    if metadata.get("adapter.alora.invocation_tokens") is not None:
        raise AdapterError("The adapter begins to work at certain tokens (aLoRA), which Tahr does not do: use another.")


def in_halves(name: str, raw: RawFactors, cfg: ModelConfig) -> RawFactors:
    """GGUF files of some families hold queries and keys in pairs order, checkpoints never do."""
    return replace(raw, b=to_halves(name, raw.b, cfg)) if raw.b else raw

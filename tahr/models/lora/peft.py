"""Adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

The tensors say which linears are adapted and with which rank; the configuration adds the scale. Everything in it that
would make the adapter mean something else is refused by name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tahr.backends.api import MAX_RANK
from tahr.errors import AdapterError
from tahr.models.config.fields import Fields
from tahr.models.loader.load import read_object
from tahr.models.loader.registry import family_of
from tahr.models.lora.adapter import AdapterTarget, RawFactors
from tahr.models.lora.read import ReadAdapter
from tahr.models.lora.rope_order import REORDERED, to_pairs
from tahr.models.parts.weights import hf_name
from tahr.weights import HostTensor, open_safetensors
from tahr.weights.limits import ADAPTER

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
TENSOR = re.compile(r"(?P<name>.+)\.lora_(?P<side>[AB])(\.[\w-]+)?\.weight")
PREFIX = "base_model.model."
COPY = ".base_layer.weight"
MOST_ALPHA = 1e6
# Fields that must be absent, false or empty, each with the effect it would have.
REFUSED = {
    "use_dora": "splits weights into length and direction (DoRA)",
    "use_qalora": "pools its inputs (QALoRA)",
    "lora_bias": "adds biases",
    "fan_in_fan_out": "holds its matrices the other way round",
    "modules_to_save": "replaces whole modules",
    "trainable_token_indices": "replaces embeddings of single tokens",
    "target_parameters": "changes single parameters",
    "layer_replication": "repeats layers",
    "alora_invocation_tokens": "begins to work at certain tokens (aLoRA)",
    "ensure_weight_tying": "changes a tied embedding",
}
# Ways to begin a training that change the base model as well.
CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
# With them, targets need not be in all layers; layers_to_transform may be the number of one, which may be 0.
SUBSETS = ("layers_to_transform", "layers_pattern", "exclude_modules")


def read_peft_adapter(folder: Path, target: AdapterTarget) -> ReadAdapter:
    """The tensors of an adapter by the names of the model's linears."""
    if not (folder / CONFIG_NAME).is_file():
        raise AdapterError(f"{str(folder)!r} has no {CONFIG_NAME}: name a folder that PEFT saved an adapter to.")
    config = read_object(folder / CONFIG_NAME, needed=True)
    check_config(config)
    if not (folder / WEIGHTS_NAME).is_file():
        raise AdapterError(
            f"{str(folder)!r} has no {WEIGHTS_NAME}: save the adapter with safe_serialization=True, because other "
            "formats can run code."
        )
    sides = by_linear(open_safetensors(folder / WEIGHTS_NAME, ADAPTER).tensors, target)
    scaling = LoraScaling(config)
    factors = {name: scaling.factors(name, two) for name, two in sides.items()}
    refuse_missing(config, factors, target)
    if target.config.family in REORDERED and target.config.rope_style == "pairs":
        factors = {
            name: replace(raw, b=to_pairs(name, raw.b, target.config)) if raw.b else raw
            for name, raw in factors.items()
        }
    base = Fields(config, CONFIG_NAME).text("base_model_name_or_path")
    return ReadAdapter(factors, base, base_notes(base, target.name))


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse everything but plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"The adapter is a {kind!r}, but Tahr knows 'LORA' alone: use another, or merge it.")
    for name, effect in REFUSED.items():
        if config.get(name):
            raise AdapterError(
                f"The adapter {effect} ({name} is {shown(config[name])}), which Tahr does not do: merge it into the "
                "checkpoint with PEFT, or use another."
            )
    if (bias := config.get("bias", "none")) != "none":
        raise AdapterError(f"The adapter changes biases (bias is {shown(bias)}), which Tahr does not do: use another.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGED_BASES):
        raise AdapterError(
            f"The adapter was trained on a changed base model (init_lora_weights is {shown(start)}): convert it to "
            "plain LoRA with PEFT's path_initial_model_for_weight_conversion."
        )


def shown(value: Any) -> str:
    return repr(value)[:80]


def by_linear(tensors: Mapping[str, HostTensor], target: AdapterTarget) -> dict[str, dict[str, HostTensor]]:
    """Both tensors of each linear, under its canonical name."""
    sides: dict[str, dict[str, HostTensor]] = {}
    names = family_of(target.config).hf_names
    for name, tensor in tensors.items():
        if is_copy(name, tensors, target):
            continue
        found = TENSOR.fullmatch(name)
        if not found:
            raise AdapterError(refusal(name))
        home = hf_name(found["name"].removeprefix(PREFIX), names)
        if sides.setdefault(home, {}).setdefault(found["side"], tensor) is not tensor:
            raise AdapterError(
                f"The adapter holds {name} beside {sides[home][found['side']].name}, which are the same part of it: "
                "there are two adapters in one file. Save each on its own."
            )
    return sides


def is_copy(name: str, tensors: Mapping[str, HostTensor], target: AdapterTarget) -> bool:
    """Whether a tensor is the model's own: PEFT saves the matrix of an adapted head or table beside its factors.

    One of another size has rows for more tokens, which the model lacks.
    """
    home = name.removesuffix(COPY)
    if home == name or not {f"{home}.lora_A.weight", f"{home}.lora_embedding_A"} & tensors.keys():
        return False
    shape = target.linears.get(hf_name(home.removeprefix(PREFIX), family_of(target.config).hf_names))
    return shape is None or tensors[name].shape == (shape.n_rows, shape.n_cols)


def refusal(name: str) -> str:
    """Why a tensor is none of plain LoRA."""
    if "lora_magnitude_vector" in name:
        return f"The adapter holds {name}: it is a DoRA, which Tahr does not do. Merge it with PEFT, or use another."
    if "lora_embedding" in name:
        return f"The adapter holds {name}: it changes the embedding table, which Tahr does not do. Merge it with PEFT."
    return (
        f"The adapter holds {name}, which replaces a part of the model (modules_to_save) instead of adding to it. "
        "Tahr does not do that: merge it into the checkpoint with PEFT."
    )


class LoraScaling:
    """Factors on the products of linears."""

    def __init__(self, config: Mapping[str, Any]):
        fields = Fields(config, CONFIG_NAME)
        self._by_root = fields.flag("use_rslora")
        self._alpha = fields.number("lora_alpha", -MOST_ALPHA, MOST_ALPHA, default=8)
        self._alphas = fields.part("alpha_pattern")
        self._ranks = fields.part("rank_pattern")
        self._rank = fields.count("r", MAX_RANK, default=8)
        for pattern in (self._alphas, self._ranks):
            refuse_expressions(pattern)

    def factors(self, name: str, sides: Mapping[str, HostTensor]) -> RawFactors:
        a = sides.get("A")
        self._check_rank(name, a)
        key = matching(name, self._alphas.values)
        alpha = self._alphas.number(key, -MOST_ALPHA, MOST_ALPHA) if key else self._alpha
        if not alpha:
            raise AdapterError(f"The adapter's alpha for {name} is 0: it would change nothing. Fetch it again.")
        return RawFactors(a, sides.get("B"), alpha, self._by_root)

    def _check_rank(self, name: str, a: HostTensor | None) -> None:
        key = matching(name, self._ranks.values)
        rank = self._ranks.count(key, MAX_RANK) if key else self._rank
        if a is not None and a.shape and a.shape[0] != rank:
            raise AdapterError(
                f"The tensors of {name} have rank {a.shape[0]}, but {CONFIG_NAME} says {rank}: they do not belong "
                "together. Fetch the adapter again."
            )


def refuse_expressions(pattern: Fields) -> None:
    """PEFT takes regular expressions here; Tahr reads names, because an expression of a stranger may never end."""
    for key in pattern.values:
        if not isinstance(key, str) or not re.fullmatch(r"\^?[\w.]+", key):
            raise AdapterError(
                f"{pattern.where} has the key {shown(key)}, a regular expression: Tahr reads names of modules there."
            )


def matching(name: str, keys: Iterable[str]) -> str:
    """The first key that names a module, by its last parts or, after ^, by all of them; empty if none does."""
    return next((key for key in keys if name == key.lstrip("^") or name.endswith(f".{key}")), "")


def refuse_missing(config: Mapping[str, Any], found: Mapping[str, Any], target: AdapterTarget) -> None:
    """Where the configuration lists modules, each of them in the model must have its tensors."""
    listed = config.get("target_modules")
    if not isinstance(listed, list) or any(config.get(name) not in (None, [], "") for name in SUBSETS):
        return
    wanted = (name for name in target.linears if matching(name, (str(each) for each in listed)))
    missing = [name for name in wanted if name not in found]
    if missing and set(found) <= target.linears.keys():
        raise AdapterError(
            f"The adapter lacks the tensors of {missing[0]}"
            + (f" and {len(missing) - 1} more linears" if len(missing) > 1 else "")
            + ", which its target_modules name: it is incomplete, or was made for a smaller model. Fetch it again."
        )


def base_notes(base: str, model: str) -> tuple[str, ...]:
    """A hint where the names of the two models have nothing in common; names prove nothing."""
    ours = plain_name(model)
    theirs = plain_name(base)
    if not ours or not theirs or ours in theirs or theirs in ours:
        return ()
    return (f"The adapter says it was made for {base}; the model here is {model}.",)


def plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower().removesuffix("gguf"))

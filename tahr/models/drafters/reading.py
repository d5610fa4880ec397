"""The config.json of a drafter: which kind it is, and its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tahr.errors import QuantError, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families.llama import LLAMA
from tahr.models.families.qwen3 import QWEN3
from tahr.models.family import Family
from tahr.models.files.hf import quant_scheme, read_hf

KINDS = ("eagle3",)  # the kinds that Tahr runs
# Kinds by what the name of an architecture has in it, the longest names first.
NAMED = ("peagle", "eagle3", "eagle", "dflash", "medusa", "hydra", "mlpspeculator", "mtp")
# Families of the layers of a drafter.
LAYERS: dict[str, Family] = {"llama": LLAMA, "qwen3": QWEN3}
MOST_TAPS = 16


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """An EAGLE-3 drafter in numbers."""

    layers: ModelConfig
    n_draft_vocab: int  # tokens that it may guess
    target_width: int  # width of the model it was trained for
    taps: tuple[int, ...]  # layers of that model whose input it reads; none: the usual ones
    norm_before_residual: bool  # the normed hidden row enters the residual stream
    norm_before_fc: bool  # the rows of all layers are normed as one
    norm_each: bool  # the row of each layer is normed
    norm_output: bool  # the next guess reads the row after the last norm

    @property
    def n_taps(self) -> int:
        return len(self.taps) or 3


def drafter_kind(config: Mapping[str, Any]) -> str:
    """The kind of drafter that a config.json is of; empty for a model that needs no other."""
    said = config.get("speculators_model_type")
    inner = config.get("speculators_config")
    if said is None and isinstance(inner, Mapping):
        said = inner.get("algorithm")
    if said is not None or inner is not None:
        return str(said or "unknown")[:80]
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    plain = name.lower().replace("_", "").replace("-", "")
    kind = next((kind for kind in NAMED if kind in plain), "")
    return kind or ("eagle3" if "draft_vocab_size" in config else "")


def refuse_drafter(config: Mapping[str, Any]) -> None:
    """Refuse a drafter where a model is wanted."""
    if kind := drafter_kind(config):
        raise UnsupportedModel(
            f"This is a drafter ({kind}), which guesses for the model it was trained for: load that model, and name "
            "this one with --spec-draft."
        )


def read_drafter(config: Mapping[str, Any]) -> DrafterConfig:
    """The numbers in a drafter's config.json: as the speculators library writes it, or as EAGLE's authors did."""
    kind = drafter_kind(config)
    if kind not in KINDS or config.get("parallel_drafting"):
        said = "one that drafts several tokens in one pass" if kind in KINDS else f"of the kind {kind!r}"
        raise UnsupportedModel(
            f"The drafter is {said}, which Tahr does not run: it runs {', '.join(KINDS)}. Take another drafter, a "
            "smaller model of the same vocabulary, or --spec-ngram."
        )
    f = Fields(config, "config.json")
    inner = f.part("transformer_layer_config")
    layers = read_layers(inner.values or config)
    more = f.part("eagle_config")
    if not more.flag("use_aux_hidden_state", True):
        raise UnsupportedModel("The drafter reads the last layer alone, as EAGLE-1 does, which Tahr does not run.")
    each = f.flag("fc_norm")
    together = f.flag("norm_before_fc")
    if each and together:
        raise f.wrong("fc_norm", "false where norm_before_fc is true")
    return DrafterConfig(
        layers=layers,
        n_draft_vocab=f.count("draft_vocab_size", layers.n_vocab, default=layers.n_vocab),
        target_width=f.count("target_hidden_size", limits.MOST_WIDTH, default=layers.width),
        taps=read_taps(f) or read_taps(more),
        norm_before_residual=f.flag("norm_before_residual"),
        norm_before_fc=together,
        norm_each=each,
        norm_output=f.flag("norm_output"),
    )


def read_layers(config: Mapping[str, Any]) -> ModelConfig:
    """The layers of a drafter."""
    kind = config.get("model_type")
    family = LAYERS.get(kind) if isinstance(kind, str) else None
    if family is None:
        known = ", ".join(LAYERS)
        raise UnsupportedModel(f"The drafter has layers of the type {str(kind)[:80]!r}; Tahr runs {known}.")
    if quant_scheme(config, family) is not None:
        raise QuantError("The drafter is quantised, which Tahr does not read: take one in bf16.")
    # What kind of task the layers of another program's file are named for does not matter here.
    return read_hf({name: value for name, value in config.items() if name != "architectures"}, family)


def read_taps(f: Fields) -> tuple[int, ...]:
    """The layers of the model whose input a drafter reads, as far as its file says."""
    name = "eagle_aux_hidden_state_layer_ids"
    items = f.items(name)
    if len(items) > MOST_TAPS or not all(map(is_layer, items)) or items != sorted(set(items)):
        raise f.wrong(name, f"at most {MOST_TAPS} numbers of layers, in order")
    return tuple(items)


def is_layer(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < limits.MOST_LAYERS

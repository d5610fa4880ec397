"""Puts a drafter beside the model it was trained for, and refuses one that belongs to another."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tahr.backends.api import Backend, Ints
from tahr.errors import ConfigError
from tahr.models.decoder import Decoder
from tahr.models.drafters.eagle3 import TABLE, Drafter
from tahr.models.drafters.reading import DrafterConfig, drafter_kind, read_drafter
from tahr.models.drafters.vocabulary import MAP, draft_tokens
from tahr.models.loader.load import OpenedModel
from tahr.models.parts.weights import Weights
from tahr.offload.homes import TensorSize
from tahr.weights.tensor import HostTensor
from tahr.weights.watch import refuse_changed

# Tensors that say again what others say, or copies of the model's.
NOT_READ = (MAP, "t2d", "verifier_norm.weight", "verifier_lm_head.weight")


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter on a backend."""

    drafter: Drafter
    tokens: Ints | None  # token of each of its logits; None: those of the model
    sizes: Mapping[str, TensorSize]
    n_vector_bytes: int
    n_weight_bytes: int


def is_drafter(source: OpenedModel) -> bool:
    """Whether files hold a drafter, which cannot run alone."""
    return source.format == "safetensors" and bool(drafter_kind(source.config))


def load_drafter(source: OpenedModel, backend: Backend, target: Decoder, with_map: bool = True) -> LoadedDrafter:
    """Build a drafter on the backend of its model, with what it shares with that."""
    backend.check_drafter()
    cfg = for_target(read_drafter(source.config), target, source.name)
    tokens = draft_tokens(cfg, source.tensors) if with_map else None
    weights = Weights(cfg.layers, by_plain_name(source.tensors), backend)
    drafter = Drafter(cfg, weights, target)
    refuse_changed(tensor.source for tensor in source.tensors.values())
    counts = weights.counts
    sizes = {name: TensorSize(w.format, w.n_bytes, w.file_bytes) for name, w in counts.sizes.items()}
    return LoadedDrafter(drafter, tokens, sizes, counts.n_vector_bytes, counts.total_bytes)


def for_target(cfg: DrafterConfig, target: Decoder, name: str) -> DrafterConfig:
    """The drafter's numbers, beside a model that they fit."""
    model = target.config
    refuse_other_model(cfg, target, name)
    taps = cfg.taps or usual_taps(model.n_layers)
    if not taps or taps[-1] >= model.n_layers:
        said = f"layers {', '.join(map(str, taps))}" if taps else "the third layer and the third from the end"
        raise ConfigError(
            f"The drafter {name} reads what {said} of its model are given, but this model has {model.n_layers} layers, "
            "from 0 on: take the drafter that was trained for it."
        )
    return replace(cfg, taps=taps)


def refuse_other_model(cfg: DrafterConfig, target: Decoder, name: str) -> None:
    """Refuse a drafter whose numbers are not those of the model."""
    model = target.config
    pairs = [
        ("rows of", cfg.target_width, model.width, "numbers"),
        ("a vocabulary of", cfg.layers.n_vocab, model.n_vocab, "tokens"),
    ]
    for what, own, theirs, unit in pairs:
        if own != theirs:
            raise ConfigError(
                f"The drafter {name} was trained for a model with {what} {own} {unit}, but this one has {theirs}: take "
                "the drafter that was trained for it."
            )


def usual_taps(n_layers: int) -> tuple[int, ...]:
    """The layers that drafters read where their files do not say: one near either end, and the one in the middle."""
    taps = (2, n_layers // 2, n_layers - 3)
    return taps if taps == tuple(sorted(set(taps))) else ()


def by_plain_name(tensors: Mapping[str, HostTensor]) -> dict[str, HostTensor]:
    """The tensors by one set of names, whoever wrote the file."""
    found = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
        if plain not in NOT_READ and not plain.endswith("rotary_emb.inv_freq"):
            found[TABLE if plain == "embed_tokens.weight" else plain] = tensor
    return found

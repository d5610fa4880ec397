"""Where a decoder may be cut into stages, and what one stage hands on to the next."""

from typing import NamedTuple

from tahr.backends.api import Tensor
from tahr.errors import ConfigError
from tahr.models.config.record import ModelConfig


class Carried(NamedTuple):
    """Input of the next stage, or after the last layer the hidden rows. Everything added so far is in `rows`."""

    rows: Tensor
    per_layer: Tensor | None = None  # inputs of all layers besides the stream, in families that have them


def kv_source(cfg: ModelConfig, layer: int) -> int:
    """Whose keys and values a layer reads: its own, or those of the last layer of its kind that has any."""
    n_own = cfg.n_layers - cfg.n_kv_shared
    if layer < n_own:
        return layer
    local = bool(cfg.kinds[layer].window)
    return max(i for i in range(n_own) if bool(cfg.kinds[i].window) == local)


def legal_cuts(cfg: ModelConfig) -> list[int]:
    """The layers that a stage other than the first may begin with: no layer from there on reads keys before it."""
    if cfg.audio:
        return []  # an encoder stores keys and values in all layers at once
    sources = [kv_source(cfg, layer) for layer in range(cfg.n_layers)]
    return [cut for cut in range(1, cfg.n_layers) if min(sources[cut:]) >= cut]


def check_stage(cfg: ModelConfig, layers: range) -> None:
    """Refuse a range of layers that cannot be a stage."""
    whole = range(cfg.n_layers)
    if layers.step != 1 or not layers or layers.start not in whole or layers[-1] not in whole:
        raise ConfigError(f"A stage is a range of the model's {cfg.n_layers} layers, in order; {layers} is none.")
    inner = [cut for cut in (layers.start, layers.stop) if 0 < cut < cfg.n_layers]
    if illegal := [cut for cut in inner if cut not in legal_cuts(cfg)]:
        begins = ", ".join(map(str, [0, *legal_cuts(cfg)]))
        raise ConfigError(
            f"A stage cannot begin or end before layer {illegal[0]}: later layers read the keys of earlier ones there. "
            f"Stages of this model may begin with layers {begins}."
        )

"""A toy state-space family: its layers keep a decaying sum of what they read, in place of keys and values.

`toy(backend)` has states alone; with `hybrid`, every other layer attends. Both run on `ToyBackend` only: no other
backend has the op.
"""

from typing import Any

import numpy as np

from model_cases import LLAMA, make_weights, values
from tahr.backends.api import LayerMemory, StateShape, Tensor, Vector
from tahr.backends.reference.backend import ReferenceBackend
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.loader import Loaded, from_hf
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights
from tahr.weights import FORMATS, HostTensor

CONFIG = {**LLAMA, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 64}


class ToyBackend(ReferenceBackend):
    """The reference with one op more."""

    def decaying_sum(self, x: Tensor, decay: Vector, memory: LayerMemory) -> Tensor:
        """The state after each token: decay * state + x, starting from zeros at position 0."""
        step, out = memory.step, np.empty_like(x.data)
        for seq in range(step.n_seqs):
            first, end = step.query_start[seq : seq + 2]
            slot = step.state_slots[seq]
            state = np.zeros_like(memory.data[slot]) if step.positions[first] == 0 else memory.data[slot]
            for token in range(first, end):
                state = decay.data * state + x.data[token]
                out[token] = state
            memory.data[slot] = state
        return Tensor(x.width, x.rows, out)


class DecayingSum:
    """out(decaying_sum(in(x))): the mixer of the toy."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights):
        self.layer = layer
        self.memory = StateShape((cfg.width,))
        self.inward = w.linear("in_proj", cfg.width, cfg.width)
        self.decay = w.vector("decay", cfg.width)
        self.out = w.linear("out_proj", cfg.width, cfg.width)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        be: Any = run.backend  # a ToyBackend, perhaps inside of another
        mixed = be.decaying_sum(be.linear(x.rows(), self.inward), self.decay, run.memory(self.layer))
        out: Tensor = be.linear(mixed, self.out)
        return out


def toy(be: ToyBackend, hybrid: bool = False) -> Loaded:
    """A model of three layers with weights that any machine can make again."""
    cfg = from_hf(CONFIG)
    w = Weights(cfg, {name: host_tensor(name, array) for name, array in toy_weights().items()}, be)

    def layer(i: int) -> DecoderLayer:
        at = w.at(f"model.layers.{i}")
        attends = hybrid and i % 2 == 1
        attention = Attention(cfg, i, at.at("self_attn")) if attends else DecayingSum(cfg, i, at.at("state"))
        return DecoderLayer(
            attention, GatedMLP(cfg, at.at("mlp")), at.pick("input_layernorm", "post_attention_layernorm")
        )

    return Loaded(Decoder(cfg, w, [layer(i) for i in range(cfg.n_layers)]), cfg, [], w.counts.total_bytes)


def toy_weights() -> dict[str, np.ndarray]:
    """A llama's, and those of the states."""
    found, width = dict(make_weights(CONFIG)), CONFIG["hidden_size"]
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}.state"
        for name in ("in_proj", "out_proj"):
            found[f"{at}.{name}.weight"] = values(f"{at}.{name}.weight", (width, width), CONFIG)
        found[f"{at}.decay"] = np.linspace(0.2, 0.95, width, dtype=np.float32)
    return found


def host_tensor(name: str, array: np.ndarray) -> HostTensor:
    return HostTensor(name, FORMATS["F32"], array.shape, array.reshape(-1).view(np.uint8))

"""Whisper: an encoder of recordings, and a decoder whose tokens look at its rows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from tahr.backends.api import Backend, KVStore, StepInputs, Tensor
from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.encoders.layers import of_floats
from tahr.models.families.gpt.gpt2 import positioned
from tahr.models.family import Family
from tahr.models.files.hf import common
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.cross_attention import CrossAttention, CrossedLayer
from tahr.models.parts.makers import Make
from tahr.models.parts.mlp import PlainMLP
from tahr.models.parts.stream import ForwardPass
from tahr.models.parts.text_head import HeadStep, TextHead
from tahr.models.parts.weights import Weights
from tahr.models.towers.recording import RecordingEncoder, arrange_convolutions, encoder_config

MOST_BINS = 512
MOST_ROWS = 1 << 14


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    assert cfg.audio, "the configuration has no encoder"
    w.backend.check_cross()
    layers = [crossed_layer(cfg, i, cfg.audio.n_rows, w.at(f"model.layers.{i}")) for i in range(cfg.n_layers)]
    decoder = WhisperDecoder(cfg, w, layers)
    crossed = [layer.cross for layer in layers]
    decoder.memory += tuple(each.memory for each in crossed)
    audio = w.at("audio").numbered(cfg.audio.layers)
    decoder.tower = RecordingEncoder(cfg.audio, audio, crossed, decoder.files)
    return decoder


class WhisperDecoder(Decoder):
    """Its hidden rows are what times of words are made of: the state after the final norm, then each layer's queries
    for the encoder's rows. `text_head` makes logits of the former."""

    def __init__(self, cfg: ModelConfig, w: Weights, layers: Sequence[CrossedLayer]):
        super().__init__(cfg, w, layers)
        assert self.head, "a Whisper writes"
        self.crossed = layers
        self.text_head = TextHead((HeadStep(self.head),), cfg.n_vocab)

    def forward(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """The logits of `step.logit_rows`."""
        return self.logits(backend, super().hidden(backend, step, kv))

    def hidden(self, backend: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        """States and queries of `step.logit_rows`."""
        run = ForwardPass(backend, step, kv, self.ropes)
        stream = self._stream(run, None)
        queries: list[Tensor] = []
        for layer in self.crossed:
            queries.append(backend.gather_rows(layer.crossed(run, stream), step))
            layer.mlp(run, stream)
        stream.gather_rows(step)
        return reduce(partial(backend.join_heads, n_heads=1), queries, stream.normed(self.norm))


def crossed_layer(cfg: ModelConfig, i: int, n_rows: int, w: Weights) -> CrossedLayer:
    return CrossedLayer(
        attention=Attention(cfg, i, w.at("self_attn")),
        cross=CrossAttention(cfg, i, n_rows, w.at("cross_attn")),
        ffn=PlainMLP(cfg, w.at("mlp")),
        norms=(w.norm("input_layernorm"), w.norm("cross_layernorm"), w.norm("post_attention_layernorm")),
    )


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.flag("scale_embedding"):
        raise UnsupportedModel("This Whisper scales its embedding, which no released one does; choose another.")
    n_rows = f.count("max_source_positions", MOST_ROWS, default=1500)
    audio = encoder_config(layers_of(f, cfg.family, "encoder"), f.count("num_mel_bins", MOST_BINS, default=80), n_rows)
    decoder = positioned(layers_of(f, cfg.family, "decoder"))
    return replace(decoder, audio=audio, tied=True)


def layers_of(f: Fields, family: str, side: str) -> ModelConfig:
    """The layers of the encoder or the decoder; what a config.json says of layers in general may be of either."""
    own = {
        "num_hidden_layers": f.get(f"{side}_layers"),
        "num_attention_heads": f.get(f"{side}_attention_heads"),
        "intermediate_size": f.get(f"{side}_ffn_dim"),
    }
    cfg = positioned(common(replace(f, values={**f.values, **own}), family))
    return replace(cfg, n_positions=0, qkv_bias=True, out_bias=True, mlp_bias=True)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """Keys have no bias in the files."""
    assert cfg.audio, "the configuration has no encoder"
    arrange_convolutions(cfg.audio, tensors)
    parts = [f"audio.layers.{i}.self_attn" for i in range(cfg.audio.layers.n_layers)]
    parts += [f"model.layers.{i}.{name}" for i in range(cfg.n_layers) for name in ("self_attn", "cross_attn")]
    for part in parts:
        tensors.define(f"{part}.k_proj.bias", zeros(f"{part}.k_proj.bias", cfg.width))
    return tensors


def zeros(name: str, width: int) -> Make:
    return lambda: of_floats(name, np.zeros(width, np.float32))


NAMES = {
    "model.encoder.layers": "audio.layers",
    "model.encoder.conv1": "audio.conv1",
    "model.encoder.conv2": "audio.conv2",
    "model.encoder.embed_positions": "audio.positions",
    "model.encoder.layer_norm": "audio.norm",
    "model.decoder.layers": "model.layers",
    "model.decoder.embed_tokens": "model.embed_tokens",
    "model.decoder.embed_positions": "model.embed_positions",
    "model.decoder.layer_norm": "model.norm",
    "self_attn_layer_norm": "input_layernorm",
    "encoder_attn_layer_norm": "cross_layernorm",
    "final_layer_norm": "post_attention_layernorm",
    "encoder_attn": "cross_attn",
    "out_proj": "o_proj",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
    "proj_out": "lm_head",
}
WHISPER = Family(
    "whisper",
    build,
    refine_hf=refine_hf,
    hf_defaults={"rms_norm_eps": 1e-5, "max_target_positions": 448, "scale_embedding": False},
    hf_fields={
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "num_hidden_layers": "decoder_layers",
        "intermediate_size": "decoder_ffn_dim",
        "max_position_embeddings": "max_target_positions",
        "hidden_act": "activation_function",
    },
    hf_names=NAMES,
    arrange=arrange,
)

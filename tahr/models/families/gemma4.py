"""Gemma 4: Gemma 3 with wider heads in global layers, values that are normed too, a factor on the output of each
layer. The E sizes give every layer an embedding of its own, and their last layers read the keys of earlier ones."""

from tahr.backends.api import Tensor
from tahr.config import SamplingParams
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.families import gemma3, gemma4_experts
from tahr.models.families.gemma4_layers import Gemma4Layer
from tahr.models.families.gemma4_reading import refine_gguf, refine_hf
from tahr.models.family import Family
from tahr.models.parts.stream import ForwardPass
from tahr.models.parts.weights import Weights


class Gemma4Decoder(Decoder):
    """A decoder that looks every token up a second time, for all layers at once."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        super().__init__(cfg, w, [Gemma4Layer(cfg, i, w.at(f"model.layers.{i}")) for i in range(cfg.n_layers)])
        n = cfg.n_layers * cfg.per_layer_width
        if n:
            self.second_table = w.matrix("model.embed_tokens_per_layer.weight", cfg.n_vocab, n)
            self.projection = w.linear("model.per_layer_model_projection", n, cfg.width)
            self.projection_norm = w.norm("model.per_layer_projection_norm", cfg.per_layer_width)

    def prepare(self, run: ForwardPass, embedded: Tensor) -> None:
        cfg = self.config
        b = run.backend
        if cfg.per_layer_width:
            projected = b.scale(b.linear(embedded, self.projection), cfg.width**-0.5)
            normed = b.head_norm(projected, self.projection_norm.gain, cfg.norm_eps)
            looked_up = b.embed(self.second_table, run.step, cfg.per_layer_width**0.5)
            run.per_layer = b.scale(b.add(normed, looked_up), 2**-0.5)


GEMMA4 = Family(
    "gemma4",
    Gemma4Decoder,
    SamplingParams(temperature=1.0, top_k=64, top_p=0.95),
    refine_hf,
    refine_gguf,
    hf_defaults={
        "vocab_size": 262144,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    gguf_names={
        **gemma3.GGUF_NAMES,
        **gemma4_experts.GGUF_NAMES,
        "layer_output_scale": "layer_scalar",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
    },
    hf_names={"layer_scalar": "layer_scalar.weight", **gemma4_experts.HF_NAMES},
    hf_fields={"num_experts_per_tok": "top_k_experts"},
    arrange=gemma4_experts.arrange,
    per_layer=("attention.head_count_kv", "feed_forward_length"),
)

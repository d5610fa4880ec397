"""GPT-2: layer norms, learned positions, an MLP without a gate; queries, keys and values are one matrix, and
checkpoints hold all matrices the other way round."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import NO_ROPE
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.families.phi3 import qkv_heights
from tahr.models.family import Family, with_prefix
from tahr.models.files.hf import activation, times
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.mlp import PlainMLP
from tahr.models.parts.sublayers import DecoderLayer
from tahr.models.parts.weights import Weights

TURNED = ("self_attn.qkv_turned", "self_attn.o_turned", "mlp.up_turned", "mlp.down_turned")


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    """Any decoder of this kind; a parallel layer without a second norm has one for both sublayers."""

    def layer(i: int, at: Weights) -> DecoderLayer:
        first = at.norm("input_layernorm")
        second = at.norm("post_attention_layernorm") if at.has("post_attention_layernorm.weight") else first
        return DecoderLayer(
            attention=Attention(cfg, i, at.at("self_attn")),
            ffn=PlainMLP(cfg, at.at("mlp")),
            norms=(first, second),
            parallel=cfg.parallel,
        )

    return decoder_of(cfg, w, layer)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    tensors.transpose({part: part.replace("turned", "proj") for part in TURNED})
    return split_qkv(cfg, tensors)


def split_qkv(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """Queries, keys and values, which lie one after the other, apart."""
    tensors.split("self_attn.qkv_proj", qkv_heights(cfg))
    return tensors


def split_by_head(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """Split rows that checkpoints hold by key head: its queries, the key, the value, then those of the next one."""
    heights = {name: n // cfg.n_kv_heads for name, n in qkv_heights(cfg).items()}
    tensors.split("self_attn.qkv_by_head", heights, n_groups=cfg.n_kv_heads)
    return split_qkv(cfg, tensors)


def layer_normed(cfg: ModelConfig) -> ModelConfig:
    """`cfg` with layer norms, which may have biases."""
    return replace(cfg, norm_kind="layer", norm_bias=True)


def unrotated(cfg: ModelConfig) -> ModelConfig:
    """`cfg` without rope."""
    return replace(cfg, kinds=tuple(replace(kind, rope=NO_ROPE) for kind in cfg.kinds))


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    if f.flag("scale_attn_by_inverse_layer_idx") or not f.flag("scale_attn_weights", True):
        raise UnsupportedModel("This GPT-2 scales attention otherwise than by the size of its heads; choose another.")
    cfg = replace(positioned(cfg), activation=activation(f, "activation_function"))
    return replace(cfg, qkv_bias=True, out_bias=True, mlp_bias=True)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(positioned(cfg), activation="gelu_tanh")


def positioned(cfg: ModelConfig) -> ModelConfig:
    return replace(unrotated(layer_normed(cfg)), n_positions=cfg.max_context)


# Names that the configs and checkpoints of this time share.
FIELDS = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "rms_norm_eps": "layer_norm_epsilon"}
LAYERS_AND_NORM = {"h": "model.layers", "ln_f": "model.norm"}
BY_HEAD = {
    "self_attention.query_key_value": "self_attn.qkv_by_head",
    "self_attention.dense": "self_attn.o_proj",
    "dense_h_to_4h": "up_proj",
    "dense_4h_to_h": "down_proj",
}
GPT2 = Family(
    "gpt2",
    build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults={"activation_function": "gelu_new", "tie_word_embeddings": True, "vocab_size": 50257},
    hf_fields={
        "hidden_size": "n_embd",
        **FIELDS,
        "max_position_embeddings": "n_positions",
        "intermediate_size": lambda config: config.get("n_inner") or times("n_embd", 4)(config),
    },
    hf_names={
        **with_prefix("transformer.", LAYERS_AND_NORM | {"wte": "model.embed_tokens", "wpe": "model.embed_positions"}),
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.c_attn": "self_attn.qkv_turned",
        "attn.c_proj": "self_attn.o_turned",
        "mlp.c_fc": "mlp.up_turned",
        "mlp.c_proj": "mlp.down_turned",
    },
    arrange=arrange,
)

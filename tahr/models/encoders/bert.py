"""BERT; RoBERTa and XLM-R, whose positions begin after that of padding. Rerankers of both have a classifier."""

from dataclasses import replace

from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.encoders.layers import POSITIONS, add_type, double_by_type, encoder, last_rows, post_norm_encoder
from tahr.models.encoders.reading import gguf_labels, hf_labels
from tahr.models.families.gpt.gpt2 import split_qkv, unrotated
from tahr.models.family import Family, with_prefix
from tahr.models.files.hf import activation
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.mlp import PlainMLP
from tahr.models.parts.weights import Weights

MOST_TYPES = 64


def build(cfg: ModelConfig, w: Weights) -> Decoder:
    return post_norm_encoder(cfg, w, PlainMLP)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    stored = tensors.make_of(POSITIONS)
    if cfg.first_position and stored().shape[:1] == (cfg.first_position + cfg.n_positions,):
        tensors.define(POSITIONS, last_rows(stored, cfg.n_positions))
    if cfg.paired_types:
        double_by_type(tensors)
    else:
        add_type(tensors, POSITIONS)
    return split_qkv(cfg, tensors)


def shaped(cfg: ModelConfig, n_positions: int, n_types: int, n_labels: int) -> ModelConfig:
    paired = n_labels > 0 and n_types > 1  # the second text of a pair has another type
    return replace(
        unrotated(encoder(cfg, n_labels)),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        final_norm=False,
        n_positions=n_positions,
        max_context=n_positions,
        paired_types=paired,
        n_vocab=cfg.n_vocab * (2 if paired else 1),
    )


def refine_hf(f: Fields, cfg: ModelConfig, first_position: int = 0) -> ModelConfig:
    kind = f.text("position_embedding_type", "absolute")
    if kind != "absolute" or f.flag("is_decoder"):
        raise UnsupportedModel(f"This {cfg.family} is a decoder or has {kind} positions; Tahr runs plain encoders.")
    if cfg.max_context <= first_position:
        raise f.wrong("max_position_embeddings", f"above {first_position}")
    n_types = f.count("type_vocab_size", MOST_TYPES, default=2, least=0)
    cfg = replace(cfg, activation=activation(f, "hidden_act"))
    n_positions = cfg.max_context - first_position
    return replace(shaped(cfg, n_positions, n_types, hf_labels(f)), first_position=first_position)


def refine_roberta(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return refine_hf(f, cfg, f.count("pad_token_id", cfg.n_vocab, default=1, least=0) + 1)


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    types = f.values.get("tokenizer.ggml.token_type_count")
    n_types = types if isinstance(types, int) else 1
    return shaped(replace(cfg, activation="gelu"), cfg.max_context, n_types, gguf_labels(f))


LAYER_NAMES = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "output_norm",
    "gamma": "weight",  # first checkpoints only
    "beta": "bias",
}
TOP_NAMES = {
    "encoder.layer": "model.layers",
    "embeddings.word_embeddings": "model.embed_tokens",
    "embeddings.position_embeddings": "model.embed_positions",
    "embeddings.token_type_embeddings": "model.embed_types",
    "embeddings.LayerNorm": "model.embed_norm",
}


GGUF_NAMES = {"attn_output_norm": "attention_norm", "layer_output_norm": "output_norm"}
FIELDS = {"rms_norm_eps": "layer_norm_eps"}
DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "vocab_size": 30522}
BERT = Family(
    "bert",
    build,
    refine_hf=refine_hf,
    refine_gguf=refine_gguf,
    hf_defaults=DEFAULTS,
    gguf_names=GGUF_NAMES,
    hf_fields=FIELDS,
    hf_names=LAYER_NAMES
    | with_prefix("bert.", TOP_NAMES)
    | {"pooler.dense": "classifier.dense", "bert.pooler.dense": "classifier.dense", "classifier": "classifier.out"},
    arrange=arrange,
)
ROBERTA = Family(
    "roberta",
    build,
    refine_hf=refine_roberta,
    hf_defaults=DEFAULTS | {"layer_norm_eps": 1e-5, "vocab_size": 50265},
    hf_fields=FIELDS,
    hf_names=LAYER_NAMES | with_prefix("roberta.", TOP_NAMES) | {"classifier.out_proj": "classifier.out"},
    arrange=arrange,
)

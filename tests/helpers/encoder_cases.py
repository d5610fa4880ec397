"""Tiny random encoders, one or more per family: configs, weights that any machine can make again, GGUF forms."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from gguf_maker import Gguf, Stored, Typed

Config = dict[str, Any]
Arrays = dict[str, np.ndarray]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "encoders"
SHAPES = FIXTURES / "shapes.json"
N_TOKENS, N_FIRST = 30, 11  # of a text; of the first text of a pair

BASE: Config = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "type_vocab_size": 2,
}
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def of(kind: str, architecture: str, **more: Any) -> Config:
    return {**BASE, "model_type": kind, "architectures": [architecture], **more}


GEMMA = {
    "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7,
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    "use_bidirectional_attention": True, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
QWEN = {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
MODERN = {"norm_eps": 1e-5, "local_attention": 8, "num_hidden_layers": 5, "bos_token_id": 1, "eos_token_id": 2,
          "cls_token_id": 1, "sep_token_id": 2}  # fmt: skip
ROBERTA = {"pad_token_id": 1, "max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
CASES: dict[str, Config] = {
    "bert": of("bert", "BertModel", layer_norm_eps=1e-12, hidden_act="gelu"),
    "bert_ranker": of("bert", "BertForSequenceClassification", layer_norm_eps=1e-12, **ONE_LABEL),
    "roberta": of("roberta", "RobertaModel", **ROBERTA),
    "xlmr_ranker": of("xlm-roberta", "XLMRobertaForSequenceClassification", **ROBERTA, **ONE_LABEL),
    "modernbert": of("modernbert", "ModernBertModel", **MODERN),
    "modernbert_ranker": of(
        "modernbert", "ModernBertForSequenceClassification", **MODERN, **ONE_LABEL, classifier_pooling="mean"
    ),
    "nomic_bert": of("nomic_bert", "NomicBertModel", layer_norm_eps=1e-12, rope_theta=1000.0),
    "qwen3_embedding": of("qwen3", "Qwen3Model", **QWEN),
    "embedding_gemma": of("gemma3_text", "Gemma3TextModel", **GEMMA),
}
RANKERS = [case for case in CASES if case.endswith("ranker")]


def text_ids(n: int = N_TOKENS) -> list[int]:
    return [3 + (i * i * 7 + 3 * i) % 120 for i in range(n)]


def type_ids() -> list[int]:
    """Of the tokens of a pair."""
    return [0] * N_FIRST + [1] * (N_TOKENS - N_FIRST)


def shapes_of(case: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = json.loads(SHAPES.read_text())[case]
    return shapes


def make_weights(case: str) -> Arrays:
    """The same numbers on every machine: each tensor's values depend on its name and shape alone."""
    return {name: values(name, tuple(shape), CASES[case]) for name, shape in shapes_of(case).items()}


def values(name: str, shape: tuple[int, ...], config: Config) -> np.ndarray:
    draws = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if re.search(r"norm\d?\.weight$", name, re.IGNORECASE):
        return (draws * 0.2 + (config["model_type"] != "gemma3_text")).astype(np.float32)
    return (draws * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)).astype(np.float32)


# ---- GGUF -----------------------------------------------------------------------------------------------------

A = gguf.MODEL_ARCH
ARCHITECTURES = {
    "bert": A.BERT,
    "roberta": A.BERT,
    "xlm-roberta": A.BERT,
    "modernbert": A.MODERN_BERT,
    "nomic_bert": A.NOMIC_BERT,
    "qwen3": A.QWEN3,
    "gemma3_text": A.GEMMA_EMBEDDING,
}
KEYS = {
    "num_hidden_layers": ("block_count", "u32"),
    "hidden_size": ("embedding_length", "u32"),
    "intermediate_size": ("feed_forward_length", "u32"),
    "num_attention_heads": ("attention.head_count", "u32"),
    "num_key_value_heads": ("attention.head_count_kv", "u32"),
    "head_dim": ("attention.key_length", "u32"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", "f32"),
    "layer_norm_eps": ("attention.layer_norm_epsilon", "f32"),
    "norm_eps": ("attention.layer_norm_epsilon", "f32"),
    "rope_theta": ("rope.freq_base", "f32"),
    "sliding_window": ("attention.sliding_window", "u32"),
    "local_attention": ("attention.sliding_window", "u32"),
}


def to_gguf(case: str) -> bytes:
    """A GGUF of the model, tensors named and ordered as converters write them."""
    config = CASES[case]
    arch = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    keys = {key: Typed(kind, config[name]) for name, (key, kind) in KEYS.items() if name in config}
    keys["context_length"] = Typed("u32", 64)
    keys["pooling_type"] = Typed("u32", 4 if case in RANKERS else 3 if case.startswith("qwen3") else 1)
    if config["model_type"] == "modernbert":
        keys |= {"rope.freq_base": Typed("f32", 160000.0), "rope.freq_base_swa": Typed("f32", 10000.0)}
        keys["attention.sliding_window_pattern"] = Typed("u32", 3)
    metadata = {"general.architecture": Typed("str", arch)} | {f"{arch}.{key}": value for key, value in keys.items()}
    if config["model_type"] == "bert":
        metadata["tokenizer.ggml.token_type_count"] = Typed("u32", 2)
    arrays = gguf_arrays(config, make_weights(case))
    return Gguf(metadata, [Stored(n, a.shape[::-1], 0, a.tobytes()) for n, a in arrays.items()]).to_bytes()


def gguf_arrays(config: Config, arrays: Arrays) -> Arrays:
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    out: Arrays = {}
    for name, array in arrays.items():
        stored = names.get_name(gguf_source_name(config, name), try_suffixes=(".weight", ".bias"))
        if stored is None and "pooler" in name:
            continue  # converters drop what embeddings do not use
        assert stored is not None, name
        if config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if stored == "position_embd.weight" and config["model_type"] in ("roberta", "xlm-roberta"):
            array = array[config["pad_token_id"] + 1 :]
        out[stored] = np.ascontiguousarray(array)
    return out


RENAMED = {
    # What converters know these as.
    "pooler.dense": "classifier.dense",
    "classifier.weight": "classifier.out_proj.weight",
    "classifier.bias": "classifier.out_proj.bias",
}


def gguf_source_name(config: Config, name: str) -> str:
    name = re.sub(r"^(bert|roberta|model)\.(?=embeddings|encoder|layers|pooler|final_norm)", "", name)
    if config["model_type"] in ("qwen3", "gemma3_text"):
        return f"model.{name}"
    if config["model_type"] in ("bert", "modernbert") and name.startswith(("classifier.", "bert.pooler", "pooler")):
        return RENAMED.get(name, name.replace("pooler.dense", "classifier.dense"))
    return name

"""Folders of tiny encoders with everything a released one has: tokenizer, pooling, prompts."""

import json
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from encoder_cases import CASES, make_weights
from gguf_maker import safetensors
from model_files import stored_hf, write_hf

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [*SPECIAL, *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase), "cat", "dog"]
PROMPTS = {"prompts": {"query": "find ", "document": "read "}, "default_prompt_name": None}
MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]


def write_encoder(folder: Path, case: str, **files: Any) -> Path:
    """The case's model with a WordPiece tokenizer; `files` is what else lies there, by name."""
    write_hf(folder, CASES[case], make_weights(case))
    wordpiece().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)
    return folder


def write_sentence_model(folder: Path, rows: list[tuple[str, str]] = MODULES, case: str = "bert") -> Path:
    """The same as sentence-transformers saves it, with these modules."""
    write_encoder(folder, case, config_sentence_transformers=PROMPTS, sentence_bert_config={"max_seq_length": 48})
    write_json(folder / "modules.json", modules(rows))
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 48}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


def modules(rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The content of modules.json, from folders and types."""
    types = [f"sentence_transformers.models.{kind}" for _, kind in rows]
    return [{"idx": i, "name": str(i), "path": rows[i][0], "type": kind} for i, kind in enumerate(types)]


def write_dense(folder: Path, n_in: int, n_out: int, activation: str = "Identity") -> np.ndarray:
    """A dense module without bias; its matrix."""
    matrix = np.random.default_rng(n_out).standard_normal((n_out, n_in)).astype(np.float32)
    sizes = {"in_features": n_in, "out_features": n_out, "bias": False}
    write_json(folder / "config.json", sizes | {"activation_function": f"torch.nn.{activation}"})
    (folder / "model.safetensors").write_bytes(safetensors(stored_hf({"linear.weight": matrix})))
    return matrix


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def wordpiece() -> Any:
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.add_special_tokens(SPECIAL)
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made

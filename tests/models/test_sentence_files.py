"""Folders as newer sentence-transformers save them: what used to be in one file is in another."""

from pathlib import Path
from typing import Any

import pytest

from encoder_files import MODULES, modules, write_dense, write_encoder, write_json, write_sentence_model
from tahr.errors import UnsupportedModel
from tahr.models.loader import open_model
from tahr.models.parts.encoding import Encoding

IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


def encoding_of(folder: Path) -> Encoding:
    opened = open_model([], folder)
    found = opened.encoding(opened.model_config())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("beside", "config", "sigmoid"),
    [
        ({"activation_fn": IDENTITY}, {}, False),
        ({"activation_fn": IDENTITY}, {"sentence_transformers": {"activation_fn": SIGMOID}}, False),
        ({"activation_fn": SIGMOID}, {}, True),
        ({}, {"sentence_transformers": {"activation_fn": IDENTITY}}, False),
        ({}, {"sentence_transformers": {"version": "5"}, "sbert_ce_default_activation_function": IDENTITY}, False),
        ({}, {}, True),
    ],
)
def test_activation_of_a_cross_encoder(
    beside: dict[str, Any], config: dict[str, Any], sigmoid: bool, tmp_path: Path
) -> None:
    write_encoder(tmp_path, "bert_ranker", config_sentence_transformers=beside, modules=modules(MODULES[:1]))
    opened = open_model([], tmp_path)
    write_json(tmp_path / "config.json", {**opened.config, **config})
    assert encoding_of(tmp_path).sigmoid == sigmoid


@pytest.mark.parametrize(
    ("own", "tokenizer", "n_tokens"),
    [
        ({"max_seq_length": 48}, {"model_max_length": 20}, 48),
        ({"transformer_task": "feature-extraction"}, {"model_max_length": 20}, 20),
        ({"max_seq_length": None}, {"model_max_length": 10**30}, None),
        ({}, {}, None),
    ],
)
def test_longest_text(own: dict[str, Any], tokenizer: dict[str, Any], n_tokens: int | None, tmp_path: Path) -> None:
    write_sentence_model(tmp_path)
    write_json(tmp_path / "sentence_bert_config.json", own)
    write_json(tmp_path / "tokenizer_config.json", tokenizer)
    assert encoding_of(tmp_path).max_tokens == n_tokens


@pytest.mark.parametrize(
    ("rows", "knobs", "said"),
    [
        ([MODULES[0], ("2_Dense", "Dense")], {}, "every token"),
        ([*MODULES[:2], ("2_Dense", "Dense")], {"module_input_name": "token_embeddings"}, "every token"),
        ([*MODULES[:2], ("2_Dense", "Dense")], {"use_residual": True}, "adds what it reads"),
    ],
)
def test_dense_layers_that_tahr_has_not(
    rows: list[tuple[str, str]], knobs: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """The first is how ColBERT models are saved: no pooling, and a linear of each token."""
    write_sentence_model(tmp_path, rows)
    write_dense(tmp_path / "2_Dense", 48, 16)
    sizes = {"in_features": 48, "out_features": 16, "bias": False, "activation_function": IDENTITY}
    write_json(tmp_path / "2_Dense" / "config.json", {**sizes, **knobs})
    with pytest.raises(UnsupportedModel, match=said):
        open_model([], tmp_path)

"""Decoders that were made into embedding models or classifiers, as the hub has them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from encoder_files import modules, write_json
from model_cases import CASES, Config, make_weights, token_ids
from model_files import to_gguf, write_hf
from model_runs import states
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.loader import Loaded, OpenedModel, from_hf, load, open_model

MISTRAL: Config = {**CASES["mistral"], "sliding_window": None, "architectures": ["MistralModel"]}


def first_state(loaded: Loaded, ids: list[int]) -> np.ndarray:
    found: np.ndarray = states(loaded, ReferenceBackend(), [ids])[0]
    return found


def test_an_embedding_model_needs_no_head(tmp_path: Path) -> None:
    """Saved by its bare class: no prefix, no head, although the embedding is not tied to one."""
    arrays = {n.removeprefix("model."): a for n, a in make_weights(MISTRAL).items() if n != "lm_head.weight"}
    write_hf(tmp_path, MISTRAL, arrays)
    with pytest.raises(CorruptFile, match=r"no tensor lm_head\.weight"):  # nothing says that it embeds
        load(open_model([], tmp_path), ReferenceBackend())
    write_json(tmp_path / "modules.json", modules([("", "Transformer"), ("1_Pooling", "Pooling")]))
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    loaded = load(open_model([], tmp_path), ReferenceBackend())
    assert loaded.decoder.encoding and loaded.decoder.encoding.pooling == "last"
    whole = load(open_model(to_gguf(MISTRAL, make_weights(MISTRAL))), ReferenceBackend())
    np.testing.assert_allclose(first_state(loaded, token_ids()), first_state(whole, token_ids()), atol=1e-5)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_tokens_see_later_ones_where_a_file_says_so(form: str, tmp_path: Path) -> None:
    def model(causal: bool) -> OpenedModel:
        config = CASES["llama"]
        if form == "safetensors":
            return open_model([], write_hf(tmp_path, {**config, "is_causal": causal}, make_weights(config)))
        opened = open_model(to_gguf(config, make_weights(config)))
        return replace(opened, config={**opened.config, "llama.attention.causal": causal})

    ids = token_ids()
    for causal in (True, False):
        loaded = load(model(causal), ReferenceBackend())
        assert (loaded.decoder.encoding is None) == causal
        changed = np.abs(first_state(loaded, ids) - first_state(loaded, [*ids[:-1], ids[-1] ^ 1])).max() > 1e-4
        assert changed != causal


def test_both_directions_with_a_window_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="both directions and has windows"):
        from_hf({**CASES["mistral"], "is_causal": False})


@pytest.mark.parametrize("kind", ["LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaRewardModel"])
def test_a_decoder_with_a_classifier_is_refused(kind: str) -> None:
    """With a tied embedding it would load, and write noise."""
    with pytest.raises(UnsupportedModel, match=f"is a {kind}"):
        from_hf({**CASES["llama"], "architectures": [kind], "tie_word_embeddings": True})

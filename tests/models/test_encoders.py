"""Each encoder family, as a tiny random model: states and scores equal those of transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import backends_here
from encoder_cases import CASES, FIXTURES, N_FIRST, RANKERS, make_weights, text_ids, to_gguf, type_ids
from model_files import write_hf
from model_runs import states
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import TahrError
from tahr.models.encoders.layers import of_floats
from tahr.models.loader import Loaded, OpenedModel, load, open_model
from tahr.weights import HostTensor

TOLERANCE = 1e-4
FILES = [(case, form) for case in CASES for form in ("safetensors", "gguf", "gguf without ones")]


def source(case: str, form: str, folder: Path) -> OpenedModel:
    if form == "safetensors":
        return open_model([], write_hf(folder, CASES[case], make_weights(case)))
    opened = open_model(to_gguf(case))
    if form == "gguf":
        return opened
    return replace(opened, tensors={name: without_ones(tensor) for name, tensor in opened.tensors.items()})


def without_ones(tensor: HostTensor) -> HostTensor:
    """As llama-quantize writes it: the header has no last sizes of 1, which are the first of our shapes."""
    axes = list(tensor.shape)
    while len(axes) > 1 and axes[0] == 1:
        del axes[0]
    return replace(tensor, shape=tuple(axes))


def expected(case: str, what: str) -> np.ndarray:
    found: np.ndarray = np.load(FIXTURES / f"{case}.npz")[what]
    return found


def pair_ids(loaded: Loaded) -> list[int]:
    """The text as a pair: where types are rows of the table, tokens of the second text are others."""
    if not loaded.config.paired_types:
        return text_ids()
    n_vocab = loaded.config.n_vocab // 2
    return [token + n_vocab * kind for token, kind in zip(text_ids(), type_ids(), strict=True)]


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize(("case", "form"), [file for file in FILES if file[0] not in RANKERS])
def test_states_equal_transformers(case: str, form: str, name: str, tmp_path: Path) -> None:
    backend = backends_here.backend(name)
    loaded = load(source(case, form, tmp_path), backend)
    assert not [line for line in loaded.log if line.startswith("Not used")]
    both = states(loaded, backend, [text_ids(), text_ids(N_FIRST)])
    assert np.abs(both[: len(text_ids())] - expected(case, "states")).max() <= TOLERANCE


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize(("case", "form"), [file for file in FILES if file[0] in RANKERS])
def test_scores_equal_transformers(case: str, form: str, name: str, tmp_path: Path) -> None:
    backend = backends_here.backend(name)
    loaded = load(source(case, form, tmp_path), backend)
    head, encoding = loaded.decoder.text_head, loaded.decoder.encoding
    assert head and encoding and encoding.scores_pairs
    found = states(loaded, backend, [pair_ids(loaded)])
    pooled = found.mean(axis=0) if encoding.pooling == "mean" else found[0]
    assert form != "safetensors" or encoding.pooling == CASES[case].get("classifier_pooling", "cls")
    if form != "safetensors":  # the file does not say that the mean is taken
        pooled = found.mean(axis=0) if case == "modernbert_ranker" else pooled
    assert np.abs(head.apply(backend, pooled[None])[0] - expected(case, "scores")).max() <= TOLERANCE


def test_dense_layers_of_a_gguf_follow_pooling() -> None:
    """As in EmbeddingGemma, whose converter takes them over from sentence-transformers."""
    opened, backend, width = (
        open_model(to_gguf("embedding_gemma")),
        ReferenceBackend(),
        CASES["embedding_gemma"]["hidden_size"],
    )
    rng = np.random.default_rng(0)
    up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((96, width), (width, 96)))
    added = {f"dense_{i}.weight": of_floats(f"dense_{i}.weight", m) for i, m in ((2, up), (3, down))}
    loaded = load(replace(opened, tensors={**opened.tensors, **added}), backend)
    assert loaded.decoder.text_head and not [line for line in loaded.log if line.startswith("Not used")]
    pooled = rng.standard_normal((2, width)).astype(np.float32)
    np.testing.assert_allclose(loaded.decoder.text_head.apply(backend, pooled), pooled @ up.T @ down.T, rtol=1e-3)
    for odd in (up, up[0], np.array(1.0, np.float32), up[None]):
        added["dense_3.weight"] = of_floats("dense_3.weight", odd)
        with pytest.raises(TahrError, match="dense layers"):
            load(replace(opened, tensors={**opened.tensors, **added}), backend)


@pytest.mark.parametrize(("case", "n_more"), [("roberta", -1), ("roberta", 1), ("bert", 1), ("bert", -1)])
def test_a_table_of_other_positions_is_refused(case: str, n_more: int, tmp_path: Path) -> None:
    """One row less or more, and every token would be at the place of another."""
    arrays = make_weights(case)
    name = next(name for name in arrays if "position_embeddings" in name)
    arrays[name] = np.resize(arrays[name], (len(arrays[name]) + n_more, arrays[name].shape[1]))
    with pytest.raises(TahrError, match=r"position_embeddings\.weight has the shape"):
        load(open_model([], write_hf(tmp_path, CASES[case], arrays)), ReferenceBackend())

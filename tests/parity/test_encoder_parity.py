"""Encoders against transformers and sentence-transformers (`make parity`)."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity needs torch: run `make parity`")
transformers = pytest.importorskip("transformers", reason="parity needs transformers: run `make parity`")

from encoder_cases import CASES, FIXTURES, RANKERS, make_weights, text_ids  # noqa: E402
from make_encoder_fixtures import expected, model_class  # noqa: E402
from model_files import write_hf  # noqa: E402
from model_runs import states  # noqa: E402
from tahr import LLM, hub  # noqa: E402
from tahr.backends.reference.backend import ReferenceBackend  # noqa: E402
from tahr.errors import TahrError  # noqa: E402
from tahr.models.loader import load, open_model  # noqa: E402
from tahr.weights import open_safetensors  # noqa: E402

TOLERANCE = 1e-4
N_PAIRS = 200
WORDS = [
    "cat",
    "dog",
    "river",
    "bank",
    "teacher",
    "quantum",
    "soup",
    "market",
    "moon",
    "theorem",
    "bread",
    "sleeps",
    "in Rome",
]


@pytest.mark.parametrize("case", CASES)
def test_stored_values_are_what_transformers_says(case: str) -> None:
    stored = np.load(FIXTURES / f"{case}.npz")
    for name, live in expected(case).items():
        assert np.abs(live - stored[name]).max() <= TOLERANCE / 10


@pytest.mark.parametrize("case", [case for case in CASES if case not in RANKERS])
def test_what_transformers_saves_is_what_tahr_loads(case: str, tmp_path: Path) -> None:
    written = write_hf(tmp_path / "ours", CASES[case], make_weights(case))
    model = model_class(case).from_pretrained(written, dtype=torch.float32, attn_implementation="eager")
    model.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        live = model.eval()(torch.tensor([text_ids()])).last_hidden_state[0].numpy()
    backend = ReferenceBackend()
    found = states(load(open_model([], tmp_path / "theirs"), backend), backend, [text_ids()])
    assert np.abs(found - live).max() <= TOLERANCE


@pytest.fixture(scope="module")
def minilm() -> Path:
    try:
        directory = hub.resolve("minilm").directory
    except TahrError as error:
        pytest.skip(f"MiniLM cannot be fetched here: {error}")
    assert directory is not None
    return directory


def texts() -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 40))) for _ in range(2 * N_PAIRS)]


def test_minilm_embeds_as_sentence_transformers_does(minilm: Path) -> None:
    """Cosines, and the order of pairs by likeness."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
    theirs = sentence_transformers.SentenceTransformer(str(minilm), device="cpu").encode(
        texts(), normalize_embeddings=True
    )
    ours = LLM(str(minilm)).embed(texts())
    assert (ours * theirs).sum(axis=1).min() >= 0.99999
    likeness = [(v[:N_PAIRS] * v[N_PAIRS:]).sum(axis=1) for v in (ours, theirs)]
    assert (np.argsort(likeness[0]) == np.argsort(likeness[1])).all()


def test_a_cross_encoder_orders_pairs_as_sentence_transformers_does(minilm: Path, tmp_path: Path) -> None:
    """MiniLM's weights and tokenizer under a head of random numbers: a reranker in shape, size and files."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
    weights = {
        f"bert.{name}": tensor.dense()
        for name, tensor in open_safetensors(minilm / "model.safetensors").tensors.items()
        if "position_ids" not in name
    }
    weights["classifier.weight"] = np.random.default_rng(0).normal(size=(1, 384)).astype(np.float32)
    weights["classifier.bias"] = np.zeros(1, np.float32)
    config = json.loads((minilm / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    folder = write_hf(tmp_path / "ranker", config, weights)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(minilm / name, folder / name)
    firsts, seconds = texts()[:N_PAIRS], texts()[N_PAIRS:]
    ranker = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    theirs = ranker.predict(list(zip(firsts, seconds, strict=True)))
    ours = LLM(str(folder)).score_pairs(firsts, seconds)
    assert np.abs(np.array(ours) - theirs).max() < 1e-4 and np.ptp(theirs) > 0.1
    assert (np.argsort(ours) == np.argsort(theirs)).all()

"""A model over virtual ranks says what the whole one says: every family and weight format that is shared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES, backend
from lora_files import fill_rows, random_adapter
from model_cases import CASES, N_TOKENS, NO_GGUF, make_weights, shapes, token_ids
from model_files import to_gguf, write_hf
from model_runs import Part, Runs
from quantised_files import CASES as PACKED
from quantised_files import joined
from random_weights import LOW_BIT, NATIVE, random_tensor
from sharded_cases import SHARED, ranks_of
from tahr.backends.api import Backend, Rows
from tahr.models.loader import Loaded, OpenedModel, load, open_model
from tahr.models.lora import AdapterTarget
from tahr.models.sharding.virtual import VirtualRanks
from tahr.weights.tensor import HostTensor
from tiers import full_but

MOST_KL = 1e-4
IDS = token_ids()
OTHER = list(reversed(IDS))
# Two prompts, a decoded token beside a chunk, two decoded tokens: keys of earlier steps count on every rank.
STEPS: list[list[Part]] = [
    [(0, OTHER[:7]), (0, IDS[:12])],
    [(7, OTHER[7:8]), (12, IDS[12:20])],
    [(8, OTHER[8:9]), (20, IDS[20:21])],
]
RANKS = [2, 4]
HERE = [name for name in NAMES if name in ("reference", "cpu")]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """The largest Kullback-Leibler divergence of any row."""
    p, q = log_softmax(one), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=-1).max())


def logits_of(loaded: Loaded, be: Backend) -> np.ndarray:
    runs = Runs(loaded, be, n_seqs=2)
    return np.concatenate([runs.eager(parts) for parts in STEPS])


def check(model: OpenedModel, be: Backend, ranks: Sequence[int] = RANKS) -> None:
    whole = logits_of(load(model, be), be)
    assert np.isfinite(whole).all()
    for n_ranks in ranks:
        found = load(model, be, n_ranks=n_ranks)
        assert isinstance(found.decoder, VirtualRanks)
        assert len(found.decoder.ranks) == n_ranks
        shared = logits_of(found, be)
        assert divergence(whole, shared) <= MOST_KL, f"{n_ranks} ranks"
        assert (whole.argmax(axis=-1) == shared.argmax(axis=-1)).all()


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("case", SHARED)
def test_families(case: str, name: str, tmp_path: Path) -> None:
    check(open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case]))), backend(name), ranks_of(case))


@pytest.mark.parametrize(
    "case", full_but(["llama", "qwen3_moe", "phi3", "deepseek_v3"], [c for c in SHARED if c not in NO_GGUF])
)
def test_gguf_files(case: str) -> None:
    check(open_model(to_gguf(CASES[case], make_weights(CASES[case]))), backend("cpu"), ranks_of(case))


# Two heads of 128 numbers are a block of 256, on each of four ranks.
WIDE = {**CASES["llama"], "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
WIDE = {**WIDE, "intermediate_size": 1280, "num_hidden_layers": 1, "vocab_size": 256}


def matrices(config: Mapping[str, Any], form: str) -> OpenedModel:
    """A model whose layers have random matrices in that format; all else is F32, so that logits are as large as a
    model's."""
    rng = np.random.default_rng(0)
    found = {
        name: random_tensor(form if "_proj" in name else "F32", shape, rng, name)
        for name, shape in shapes(dict(config)).items()
    }
    return OpenedModel("tiny", "safetensors", config, found, 0, {})


@pytest.mark.parametrize("form", [*NATIVE, *LOW_BIT])
def test_weight_formats(form: str) -> None:
    """Borders lie between blocks, so that a rank multiplies the very codes of the file."""
    model = matrices(WIDE, form)
    check(model, backend("cpu"))
    weights = load(model, backend("cpu"), n_ranks=2).sizes
    assert {w.format for name, w in weights.items() if "_proj" in name} == {form}


@pytest.mark.parametrize("form", ["F16", "Q8_0", "Q4_K", "MXFP4"])
def test_experts_in_formats(form: str) -> None:
    """Three blocks of 256 are one on the first of two ranks, and two on the other."""
    moe = {**CASES["qwen3_moe"], **WIDE, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 768}
    check(matrices(moe, form), backend("cpu"), [2])


@pytest.mark.parametrize("kind", PACKED)
def test_quantised_checkpoints(kind: str) -> None:
    case = PACKED[kind]
    rng = np.random.default_rng(0)
    model = matrices(WIDE, "F32")

    def packed(tensor: HostTensor) -> HostTensor:
        (n_rows, n_cols) = tensor.shape
        made = joined(case.pack((n_rows, n_cols), rng).parts, case.config)
        return HostTensor(tensor.name, made.format, made.shape, made.data)

    tensors = {name: packed(t) if "_proj" in name else t for name, t in model.tensors.items()}
    check(OpenedModel("tiny", "safetensors", WIDE, tensors, 0, {}), backend("cpu"))


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("case", ["llama", "llama_biased", "qwen3_moe", "phi3", "cohere"])
def test_adapters(case: str, name: str, tmp_path: Path) -> None:
    """Factors are cut as their linears are."""
    be = backend(name)
    model = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case])))
    whole = load(model, be)
    adapter = random_adapter(AdapterTarget("tiny", whole.config, whole.decoder.targets), seed=1, rank=3, strength=0.5)
    plain, adapted = logits_of(whole, be), with_adapter(whole, be, adapter.factors)
    assert divergence(plain[:1], adapted[:1]) > 10 * MOST_KL
    for n_ranks in RANKS:
        shared = load(model, be, n_ranks=n_ranks)
        assert {n: (s.n_rows, s.n_cols) for n, s in shared.decoder.targets.items()} == {
            n: (s.n_rows, s.n_cols) for n, s in whole.decoder.targets.items()
        }
        assert divergence(adapted, with_adapter(shared, be, adapter.factors)) <= MOST_KL


def with_adapter(loaded: Loaded, be: Backend, factors: Mapping[str, Any]) -> np.ndarray:
    runs = Runs(loaded, be)
    bank = be.lora_bank(loaded.decoder.linears, runs.limits)
    bank.put(1, bank.prepare(loaded.decoder.factors_of(factors)))
    for rows in (Rows.TOKENS, Rows.LOGITS):
        fill_rows(bank, rows, [[(1, 1.0)]] * N_TOKENS)
    with be.adapting(bank):
        return runs.eager([(0, IDS)])


@pytest.mark.parametrize("n_ranks", RANKS)
def test_a_recorded_step_has_the_bits_of_an_eager_one(n_ranks: int, tmp_path: Path) -> None:
    """Ranks take turns while ops are recorded; a plan runs without them, on whatever the inputs hold then."""
    be = backend("cpu")
    loaded = load(open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"]))), be, n_ranks=n_ranks)
    eager, recorded = Runs(loaded, be, n_seqs=2), Runs(loaded, be, n_seqs=2)
    step = be.step_inputs(recorded.limits)
    plan = be.record(lambda: loaded.decoder.forward(be, step, recorded.kv), step)
    for parts in STEPS:
        wanted = eager.eager(parts)
        recorded.fill(step, parts)
        plan.run()
        np.testing.assert_array_equal(be.read(plan.result).view(np.uint32), wanted.view(np.uint32))


def test_hidden_rows(tmp_path: Path) -> None:
    be = backend("cpu")
    model = open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"])))
    found = []
    for n_ranks in (1, 2):
        runs = Runs(load(model, be, n_ranks=n_ranks), be)
        step = be.step_inputs(runs.limits)
        runs.fill(step, [(0, IDS)])
        found.append(be.read(runs.decoder.hidden(be, step, runs.kv)).copy())
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_every_rank_keeps_its_own_heads_alone(tmp_path: Path) -> None:
    be = backend("cpu")
    model = open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"])))
    decoder = load(model, be, n_ranks=4).decoder
    assert len(decoder.memory) == len(decoder.windows) == 4 * 3
    assert {shape.n_heads for shape in decoder.memory} == {1}  # type: ignore[union-attr]
    reduces = {linear.reduce for rank in decoder.ranks for linear in [rank.head]}  # type: ignore[attr-defined]
    assert reduces == {"join"}


def test_one_rank_is_the_model_itself(tmp_path: Path) -> None:
    model = open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"])))
    assert type(load(model, backend("cpu")).decoder).__name__ == "Decoder"

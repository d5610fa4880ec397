"""A model in stages says what the whole model says, wherever it may be cut; elsewhere a cut is refused."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from backends_here import NAMES, backend
from encoder_cases import CASES as ENCODERS
from encoder_cases import make_weights as encoder_weights
from encoder_cases import text_ids
from model_cases import CASES, make_weights, token_ids
from model_files import write_hf
from model_runs import Part, Runs, states
from stage_runs import StagedRuns
from tahr.backends import open_backend
from tahr.backends.api import Backend, KVStore, StepInputs, Tensor
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import ConfigError
from tahr.models.decoder import Decoder
from tahr.models.loader import Loaded, OpenedModel, load, open_model
from tahr.models.loader.registry import FAMILIES
from tahr.models.parts.stages import kv_source, legal_cuts
from tahr.models.parts.stream import ForwardPass, ResidualStream
from tiers import full_but

TOLERANCE = 1e-4  # as against transformers
IDS = token_ids()
OTHER = list(reversed(IDS))
# Two prompts, a decoded token beside a chunk, two decoded tokens: memory of earlier steps counts in every stage.
STEPS: list[list[Part]] = [
    [(0, OTHER[:7]), (0, IDS[:12])],
    [(7, OTHER[7:8]), (12, IDS[12:20])],
    [(8, OTHER[8:9]), (20, IDS[20:21])],
]


def opened(case: str, folder: Path) -> OpenedModel:
    return open_model([], write_hf(folder, CASES[case], make_weights(CASES[case])))


def logits_of(runs: Runs | StagedRuns) -> list[np.ndarray]:
    return [runs.eager(parts) for parts in STEPS]


def same_bits(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def two_cpus() -> list[Backend]:
    if "cpu" not in NAMES:
        pytest.skip("TAHR_TEST_BACKENDS leaves the CPU out")
    return [open_backend("cpu", 1), open_backend("cpu", 2)]


@pytest.mark.parametrize("case", CASES)
def test_two_stages_give_the_bits_of_one(case: str, two_cpus: list[Backend], tmp_path: Path) -> None:
    model = opened(case, tmp_path)
    check_every_cut([load(model, one) for one in two_cpus], two_cpus)


@pytest.mark.parametrize("form", ["int8", "q4_0"])
@pytest.mark.parametrize("case", ["granite", "qwen3_moe", "cohere"])
def test_stages_of_quantised_models(case: str, form: str, two_cpus: list[Backend], tmp_path: Path) -> None:
    """Products round the rows they read to int8: a norm must give them the same rows with and without an addition."""
    model = opened(case, tmp_path)
    check_every_cut([load(model, one, quantize=form) for one in two_cpus], two_cpus)


def check_every_cut(loaded: list[Loaded], backends: list[Backend]) -> None:
    cuts = legal_cuts(loaded[0].decoder.config)
    assert cuts
    whole = logits_of(Runs(loaded[0], backends[0], n_seqs=2))
    for cut in cuts:
        assert same_bits(logits_of(StagedRuns(loaded, backends, [cut], n_seqs=2)), whole), f"cut before layer {cut}"


@pytest.mark.parametrize("case", ENCODERS)
def test_two_stages_of_an_encoder(case: str, two_cpus: list[Backend], tmp_path: Path) -> None:
    model = open_model([], write_hf(tmp_path, ENCODERS[case], encoder_weights(case)))
    loaded = [load(model, one) for one in two_cpus]
    whole = states(loaded[0], two_cpus[0], [text_ids()])
    for cut in legal_cuts(model.model_config()):
        assert same_bits([StagedRuns(loaded, two_cpus, [cut]).hidden([(0, text_ids())])], [whole])


@pytest.mark.parametrize("case", ["llama", "gemma4_e", "granite4_h"])
def test_a_stage_for_every_cut(case: str, two_cpus: list[Backend], tmp_path: Path) -> None:
    model = opened(case, tmp_path)
    cuts = legal_cuts(model.model_config())
    backends = [two_cpus[i % 2] for i in range(len(cuts) + 1)]
    loaded = [load(model, one) for one in backends]
    whole = logits_of(Runs(loaded[0], backends[0], n_seqs=2))
    assert same_bits(logits_of(StagedRuns(loaded, backends, cuts, n_seqs=2)), whole)


def test_every_family_is_cut() -> None:
    types = {config["model_type"] for config in (*CASES.values(), *ENCODERS.values())}
    cut = [id(FAMILIES[each]) for each in types]
    whole = {name for name, family in FAMILIES.items() if family.build.__module__.startswith("tahr.models.towers")}
    whole.add("qwen3_tts")  # its frames come from all layers of two models
    assert [name for name, family in FAMILIES.items() if id(family) not in cut and name not in whole] == []


@pytest.mark.parametrize("case", full_but(["qwen3", "gemma4_e", "granite4_h", "qwen3_moe"], CASES))
def test_stages_on_unlike_backends(case: str, two_cpus: list[Backend], tmp_path: Path) -> None:
    model = opened(case, tmp_path)
    backends: list[Backend] = [backend("reference"), two_cpus[1]]
    loaded = [load(model, one) for one in backends]
    for i in range(2):
        whole = logits_of(Runs(loaded[i], backends[i], n_seqs=2))
        for cut in legal_cuts(model.model_config()):
            staged = logits_of(StagedRuns(loaded, backends, [cut], n_seqs=2))
            assert max(np.abs(x - y).max() for x, y in zip(staged, whole, strict=True)) <= TOLERANCE


def test_layers_that_share_keys_stay_together(tmp_path: Path) -> None:
    config = opened("gemma4_e", tmp_path).model_config()
    assert [kv_source(config, i) for i in range(config.n_layers)] == [0, 1, 2, 3, 3, 2, 2]
    assert legal_cuts(config) == [1, 2]


@pytest.mark.parametrize("layers", [range(3), range(3, 7)])
def test_a_cut_between_keys_and_their_readers_is_refused(layers: range, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"before layer 3: later layers read the keys .* with layers 0, 1, 2\."):
        run_stage("gemma4_e", layers, tmp_path)


@pytest.mark.parametrize("layers", [range(0), range(2, 1), range(0, 3, 2), range(1, 4), range(-1, 2)])
def test_what_is_no_range_of_layers_is_refused(layers: range, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="A stage is a range of the model's 3 layers, in order"):
        run_stage("llama", layers, tmp_path)


def run_stage(case: str, layers: range, folder: Path) -> None:
    be = ReferenceBackend()
    runs = Runs(load(opened(case, folder), be), be)
    runs.decoder.stage(be, be.step_inputs(runs.limits), runs.kv, layers)


# ---- the whole model ----------------------------------------------------------------------------------------


class LoggedOps(ReferenceBackend):
    """Notes every op that a model asks for, and those that its default body is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def __getattribute__(self, name: str) -> object:
        found: object = super().__getattribute__(name)
        if callable(found) and not name.startswith("_"):
            super().__getattribute__("log").append(name)
        return found


def layer_by_layer(decoder: Decoder, be: Backend, step: StepInputs, kv: KVStore) -> Tensor:
    """The ops of a whole model, without stages."""
    run = ForwardPass(be, step, kv, decoder.ropes)
    rows = decoder.embedding(be, step)
    decoder.prepare(run, rows)
    stream = ResidualStream(be, rows, decoder.config.residual_scale)
    for layer in decoder.layers:
        layer.attention(run, stream)
        if layer is decoder.layers[-1]:
            stream.gather_rows(step)
        layer.mlp(run, stream)
    return stream.normed(decoder.norm)


@pytest.mark.parametrize("case", CASES)
def test_the_whole_range_adds_no_op(case: str, tmp_path: Path) -> None:
    be = LoggedOps()
    runs = Runs(load(opened(case, tmp_path), be), be)
    step = be.step_inputs(runs.limits)
    runs.fill(step, [(0, IDS)])
    logs = []
    for hidden in (runs.decoder.hidden, lambda *given: layer_by_layer(runs.decoder, *given)):
        be.log.clear()
        hidden(be, step, runs.kv)
        logs.append(list(be.log))
    assert logs[0] == logs[1]
    assert "gather_rows" in logs[0]

"""Drafters that were trained for a model: logits against the speculators library, and files that are refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import assets
from backends_here import backend
from drafter_files import CASES, N_CHAINED, N_ENTRIES, draft_map, inputs_of, make_arrays, write_drafter
from drafter_runs import DrafterRuns
from tahr.errors import ConfigError, CorruptFile, QuantError, TahrError, UnsupportedModel
from tahr.models.drafters.reading import drafter_kind
from tahr.models.loader.drafters import is_drafter, load_drafter
from tahr.models.loader.load import OpenedModel, load, open_model
from tahr.models.loader.runnable import refuse_unsupported, refuse_unsupported_draft

FIXTURES = Path(assets.__file__).parents[1] / "fixtures" / "drafters"
TOLERANCE = 1e-4
BACKENDS = ["reference", "cpu"]


def model(width: int = 32, n_vocab: int = 96, n_layers: int = 6) -> Any:
    """As much of a model as a drafter with an embedding and a head of its own looks at."""
    return SimpleNamespace(config=SimpleNamespace(width=width, n_vocab=n_vocab, n_layers=n_layers), head=None)


def opened(folder: Path, case: str = "llama", authors: bool = False, **more: Any) -> OpenedModel:
    """A drafter with some fields of its config.json changed."""
    path = write_drafter(folder, CASES[case], make_arrays(CASES[case]), authors=authors)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | more))
    return open_model([], path)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("case", "authors"), [*((case, False) for case in CASES), ("llama", True)])
def test_logits_are_those_of_the_library(tmp_path: Path, case: str, authors: bool, name: str) -> None:
    """Entries that read rows of the model, and after some of them entries that read rows of the drafter's own."""
    wanted = np.load(FIXTURES / f"{case}.npz")["logits"]
    device = backend(name)
    found = load_drafter(opened(tmp_path, case, authors), device, model())
    ids, rows = inputs_of(CASES[case])
    runs = DrafterRuns(found, device)
    assert np.abs(runs.follow(0, ids, rows) - wanted[0]).max() <= TOLERANCE
    for last in (3, N_ENTRIES - N_CHAINED - 1):
        runs = DrafterRuns(found, device)
        runs.follow(0, ids[:2], rows[:2])
        assert np.abs(runs.follow(2, ids[2 : last + 1], rows[2 : last + 1])[-1] - wanted[0, last]).max() <= TOLERANCE
        for depth in range(1, 1 + N_CHAINED):
            made = runs.chain(last + depth, ids[last + depth])
            assert np.abs(made - wanted[depth, last]).max() <= TOLERANCE
            assert np.abs(made - wanted[0, last + depth]).max() > 100 * TOLERANCE, "it read a row of the model"


def test_the_map_names_the_token_of_each_logit(tmp_path: Path) -> None:
    found = load_drafter(opened(tmp_path), backend("cpu"), model())
    assert found.tokens is not None
    assert found.tokens.tolist() == (draft_map(CASES["llama"]) + np.arange(40)).tolist()
    assert load_drafter(opened(tmp_path / "all", "qwen3"), backend("cpu"), model()).tokens is None


def test_the_usual_layers_are_read_where_the_file_names_none(tmp_path: Path) -> None:
    source = opened(tmp_path, eagle_aux_hidden_state_layer_ids=None)
    assert load_drafter(source, backend("cpu"), model(n_layers=36)).drafter.kind.taps == (2, 18, 33)
    nested = opened(
        tmp_path, authors=True, eagle_aux_hidden_state_layer_ids=None, eagle_config={"use_aux_hidden_state": True}
    )
    assert load_drafter(nested, backend("cpu"), model(n_layers=10)).drafter.kind.taps == (2, 5, 7)


# ---- drafters of other models, and damaged ones -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"width": 64}, "rows of 32 numbers, but this one has 64"),
        ({"n_vocab": 128}, "a vocabulary of 96 tokens, but this one has 128"),
        ({"n_layers": 4}, "layers 1, 2, 4 of its model are given, but this model has 4 layers"),
    ],
)
def test_a_drafter_of_another_model(tmp_path: Path, numbers: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_drafter(opened(tmp_path), backend("cpu"), model(**numbers))


def test_a_model_with_too_few_layers_for_the_usual_ones(tmp_path: Path) -> None:
    source = opened(tmp_path, eagle_aux_hidden_state_layer_ids=None)
    with pytest.raises(ConfigError, match="third layer and the third from the end"):
        load_drafter(source, backend("cpu"), model(n_layers=5))


KINDS = [
    ({"speculators_model_type": "dflash"}, "of the kind 'dflash'"),
    ({"speculators_model_type": "peagle"}, "of the kind 'peagle'"),
    ({"speculators_model_type": "mtp"}, "of the kind 'mtp'"),
    ({"speculators_model_type": "eagle"}, "of the kind 'eagle'"),
    ({"speculators_model_type": 7}, "of the kind '7'"),
    ({"speculators_model_type": None, "speculators_config": {}}, "of the kind 'unknown'"),
    ({"parallel_drafting": True}, "one that drafts several tokens in one pass"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "as EAGLE-1 does"),
    ({"transformer_layer_config": {"model_type": "deepseek_v3"}}, "layers of the type 'deepseek_v3'"),
    ({"transformer_layer_config": {"model_type": ["llama"]}}, "layers of the type"),
]


@pytest.mark.parametrize(("fields", "sentence"), KINDS)
def test_kinds_that_are_not_there_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    source = opened(tmp_path, **fields)
    assert is_drafter(source)
    with pytest.raises(UnsupportedModel, match=sentence):
        load_drafter(source, backend("cpu"), model())
    known: Any = SimpleNamespace(name="x", config=source.config, architecture=None)
    with pytest.raises(UnsupportedModel, match=sentence):  # before anything is fetched
        refuse_unsupported_draft(known)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("LlamaForCausalLMEagle3", "eagle3"),
        ("Eagle3LlamaForCausalLM", "eagle3"),
        ("PEagleDraftModel", "peagle"),
        ("EagleLlamaModel", "eagle"),
        ("DFlashDraftModel", "dflash"),
        ("DeepSeekMTPModel", "mtp"),
        ("LlamaForCausalLM", ""),
        ("Qwen3NextForCausalLM", ""),
    ],
)
def test_kinds_by_architectures(architecture: str, kind: str) -> None:
    assert drafter_kind({"architectures": [architecture]}) == kind


def test_a_drafter_is_no_model(tmp_path: Path) -> None:
    source = opened(tmp_path, authors=True)
    known: Any = SimpleNamespace(name="x", config=source.config, architecture=None)
    with pytest.raises(UnsupportedModel, match=r"a drafter \(eagle3\).*name this one with --spec-draft"):
        load(source, backend("cpu"))
    with pytest.raises(UnsupportedModel, match="name this one with --spec-draft"):
        refuse_unsupported(known)
    refuse_unsupported_draft(known)


def test_other_backends_refuse_drafters_by_name(tmp_path: Path) -> None:
    class Other(type(backend("reference"))):  # type: ignore[misc]
        name, runs_drafters = "other", False

    with pytest.raises(UnsupportedModel, match="do not run on the other backend yet"):
        load_drafter(opened(tmp_path), Other(), model())


MAPS = [
    (np.full(40, 90), "names tokens from 90 to 129, but its model has 96"),
    (np.full(40, -1), "names tokens from -1 to 38"),
    (np.full(40, 2**62), "but its model has 96"),
    (np.full(40, -(2**63)), "but its model has 96"),
    (-np.arange(40), "names a token twice"),
    (np.zeros(39, np.int64), "is \\[39\\] in I64"),
    (np.zeros((40, 1), np.int64), "is \\[40, 1\\] in I64"),
]


@pytest.mark.parametrize(("apart", "sentence"), MAPS)
def test_maps_beyond_the_vocabulary(tmp_path: Path, apart: np.ndarray, sentence: str) -> None:
    path = write_drafter(tmp_path, CASES["llama"], make_arrays(CASES["llama"]), apart)
    with pytest.raises(CorruptFile, match=sentence):
        load_drafter(open_model([], path), backend("cpu"), model())


DAMAGED: list[tuple[dict[str, Any], type[TahrError], str]] = [
    ({"draft_vocab_size": 0}, CorruptFile, "draft_vocab_size"),
    ({"draft_vocab_size": 97}, CorruptFile, "draft_vocab_size"),
    ({"draft_vocab_size": 96}, CorruptFile, "is \\[40\\] in I64"),
    ({"target_hidden_size": -1}, CorruptFile, "target_hidden_size"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 1, 4]}, CorruptFile, "numbers of layers, in order"),
    ({"eagle_aux_hidden_state_layer_ids": [4, 2, 1]}, CorruptFile, "numbers of layers, in order"),
    ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 4]}, CorruptFile, "numbers of layers, in order"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, "4"]}, CorruptFile, "numbers of layers, in order"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, True]}, CorruptFile, "numbers of layers, in order"),
    ({"eagle_aux_hidden_state_layer_ids": list(range(17))}, CorruptFile, "at most 16"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, CorruptFile, "fc.weight"),
    ({"eagle_aux_hidden_state_layer_ids": 5}, CorruptFile, "must be a list"),
    ({"norm_before_fc": True}, CorruptFile, "no tensor input_norm.weight"),
    ({"norm_before_fc": True, "fc_norm": True}, CorruptFile, "fc_norm"),
    ({"norm_before_residual": "yes"}, CorruptFile, "norm_before_residual"),
    ({"eagle_config": []}, CorruptFile, "eagle_config"),
    ({"transformer_layer_config": 3}, CorruptFile, "transformer_layer_config"),
]


@pytest.mark.parametrize(("fields", "error", "sentence"), DAMAGED)
def test_damaged_configs(tmp_path: Path, fields: dict[str, Any], error: type[TahrError], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        load_drafter(opened(tmp_path, **fields), backend("cpu"), model())


def test_a_drafter_without_a_map_or_quantised(tmp_path: Path) -> None:
    source = opened(tmp_path)
    without = {name: tensor for name, tensor in source.tensors.items() if name != "d2t"}
    with pytest.raises(CorruptFile, match="guesses 40 of 96 tokens and has no tensor d2t"):
        load_drafter(OpenedModel("x", "safetensors", source.config, without, 0, {}), backend("cpu"), model())
    layers = {**CASES["llama"]["transformer_layer_config"], "quantization_config": {"quant_method": "gptq", "bits": 4}}
    with pytest.raises(QuantError, match="is quantised"):
        load_drafter(opened(tmp_path, transformer_layer_config=layers), backend("cpu"), model())

"""Each family, as a tiny random model: logits equal Hugging Face's, from safetensors and from GGUF."""

import json
from pathlib import Path

import numpy as np
import pytest

import assets
import backends_here
from model_cases import CASES, NO_GGUF, make_weights, token_ids
from model_files import to_gguf, write_hf, write_sharded
from model_runs import Runs, greedy
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import CorruptFile
from tahr.models.loader import Loaded, OpenedModel, load, open_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
TOLERANCE = 1e-4
CHUNKED = ["llama", "qwen3_moe", "gemma3", "bloom", "gpt_oss", "qwen3_next", "qwen3_5", "deepseek_v3", "granite4_h"]
FILES = [(case, "safetensors") for case in CASES] + [(case, "gguf") for case in CASES if case not in NO_GGUF]


def source(case: str, form: str, folder: Path) -> OpenedModel:
    config, arrays = CASES[case], make_weights(CASES[case])
    return open_model(to_gguf(config, arrays)) if form == "gguf" else open_model([], write_hf(folder, config, arrays))


def expected(case: str) -> np.ndarray:
    logits: np.ndarray = np.load(FIXTURES / f"{case}.npz")["logits"]
    return logits


@pytest.mark.parametrize("name", backends_here.AND_PLAIN)
@pytest.mark.parametrize(("case", "form"), FILES)
def test_logits_equal_transformers(case: str, form: str, name: str, tmp_path: Path) -> None:
    backend = backends_here.backend(name)
    loaded = backends_here.loaded_or_refused(case, source(case, form, tmp_path), name)
    found = Runs(loaded, backend).eager([(0, token_ids())])
    assert np.abs(found - expected(case)).max() <= TOLERANCE


@pytest.mark.parametrize("name", backends_here.AND_PLAIN)
@pytest.mark.parametrize("case", CHUNKED)
def test_chunks_and_neighbours_change_nothing(case: str, name: str, tmp_path: Path) -> None:
    """Two sequences in one batch, each computed in pieces, say what one sequence computed at once says."""
    backend = backends_here.backend(name)
    loaded = backends_here.loaded_or_refused(case, source(case, "safetensors", tmp_path), name)
    runs = Runs(loaded, backend, n_seqs=2)
    ids, other = token_ids(), list(reversed(token_ids()))
    first = runs.eager([(0, ids[:9]), (0, other[:3])])
    second = runs.eager([(9, ids[9:10]), (3, other[3:20])])
    third = runs.eager([(10, ids[10:]), (20, other[20:21])])
    found = np.concatenate([first[:9], second[:1], third[:14]])
    assert np.abs(found - expected(case)).max() <= TOLERANCE


def test_hidden_states_lead_to_the_logits(tmp_path: Path) -> None:
    backend = ReferenceBackend()
    loaded = load(source("llama", "safetensors", tmp_path), backend)
    runs = Runs(loaded, backend)
    step = backend.step_inputs(runs.limits)
    runs.fill(step, [(0, token_ids())])
    hidden = backend.read(loaded.decoder.hidden(backend, step, runs.kv))
    head = make_weights(CASES["llama"])["lm_head.weight"]
    assert np.abs(hidden @ head.T - expected("llama")).max() <= TOLERANCE


def reference_logits(opened: OpenedModel) -> np.ndarray:
    backend = ReferenceBackend()
    return Runs(load(opened, backend), backend).eager([(0, token_ids())])


def test_shards_equal_one_file(tmp_path: Path) -> None:
    config, arrays = CASES["qwen3"], make_weights(CASES["qwen3"])
    one = reference_logits(open_model([], write_hf(tmp_path / "one", config, arrays)))
    two = reference_logits(open_model([], write_sharded(tmp_path / "two", config, arrays)))
    assert np.array_equal(one, two)


def test_shards_may_be_named_one_by_one(tmp_path: Path) -> None:
    config, arrays = CASES["qwen3"], make_weights(CASES["qwen3"])
    folder = write_sharded(tmp_path, config, arrays)
    shards = sorted(folder.glob("*.safetensors"))
    assert np.abs(reference_logits(open_model(shards, folder)) - expected("qwen3")).max() <= TOLERANCE


def test_gguf_path_equals_bytes(tmp_path: Path) -> None:
    made = to_gguf(CASES["granite"], make_weights(CASES["granite"]))
    (tmp_path / "granite.gguf").write_bytes(made)
    from_path = open_model([tmp_path / "granite.gguf"])
    assert np.array_equal(reference_logits(from_path), reference_logits(open_model(made)))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_text_model_inside_a_multimodal_gemma(prefix: str, tmp_path: Path) -> None:
    inner = CASES["gemma3"]
    arrays = {name.replace("model.", prefix, 1): a for name, a in make_weights(inner).items()}
    arrays["vision_tower.embeddings.weight"] = np.zeros((4, 4), np.float32)
    opened = open_model([], write_hf(tmp_path, {"model_type": "gemma3", "text_config": inner}, arrays))
    assert load(opened, ReferenceBackend()).log[-1] == "Not used: vision_tower.embeddings.weight."
    assert np.abs(reference_logits(opened) - expected("gemma3")).max() <= TOLERANCE


def test_head_of_a_multimodal_model(tmp_path: Path) -> None:
    """transformers 5 writes that the whole model is tied, whatever its text model says; a head in the file counts."""
    inner, arrays = {**CASES["mistral"], "tie_word_embeddings": False}, make_weights(CASES["mistral"])
    outer = {"model_type": "mistral3", "text_config": inner, "tie_word_embeddings": True}
    assert np.array_equal(
        reference_logits(open_model([], write_hf(tmp_path / "own", outer, arrays))),
        reference_logits(open_model([], write_hf(tmp_path / "plain", inner, arrays))),
    )
    del arrays["lm_head.weight"]
    assert np.array_equal(
        reference_logits(open_model([], write_hf(tmp_path / "none", outer, arrays))),
        reference_logits(open_model([], write_hf(tmp_path / "tied", {**inner, "tie_word_embeddings": True}, arrays))),
    )


def test_two_names_of_one_tensor_must_agree(tmp_path: Path) -> None:
    """As a fine-tune saved once by itself and once inside the multimodal model has them."""
    arrays, name = make_weights(CASES["gemma3"]), "model.layers.0.mlp.up_proj.weight"
    twice = {**arrays, name.replace("model.", "model.language_model.", 1): arrays[name]}
    opened = open_model([], write_hf(tmp_path, CASES["gemma3"], twice))
    assert np.abs(reference_logits(opened) - expected("gemma3")).max() <= TOLERANCE
    twice[name] = arrays[name] + 1
    with pytest.raises(CorruptFile, match=r"both model\.la.*model\.language_model\.layers\.0\.mlp\.up_proj.*differ"):
        load(open_model([], write_hf(tmp_path, CASES["gemma3"], twice)), ReferenceBackend())


def test_tied_head_in_the_file_is_not_a_surprise(tmp_path: Path) -> None:
    arrays = make_weights(CASES["granite"])
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    loaded = load(open_model([], write_hf(tmp_path, CASES["granite"], arrays)), ReferenceBackend())
    assert not [line for line in loaded.log if "Not used" in line]


def test_progress_and_log_name_every_tensor(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    opened = source("qwen3_moe", "safetensors", tmp_path)
    loaded = load(opened, ReferenceBackend(), progress=lambda done, total: heard.append((done, total)))
    assert heard == [(i + 1, len(opened.tensors)) for i in range(len(opened.tensors))]
    assert loaded.n_weight_bytes == opened.n_bytes - header_bytes(tmp_path / "model.safetensors")
    # Three layers of q, k, v, out, router and three expert stacks; the embedding; the head.
    assert loaded.log == ["F32 -> numpy: 26 tensors, 0.6 MB"]


def header_bytes(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


# ---- a real model -------------------------------------------------------------------------------------------


def story_model(stories: Path, form: str, name: str) -> Loaded:
    opened = open_model([stories]) if form == "gguf" else open_model([], stories.parent / "hf")
    return load(opened, backends_here.backend(name))


@pytest.mark.parametrize("name", backends_here.AND_PLAIN)
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_story_equals_transformers(stories: Path, form: str, name: str) -> None:
    story = json.loads(assets.greedy_story().read_text())
    assert greedy(story_model(stories, form, name), backends_here.backend(name), story[:1], len(story) - 1) == story

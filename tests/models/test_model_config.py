"""What files say of themselves: families found, numbers checked, wrong files refused in a sentence."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_cases import CASES, LLAMA, LLAMA3_ROPE, NO_GGUF, make_weights, token_ids
from model_files import to_gguf, write_hf
from model_runs import Runs
from tahr.backends.reference.backend import ReferenceBackend
from tahr.config import GREEDY, SamplingParams
from tahr.errors import CorruptFile, ModelNotFound, QuantError, TahrError, UnsupportedModel
from tahr.models.config.record import ModelConfig
from tahr.models.config.rope import Yarn
from tahr.models.families import llama
from tahr.models.family import Family
from tahr.models.loader import FAMILIES, from_gguf, from_hf, load, open_model
from tahr.models.loader.sampling import recommended
from tahr.weights import FORMATS, HostTensor

# ---- which family -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_model_type_decides(case: str) -> None:
    names = {"gemma3_text": "gemma3", "granitemoeshared": "granitemoe", "qwen3_5_text": "qwen3_5"}
    names |= {"qwen3_5_moe_text": "qwen3_5_moe", "gemma4_text": "gemma4", "llama4_text": "llama4"}
    kind = CASES[case]["model_type"]
    assert from_hf(CASES[case], name="some-other-llama").family == names.get(kind, kind)


def test_unknown_type_falls_back_to_the_name() -> None:
    config = from_hf({**LLAMA, "model_type": "fancy"}, name="TinyLlama-1.1B-Chat")
    assert config.family == "llama"
    assert "'fancy'" in config.guess
    assert from_hf({**CASES["qwen3"], "model_type": None}, name="Qwen3-0.6B").family == "qwen3"
    assert from_hf({**CASES["qwen3_moe"], "model_type": ""}, name="Qwen3-30B-A3B").family == "qwen3_moe"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gemma3n", "Gemma-3n-E2B"),
        ("mllama", "Llama-3.2-11B-Vision"),
        ("diffusion_gemma", "DiffusionGemma-26B-A4B"),
        ("fancy", "Fancy-7B"),
        ("fancy", "notallamas"),
    ],
)
def test_neither_type_nor_name_is_an_error(kind: str, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{kind}.*it runs llama, mistral"):
        from_hf({**LLAMA, "model_type": kind}, name=name)


def test_wrong_guess_is_refused(tmp_path: Path) -> None:
    arrays = make_weights(LLAMA) | {"model.layers.0.extra.weight": np.zeros((2, 2), np.float32)}
    opened = open_model([], write_hf(tmp_path / "my-llama", {**LLAMA, "model_type": "fancy"}, arrays))
    with pytest.raises(UnsupportedModel, match=r"read as llama.*model\.layers\.0\.extra\.weight"):
        load(opened, ReferenceBackend())
    del arrays["model.norm.weight"]
    opened = open_model([], write_hf(tmp_path / "my-llama", {**LLAMA, "model_type": "fancy"}, arrays))
    with pytest.raises(UnsupportedModel, match=r"read as llama.*no tensor model\.norm\.weight"):
        load(opened, ReferenceBackend())


@pytest.mark.parametrize("kind", ["dbrx", "grok", "jamba", "mamba", "mamba2", "minicpm3"])
def test_architectures_without_a_family_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{kind}', which Tahr does not run; it runs llama"):
        from_gguf({"general.architecture": kind}, {})
    with pytest.raises(UnsupportedModel, match=f"'{kind}', which Tahr does not run; it runs llama"):
        from_hf({"model_type": kind})


def test_unknown_gguf_architecture() -> None:
    with pytest.raises(UnsupportedModel, match="does not say"):
        from_gguf({}, {})


@pytest.mark.parametrize("method", ["bitsandbytes", "mxfp4", "quanto"])
def test_quantised_checkpoints_without_a_reader_are_refused(method: str) -> None:
    with pytest.raises(QuantError, match=method):
        from_hf({**LLAMA, "quantization_config": {"quant_method": method, "bits": 4}})


def test_quantised_text_part_is_refused() -> None:
    inner = {**CASES["gemma3"], "quantization_config": {"quant_method": "quanto"}}
    with pytest.raises(QuantError, match="quanto"):
        from_hf({"model_type": "gemma3", "text_config": inner})


def test_toy_family_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A family registered here loads and runs; nothing else had to know."""
    toy = Family("toy", llama.build, GREEDY, refine_hf=lambda f, cfg: cfg)
    monkeypatch.setitem(FAMILIES, "toy", toy)
    backend = ReferenceBackend()
    opened = open_model([], write_hf(tmp_path, {**LLAMA, "model_type": "toy"}, make_weights(LLAMA)))
    loaded = load(opened, backend)
    assert loaded.config.family == "toy"
    assert Runs(loaded, backend).eager([(0, token_ids())]).shape == (len(token_ids()), LLAMA["vocab_size"])


# ---- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [name for name in CASES if name not in NO_GGUF])
def test_both_formats_say_the_same(case: str, tmp_path: Path) -> None:
    arrays = make_weights(CASES[case])
    stored, converted = from_hf(CASES[case]), open_model(to_gguf(CASES[case], arrays)).model_config()
    assert stored.windows == converted.windows
    for a, b in zip(stored.kinds, converted.kinds, strict=True):
        (one, one_scale), (two, two_scale) = a.rope.frequencies(), b.rope.frequencies()
        assert np.allclose(one, two, rtol=1e-6) and one_scale == pytest.approx(two_scale)
    assert stored.max_context == converted.max_context


@pytest.mark.parametrize("case", ["llama_llama3", "llama_yarn", "llama_linear", "qwen3"])
def test_new_style_rope_parameters(case: str) -> None:
    old = dict(CASES[case])
    new = {k: v for k, v in old.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": old["rope_theta"]} | (old.get("rope_scaling") or {})
    if kind := new["rope_parameters"].pop("type", None):
        new["rope_parameters"]["rope_type"] = kind
    assert from_hf(new) == from_hf(old)


def test_new_style_rope_per_layer_type() -> None:
    old = dict(CASES["gemma3_global"])
    gone = ("rope_theta", "rope_scaling", "rope_local_base_freq")
    new = {k: v for k, v in old.items() if k not in gone}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert from_hf(new) == from_hf(old)


def test_yarn_knobs_and_context() -> None:
    def yarn(**knobs: Any) -> tuple[ModelConfig, Yarn]:
        config = from_hf({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, **knobs}})
        scaling = config.kinds[0].rope.scaling
        assert isinstance(scaling, Yarn)
        return config, scaling

    assert yarn()[0].max_context == 4 * 512
    assert yarn()[1].attention == pytest.approx(1 + 0.1 * np.log(4))
    assert yarn(attention_factor=1.5)[1].attention == 1.5
    assert yarn(mscale=1.0, mscale_all_dim=1.0)[1].attention == 1
    assert yarn(original_max_position_embeddings=64)[0].max_context == 512


@pytest.mark.parametrize("knobs", [{"type": "ntk"}, {"type": "dynamic", "alpha": 1000.0}])
def test_unknown_rope_scaling_is_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=f"{knobs['type']}.*default, mrope, dynamic, linear, llama3, yarn"):
        from_hf({**LLAMA, "rope_scaling": {"factor": 2.0, **knobs}})


def test_dynamic_rope_is_plain_within_the_context() -> None:
    assert from_hf({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}) == from_hf(LLAMA)


def test_rope_scaling_counts_beside_rope_parameters() -> None:
    """As in transformers: it is what people add to a file to stretch its context."""
    new = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
    linear = {"rope_type": "linear", "factor": 2.0}
    assert from_hf({**new, "rope_scaling": linear}) == from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": linear})
    both = from_hf({**new, "rope_scaling": {**linear, "rope_theta": 777.0}})
    assert both.kinds[0].rope.theta == 777
    gemma = dict(CASES["gemma3_global"])
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert from_hf({**gemma, "rope_parameters": nested, "rope_scaling": nested["full_attention"]}) == from_hf(gemma)


def test_released_gemma_config_leaves_most_out() -> None:
    """What gemma-3-4b-it's config.json says of its language model, and no more."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    config = from_hf({"model_type": "gemma3", "text_config": text})
    assert (config.n_heads, config.n_kv_heads, config.head_dim, config.n_vocab) == (8, 4, 256, 262208)
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)
    assert config.kinds[0].rope.theta == 10000 and config.kinds[5].rope.theta == 1e6
    assert config.tied and config.max_context == 131072


def test_cohere2_states_its_pattern_or_its_layers() -> None:
    """Files older than `layer_types` have a period instead."""
    cohere = {k: v for k, v in CASES["cohere2"].items() if k != "layer_types"}
    listed = ["sliding_attention", "full_attention"] * cohere["num_hidden_layers"]
    said = from_hf({**cohere, "layer_types": listed[: cohere["num_hidden_layers"]]})
    assert from_hf({**cohere, "sliding_window_pattern": 2}) == said


def test_expert_count_under_either_name() -> None:
    old = CASES["qwen3_moe"]
    new = {**old, "num_local_experts": old["num_experts"]}
    del new["num_experts"]
    assert from_hf(new) == from_hf(old)


def test_mistral_window_missing_or_null() -> None:
    mistral = {k: v for k, v in CASES["mistral"].items() if k != "sliding_window"}
    assert from_hf(mistral).windows == (4096,) * 3
    assert from_hf({**mistral, "sliding_window": None}).windows == (0,) * 3


# ---- wrong files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": 1 << 40}, "hidden_size is 1099511627776, but it must be a whole number from 1 to 131072"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
        ({"head_dim": 15}, "no even part"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_scaling": [1]}, "rope_scaling is .1., but it must be an object"),
        ({"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 0.5}}, "high_freq_factor is 0.5"),
        ({"model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "a list of 3 items"),
    ],
)
def test_wrong_number_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CorruptFile, match=sentence):
        from_hf({**LLAMA, **change})


def test_unknown_words_are_named() -> None:
    with pytest.raises(UnsupportedModel, match="activation 'laplace'"):
        from_hf({**LLAMA, "hidden_act": "laplace"})
    with pytest.raises(UnsupportedModel, match="type 'linear_attention'"):
        from_hf({**LLAMA, "model_type": "qwen3", "layer_types": ["linear_attention"] * 3})


ODD: list[Any] = [None, True, -1, 0, 3, 2**70, 0.5, 1e300, float("nan"), float("inf"), "x", b"", [], [{}], [None] * 3]
ODD += [{}, {"rope_type": 3}, {"rope_type": "yarn"}, {"full_attention": 7}, {"sliding_attention": []}]


def config_or_error(read: Callable[[], ModelConfig]) -> bool:
    """Whether a config came of it; an error must be one of ours, and anything else fails the test."""
    try:
        config = read()
    except TahrError as error:
        assert str(error).endswith("."), error
        return False
    assert all(np.isfinite(kind.rope.frequencies()[0]).all() for kind in config.kinds)
    return True


@pytest.mark.parametrize("case", CASES)
def test_every_field_may_be_hostile(case: str) -> None:
    keys = [*CASES[case], "text_config", "rope_parameters", "layer_types", "head_dim", "attention_bias", "hidden_act"]
    outcomes = [config_or_error(partial(from_hf, {**CASES[case], key: odd})) for key in keys for odd in ODD]
    assert True in outcomes and False in outcomes


@pytest.mark.parametrize("case", ["llama_llama3", "llama_yarn", "qwen3_moe", "granite", "gemma3_global"])
def test_every_key_may_be_hostile(case: str) -> None:
    opened = open_model(to_gguf(CASES[case], make_weights(CASES[case])))
    odd_metadata = [{**opened.config, key: odd} for key in opened.config for odd in ODD]
    outcomes = [config_or_error(partial(from_gguf, metadata, opened.tensors)) for metadata in odd_metadata]
    assert True in outcomes and False in outcomes


def refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> str:
    with pytest.raises(CorruptFile) as caught:
        load(open_model([], write_hf(tmp_path, LLAMA, arrays)), ReferenceBackend())
    return str(caught.value)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    arrays = make_weights(LLAMA)
    assert f"no tensor {name}" in refused(tmp_path, {n: a for n, a in arrays.items() if n != name})
    assert f"{name} has the shape [64, 32]" in refused(tmp_path, arrays | {name: arrays[name].T.copy()})


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path, LLAMA, make_weights(LLAMA))
    file = folder / "model.safetensors"
    # I32 is as wide as F32, so the file stays sound.
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(QuantError, match="stored as I32"):
        load(open_model([], folder), ReferenceBackend())


def test_experts_of_mixed_formats_are_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path, CASES["qwen3_moe"], make_weights(CASES["qwen3_moe"]))
    opened = open_model([], folder)
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    one, half = opened.tensors[name], opened.tensors[name].dense().astype(np.float16)
    opened.tensors[name] = HostTensor(name, FORMATS["F16"], one.shape, half.reshape(-1).view(np.uint8))
    with pytest.raises(QuantError, match=r"experts\.up_proj\.weight are stored in different formats \(F16, F32\)"):
        load(opened, ReferenceBackend())


@pytest.mark.parametrize(("text", "sentence"), [("{", "not valid JSON"), ("[1]", "JSON object"), (None, "is missing")])
def test_config_json_must_be_there_and_sound(text: str | None, sentence: str, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, LLAMA, make_weights(LLAMA))
    config = folder / "config.json"
    config.unlink() if text is None else config.write_text(text)
    with pytest.raises(TahrError, match=sentence):
        open_model([], folder)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not a directory"):
        open_model([], tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match="cannot be read"):
        open_model([tmp_path / "nothing.gguf"])


# ---- sampling -----------------------------------------------------------------------------------------------

RECOMMENDED = {
    "qwen3": (0.6, 20, 0.95),
    "qwen3_moe": (0.6, 20, 0.95),
    "qwen2": (0.7, 20, 0.8),
    "gemma3": (1.0, 64, 0.95),
    "llama": (0.6, None, 0.9),
    "mistral": (0.6, None, 0.9),
    "granite": (0.0, None, None),
}


@pytest.mark.parametrize("case", RECOMMENDED)
def test_family_recommends(case: str, tmp_path: Path) -> None:
    opened = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case])))
    said = opened.sampling(opened.model_config())
    assert (said.temperature, said.top_k, said.top_p) == RECOMMENDED[case]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"temperature": 0.3, "top_k": 5}', SamplingParams(temperature=0.3, top_k=5, top_p=0.9)),
        ('{"bos_token_id": 1}', SamplingParams(temperature=0.6, top_p=0.9)),
        ('{"do_sample": false, "temperature": 0.3}', GREEDY),
    ],
)
def test_generation_config_comes_before_the_family(text: str, wanted: SamplingParams, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, LLAMA, make_weights(LLAMA))
    (folder / "generation_config.json").write_text(text)
    opened = open_model([], folder)
    assert opened.sampling(opened.model_config()) == wanted


def test_gguf_metadata_comes_between() -> None:
    metadata = {"general.sampling.temp": 0.4, "general.sampling.top_k": 9}
    said = recommended({"top_k": 3}, metadata, FAMILIES["llama"])
    assert said == SamplingParams(temperature=0.4, top_k=3, top_p=0.9)


def test_gguf_takes_no_generation_config_of_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(to_gguf(LLAMA, make_weights(LLAMA)))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.1}')
    alone, together = open_model([tmp_path / "model.gguf"]), open_model([tmp_path / "model.gguf"], tmp_path)
    assert alone.sampling(alone.model_config()).temperature == 0.6
    assert together.sampling(together.model_config()).temperature == 0.1


def test_wrong_generation_config_is_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path, LLAMA, make_weights(LLAMA))
    (folder / "generation_config.json").write_text('{"temperature": -1}')
    opened = open_model([], folder)
    with pytest.raises(CorruptFile, match="sampling defaults are wrong: temperature is -1"):
        opened.sampling(opened.model_config())

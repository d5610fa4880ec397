"""Adapters from files: what they hold equals merged weights, for every family; what cannot be used is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import story_model
from backends_here import NAMES, backend
from gguf_maker import Gguf, Stored, Typed
from lora_files import host, peft_tensors, write_peft, write_safetensors
from lora_runs import logits, target_of
from model_cases import CASES, FAMILY_CASES, NO_GGUF, Config, make_weights
from model_files import ARCHITECTURES, gguf_arrays, to_gguf, write_hf
from tahr.backends.api import Backend, LinearShape
from tahr.backends.cuda.layouts.presence import interprets
from tahr.cli.main import main
from tahr.errors import AdapterError, LoadError, TahrError
from tahr.models.loader import Loaded, load, open_model
from tahr.models.loader.convert import convert
from tahr.models.lora import open_adapter
from tahr.models.lora.adapter import ADAPTED, make_adapter
from tahr.tools.lora_merge import merged as merged_parts

RANK = 4
Tensors = dict[str, np.ndarray]


def loaded_case(case: str, folder: Path, be: Backend, as_gguf: bool = False, arrays: Tensors | None = None) -> Loaded:
    config = CASES[case]
    values = make_weights(config) if arrays is None else arrays
    return load(
        open_model(to_gguf(config, values)) if as_gguf else open_model([], write_hf(folder, config, values)), be
    )


def plain_linears(loaded: Loaded) -> dict[str, LinearShape]:
    """All but a tied head, which no merged checkpoint can express."""
    return {k: s for k, s in loaded.decoder.linears.items() if not (k == "lm_head" and loaded.config.tied)}


def named_alike(linears: dict[str, LinearShape], arrays: Tensors) -> dict[str, LinearShape]:
    """The linears that the checkpoint has under the same name, uncut; GGUFs hold a gate of one row as a vector."""
    return {
        name: shape
        for name, shape in linears.items()
        if getattr(arrays.get(f"{name}.weight"), "shape", 0) == (shape.n_rows, shape.n_cols) and shape.n_rows > 1
    }


def merged(arrays: Tensors, tensors: Tensors, scale: float) -> Tensors:
    """The weights with an adapter added to them."""
    out = dict(arrays)
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            home = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
            b = tensors[name.replace("lora_A", "lora_B")]
            out[home] = (arrays[home] + np.float64(scale) * b.astype(np.float64) @ a.astype(np.float64)).astype("f4")
    return out


def gguf_adapter(config: Config, tensors: Tensors, alpha: float = 8.0, **changes: Typed) -> bytes:
    """As llama.cpp's converter writes it: names and the order of rows are those of the model's GGUF."""
    sides: dict[str, Tensors] = {"a": {}, "b": {}}
    for name, values in tensors.items():
        side = "a" if "lora_A" in name else "b"
        sides[side][name.removeprefix("base_model.model.").replace(f"lora_{side.upper()}.weight", "weight")] = values
    plain = {**config, "rope_scaling": None}
    renamed = {"b": gguf_arrays(plain, sides["b"])}
    renamed["b"].pop("rope_freqs.weight", None)  # a file's own, not one that was renamed
    order = dict(zip(sides["b"], renamed["b"], strict=True))
    renamed["a"] = {order[name]: values for name, values in sides["a"].items()}
    stored = [
        Stored(f"{name}.lora_{side}", values.shape[::-1], 0, np.ascontiguousarray(values, "<f4").tobytes())
        for side, some in renamed.items()
        for name, values in some.items()
    ]
    import gguf

    arch = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    metadata = {"general.architecture": Typed("str", arch), "general.type": Typed("str", "adapter"),
                "adapter.type": Typed("str", "lora"), "adapter.lora.alpha": Typed("f32", alpha)}  # fmt: skip
    return Gguf(metadata | {k.replace("__", "."): v for k, v in changes.items()}, stored).to_bytes()


# ---- what an adapter adds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_gguf", [False, True], ids=["checkpoint", "gguf"])
@pytest.mark.parametrize("case", FAMILY_CASES)
def test_adapters_equal_merged_weights(case: str, as_gguf: bool, tmp_path: Path) -> None:
    """A PEFT folder and a GGUF adapter, on a checkpoint and on a GGUF: whatever order their heads are in."""
    if as_gguf and case in NO_GGUF:
        pytest.skip("GGUF has no words for it")
    be = backend("reference")
    base = loaded_case(case, tmp_path / "base", be, as_gguf)
    if base.config.family not in ADAPTED:
        with pytest.raises(AdapterError, match="does not run adapters"):
            make_adapter({}, target_of(base), "", ())
        return
    linears = named_alike(plain_linears(base), make_weights(CASES[case]))
    if not linears:
        pytest.skip("the family's checkpoints have other names")
    tensors = peft_tensors(linears, RANK, seed=3, strength=0.3)
    wanted = logits(loaded_case(case, tmp_path / "m", be, arrays=merged(make_weights(CASES[case]), tensors, 2.0)), be)
    folder = write_peft(tmp_path / "adapter", tensors, r=RANK, lora_alpha=2 * RANK)
    paths = [folder]
    if CASES[case]["model_type"] in ARCHITECTURES:
        paths.append(tmp_path / "adapter.gguf")
        paths[-1].write_bytes(gguf_adapter(CASES[case], tensors, 2.0 * RANK))
    assert np.abs(wanted - logits(base, be)).max() > 0.1, "the adapter does something"
    for path in paths:
        adapter = open_adapter(path, target_of(base))
        assert np.abs(logits(base, be, adapter) - wanted).max() <= 1e-4


@pytest.mark.parametrize("name", [name for name in NAMES if name != "reference"])
def test_a_whole_model_on_every_backend(name: str, tmp_path: Path) -> None:
    be, oracle = backend(name), backend("reference")
    tensors: Tensors = {}
    found = []
    for each in (oracle, be):
        base = loaded_case("qwen3", tmp_path / "base", each)
        tensors = tensors or peft_tensors(plain_linears(base), RANK, seed=4, strength=0.3)
        adapter = open_adapter(write_peft(tmp_path / "adapter", tensors, r=RANK), target_of(base))
        found.append(logits(base, each, adapter, scale=-0.5))
    assert np.abs(found[0] - found[1]).max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_an_adapter_on_a_quantised_base_is_as_near_to_merged_weights_as_the_base_to_its_own(
    name: str, quantize: str, tmp_path: Path
) -> None:
    if name == "cuda" and interprets():
        pytest.skip("Triton's interpreter cannot multiply bf16")
    be, exact = backend(name), backend("reference")
    base = loaded_case("qwen3", tmp_path / "base", exact)
    tensors = peft_tensors(plain_linears(base), RANK, seed=3, strength=0.3)
    adapter = open_adapter(write_peft(tmp_path / "adapter", tensors, r=RANK, lora_alpha=RANK), target_of(base))
    both = loaded_case("qwen3", tmp_path / "m", exact, arrays=merged(make_weights(CASES["qwen3"]), tensors, 1.0))
    rounded = load(open_model([], tmp_path / "base"), be, quantize=quantize)
    plain, wanted = logits(base, exact), logits(both, exact)
    rounding = np.abs(logits(rounded, be) - plain).max()
    assert np.abs(logits(rounded, be, adapter) - wanted).max() <= 1.5 * rounding
    assert 1e-4 < rounding < np.abs(wanted - plain).max(), "the base is rounded, and the adapter does more"


def test_tied_heads_and_routers_are_adapted_where_they_are_used(tmp_path: Path) -> None:
    """The table stays as it is when a tied head is adapted; the experts themselves do not change."""
    be = backend("reference")
    tied = loaded_case("granite", tmp_path / "granite", be)
    shape = {"lm_head": tied.decoder.linears["lm_head"]}
    tensors = peft_tensors(shape, RANK, seed=1)
    adapter = open_adapter(write_peft(tmp_path / "head", tensors, r=RANK, lora_alpha=RANK), target_of(tied))
    untied = {**make_weights(CASES["granite"])}
    untied["lm_head.weight"] = untied["model.embed_tokens.weight"]
    config = {**CASES["granite"], "tie_word_embeddings": False}
    wanted = logits(load(open_model([], write_hf(tmp_path / "u", config, merged(untied, tensors, 1.0))), be), be)
    assert np.abs(logits(tied, be, adapter) - wanted).max() <= 1e-4
    moe = loaded_case("qwen3_moe", tmp_path / "moe", be)
    assert any(name.endswith("mlp.gate") for name in moe.decoder.linears)


def test_scales_follow_ranks_alphas_and_their_patterns(tmp_path: Path) -> None:
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    linears = {n: s for n, s in base.decoder.linears.items() if n.endswith(("q_proj", "v_proj"))}
    special = "model.layers.1.self_attn.v_proj"
    tensors = peft_tensors({n: s for n, s in linears.items() if n != special}, 4, 1)
    tensors |= peft_tensors({special: linears[special]}, 16, 2)
    patterns = {"rank_pattern": {special: 16}, "alpha_pattern": {"layers.0.self_attn.q_proj": 1, "v_proj": 32}}
    folder = write_peft(tmp_path / "plain", tensors, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **patterns)
    found = {name: f.scale for name, f in open_adapter(folder, target_of(base)).factors.items()}
    assert found["model.layers.0.self_attn.q_proj"] == 1 / 4
    assert found["model.layers.1.self_attn.q_proj"] == 8 / 4
    assert found["model.layers.0.self_attn.v_proj"] == 32 / 4
    assert found[special] == 32 / 16
    folder = write_peft(tmp_path / "root", tensors, r=4, lora_alpha=8, use_rslora=True, rank_pattern={special: 16})
    found = {name: f.scale for name, f in open_adapter(folder, target_of(base)).factors.items()}
    assert found["model.layers.1.self_attn.q_proj"] == 8 / 2
    assert found[special] == 8 / 4


@pytest.mark.parametrize("layers", [0, [0]])
def test_an_adapter_of_one_layer_is_whole(layers: int | list[int], tmp_path: Path) -> None:
    """PEFT writes a single layer as a number, and the first one is 0."""
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    tensors = peft_tensors({Q0: base.decoder.linears[Q0]}, RANK, 1)
    config = {"r": RANK, "target_modules": ["q_proj"], "layers_to_transform": layers}
    assert list(open_adapter(write_peft(tmp_path / "a", tensors, **config), target_of(base)).factors) == [Q0]


@pytest.mark.parametrize("case", ["llama", "granite"], ids=["head", "tied head"])
def test_the_matrix_that_peft_saves_beside_a_heads_factors_is_the_models_own(case: str, tmp_path: Path) -> None:
    base = loaded_case(case, tmp_path / "base", backend("reference"))
    shape = base.decoder.linears["lm_head"]
    tensors = peft_tensors({"lm_head": shape}, RANK, 1)

    def opened(n_rows: int) -> list[str]:
        copy = {"base_model.model.lm_head.base_layer.weight": np.zeros((n_rows, shape.n_cols), np.float32)}
        folder = write_peft(tmp_path / "a", {**copy, **tensors}, r=RANK, target_modules=["lm_head"])
        return list(open_adapter(folder, target_of(base)).factors)

    assert opened(shape.n_rows) == ["lm_head"]
    with pytest.raises(AdapterError, match="replaces a part"):
        opened(shape.n_rows + 1)  # it has tokens that the model lacks


def test_digests_name_the_content(tmp_path: Path) -> None:
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    tensors = peft_tensors(base.decoder.linears, RANK, 1)

    def digest(name: str, tensors: Tensors, **config: Any) -> str:
        return open_adapter(write_peft(tmp_path / name, tensors, r=RANK, **config), target_of(base)).digest

    first = digest("a", tensors)
    assert digest("b", tensors) == first, "the path does not matter"
    assert digest("a", tensors, lora_alpha=9) != first
    changed = {**tensors}
    name = next(iter(changed))
    changed[name] = changed[name] + np.float32(1e-7)
    assert digest("a", changed) != first, "the same path with other content is another adapter"


@pytest.mark.parametrize("form", ["F16", "BF16"])
def test_factors_stay_as_they_are_stored(form: str, tmp_path: Path) -> None:
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    tensors = {n: host(n, t, form) for n, t in peft_tensors(base.decoder.linears, RANK, 1).items()}
    adapter = open_adapter(write_peft(tmp_path / "a", tensors, r=RANK), target_of(base))
    assert {f.a.format.name for f in adapter.factors.values()} == {form}
    assert adapter.n_bytes == sum(t.n_bytes for t in tensors.values())


# ---- what is refused ------------------------------------------------------------------------------------------

Q0 = "model.layers.0.self_attn.q_proj"
A0, B0 = (f"base_model.model.{Q0}.lora_{side}.weight" for side in "AB")


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if n not in names}


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name])}


def with_value(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[-1, -1] = value
        return values

    return change


def added(name: str, shape: tuple[int, ...]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: np.zeros(shape, np.float32)}


REFUSALS: list[tuple[str, dict[str, Any], Callable[[Tensors], Tensors]]] = [
    ("DoRA", {"use_dora": True}, dict),
    ("lm_head", {"modules_to_save": ["lm_head"]}, dict),
    ("biases", {"bias": "all"}, dict),
    ("'IA3'", {"peft_type": "IA3"}, dict),
    ("changed base model", {"init_lora_weights": "pissa_niter_4"}, dict),
    ("changed base model", {"init_lora_weights": "lora_ga"}, dict),
    ("says 8", {"r": 8}, dict),
    ("must be a whole number from 1 to 512", {"r": 0}, dict),
    ("must be a whole number from 1 to 512", {"r": 100_000}, dict),
    ("must be a number", {"lora_alpha": float("nan")}, dict),
    ("must be a number", {"lora_alpha": "8"}, dict),
    ("alpha .* is 0", {"lora_alpha": 0}, dict),
    ("regular expression", {"alpha_pattern": {"(a+)+$": 1}}, dict),
    ("must be an object", {"rank_pattern": [1]}, dict),
    ("lacks the second", {}, without(B0)),
    ("lacks the first", {}, without(A0)),
    ("lacks the tensors of", {"target_modules": ["q_proj"]}, without(A0, B0)),
    ("nothing to add", {}, lambda tensors: {}),
    ("not finite", {}, changed(A0, with_value(np.nan))),
    ("not finite", {}, changed(B0, with_value(-np.inf))),
    ("no two factors", {}, changed(B0, lambda b: b[:, :3])),
    ("no two factors", {}, changed(A0, lambda a: a[:, :, None])),
    ("32 x 64 matrix .* is 64 x 64", {}, changed(B0, lambda b: b[:32])),
    ("no such linear", {}, added("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", (4, 64))),
    ("experts", {}, added("base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight", (4, 64))),
    ("embedding table", {}, added("base_model.model.model.embed_tokens.lora_embedding_A", (4, 128))),
    ("is a DoRA", {}, added(f"base_model.model.{Q0}.lora_magnitude_vector", (64,))),
    ("replaces a part", {}, added("base_model.model.lm_head.weight", (128, 64))),
    ("replaces a part", {}, added("../../etc/passwd", (1,))),
    ("two adapters in one file", {}, added(A0.replace(".lora_A.", ".lora_A.other."), (4, 64))),
    ("two adapters in one file", {}, added(B0.removeprefix("base_model.model."), (64, 4))),
]


@pytest.mark.parametrize(("sentence", "config", "change"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_what_is_no_plain_adapter_is_refused_in_a_sentence(
    sentence: str, config: dict[str, Any], change: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    folder = write_peft(tmp_path / "a", change(peft_tensors(base.decoder.linears, RANK, 1)), **{"r": RANK, **config})
    with pytest.raises(LoadError, match=sentence) as caught:
        open_adapter(folder, target_of(base))
    assert str(caught.value).endswith((".", ")"))


def test_a_linear_is_not_changed_twice_as_itself_and_as_a_part_of_another(tmp_path: Path) -> None:
    base = loaded_case("phi3", tmp_path / "base", backend("reference"))
    linears = base.decoder.linears
    n_rows, n_cols = sum(linears[Q0.replace("q_proj", f"{x}_proj")].n_rows for x in "qkv"), linears[Q0].n_cols
    fused = {Q0.replace("q_proj", "qkv_proj"): LinearShape(n_rows, n_cols)}
    open_adapter(write_peft(tmp_path / "fused", peft_tensors(fused, RANK, 1)), target_of(base))
    both = peft_tensors({**fused, Q0: linears[Q0]}, RANK, 1)
    with pytest.raises(AdapterError, match="twice"):
        open_adapter(write_peft(tmp_path / "both", both), target_of(base))


def test_a_rank_no_machine_should_hold_is_refused(tmp_path: Path) -> None:
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    tensors = {A0: np.zeros((600, 64), np.float32), B0: np.zeros((64, 600), np.float32)}
    folder = write_peft(tmp_path / "a", tensors, r=512, rank_pattern={"q_proj": 512})
    with pytest.raises(AdapterError, match="rank 600"):
        open_adapter(folder, target_of(base))
    (tmp_path / "a.gguf").write_bytes(gguf_adapter(CASES["llama"], tensors))
    with pytest.raises(AdapterError, match="512 is the most"):
        open_adapter(tmp_path / "a.gguf", target_of(base))


@pytest.mark.parametrize(
    ("sentence", "changes"),
    [
        ("made for a 'qwen2' model", {"general__architecture": Typed("str", "qwen2")}),
        ("holds no adapter", {"general__type": Typed("str", "model")}),
        ("'control_vector'", {"adapter__type": Typed("str", "control_vector")}),
        ("adapter.lora.alpha", {"adapter__lora__alpha": Typed("str", "much")}),
        ("aLoRA", {"adapter__alora__invocation_tokens": Typed("[u32]", [1])}),
    ],
)
def test_other_gguf_files_are_refused(sentence: str, changes: dict[str, Typed], tmp_path: Path) -> None:
    base = loaded_case("llama", tmp_path / "base", backend("reference"))
    tensors = peft_tensors({Q0: base.decoder.linears[Q0]}, RANK, 1)
    (tmp_path / "a.gguf").write_bytes(gguf_adapter(CASES["llama"], tensors, **changes))
    with pytest.raises(LoadError, match=sentence):
        open_adapter(tmp_path / "a.gguf", target_of(base))


def test_files_that_are_no_adapters_are_refused(tmp_path: Path) -> None:
    base = target_of(loaded_case("llama", tmp_path / "base", backend("reference")))
    tensors = peft_tensors(base.linears, RANK, 1)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    cut = write_peft(tmp_path / "cut", tensors, r=RANK)
    whole = (cut / "adapter_model.safetensors").read_bytes()
    (cut / "adapter_model.safetensors").write_bytes(whole[:-9])
    odd = write_peft(tmp_path / "odd", tensors, r=RANK)
    (odd / "adapter_config.json").write_text("[1, 2")
    (tmp_path / "model.gguf").write_bytes(to_gguf(CASES["llama"], make_weights(CASES["llama"])))
    for name in ("text", "empty", "pickle", "cut", "odd", "model.gguf", "nowhere", "base"):
        with pytest.raises(TahrError):
            open_adapter(tmp_path / name, base)


def test_integers_are_no_factors(tmp_path: Path) -> None:
    base = target_of(loaded_case("llama", tmp_path / "base", backend("reference")))
    folder = write_peft(tmp_path / "a", peft_tensors({Q0: base.linears[Q0]}, RANK, 1), r=RANK)
    tensors = {A0: np.zeros((RANK, 64), np.float32), B0: np.zeros((64, RANK), np.float32)}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    raw = (folder / "adapter_model.safetensors").read_bytes().replace(b'"F32"', b'"I32"')
    (folder / "adapter_model.safetensors").write_bytes(raw)
    with pytest.raises(AdapterError, match="I32"):
        open_adapter(folder, base)


def test_a_name_of_another_base_is_a_note_not_an_error(tmp_path: Path) -> None:
    base = target_of(loaded_case("llama", tmp_path / "base", backend("reference")))
    tensors = peft_tensors(base.linears, RANK, 1)
    folder = write_peft(tmp_path / "a", tensors, r=RANK, base_model_name_or_path="meta/Other-7B")
    adapter = open_adapter(folder, base)
    assert adapter.base == "meta/Other-7B" and "Other-7B" in adapter.notes[0]
    folder = write_peft(tmp_path / "a", tensors, r=RANK, base_model_name_or_path="/models/Tiny/")
    assert open_adapter(folder, base).notes == ()


# ---- merging --------------------------------------------------------------------------------------------------


def test_merging_writes_what_the_adapter_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The merged file, read again, gives the logits of the base with the adapter; a quantised one nearly so."""
    base, be = story_model.write(tmp_path / "story"), backend("reference")
    loaded = load(open_model([base]), be)
    linears = {n: s for n, s in loaded.decoder.linears.items() if n != "lm_head"}
    folder = write_peft(tmp_path / "adapter", peft_tensors(linears, RANK, seed=2, strength=0.2), r=RANK)
    wanted = logits(loaded, be, open_adapter(folder, target_of(loaded)), scale=0.5)
    assert np.abs(wanted - logits(loaded, be)).max() > 0.05
    for more, tolerance in (((), 1e-4), (("--type", "Q8_0"), 0.2)):
        out = tmp_path / "merged.gguf"
        assert main(["merge", str(base), str(folder), str(out), "--scale", "0.5", *more]) == 0
        assert np.abs(logits(load(open_model([out]), be), be) - wanted).max() <= tolerance
    assert main(["merge", str(base), str(tmp_path / "nowhere"), str(tmp_path / "no.gguf")]) == 3
    assert not (tmp_path / "no.gguf").exists()
    for scale in ("nan", "inf", "1e39"):
        assert main(["merge", str(base), str(folder), str(tmp_path / "no.gguf"), "--scale", scale]) == 3
        assert "Give another --scale" in capsys.readouterr().err and not (tmp_path / "no.gguf").exists()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        kept = (folder / name).read_bytes()
        assert main(["merge", str(base), str(folder), str(folder / name)]) == 3
        assert "which is read" in capsys.readouterr().err and (folder / name).read_bytes() == kept
    for _ in range(2):  # what was merged before may be written again
        assert main(["merge", str(base), str(folder), str(folder / "merged.gguf")]) == 0
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"mine")
    assert main(["merge", str(base), str(adapter), str(adapter)]) == 3
    assert "the file that is read" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["llama", "granite", "qwen3_moe", "gemma3"])
def test_merging_into_a_checkpoint_follows_the_order_of_its_gguf(case: str, tmp_path: Path) -> None:
    folder, weights = write_hf(tmp_path / "base", CASES[case], make_weights(CASES[case])), make_weights(CASES[case])
    linears = plain_linears(load(open_model([], folder), backend("reference")))
    tensors = peft_tensors(linears, RANK, seed=2, strength=0.2)
    adapter = write_peft(tmp_path / "adapter", tensors, r=RANK, lora_alpha=RANK)
    files = SimpleNamespace(weights=[], directory=folder, name="tiny")
    parts = merged_parts(convert(open_model([], folder)).parts, files, adapter)  # type: ignore[arg-type]
    wanted = gguf_arrays(CASES[case], merged(weights, tensors, 1.0))
    for part in parts:
        np.testing.assert_allclose(part.make().dense(), wanted[part.name], rtol=0, atol=1e-5)

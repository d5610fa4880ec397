"""What a plan says of a model before a matrix is read is what a load then takes."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends_here
from chat_vision_files import write_chat_vision
from model_cases import CASES, LLAMA, make_weights
from model_files import write_hf
from model_runs import greedy
from quantised_files import CASES as QUANTISED
from quantised_files import tensor as stored_tensor
from random_weights import random_tensor
from speech_runs import checkpoint
from tahr.backends.api import Backend
from tahr.backends.host import memory as host_memory
from tahr.cli.main import main
from tahr.cli.verbs.doctor import placement_table
from tahr.config import EngineConfig
from tahr.errors import LoadError
from tahr.executor.protocol import TOWER
from tahr.library.llm import LLM
from tahr.loading.builder import build_engine
from tahr.loading.placement import DeviceFacts, Placement, Pool, place
from tahr.loading.sizing import plan_of, summary, tensor_sizes
from tahr.models.files.schemes import join_parts, scheme_of
from tahr.models.loader.load import Loaded, OpenedModel, load, open_model
from tahr.models.parts.arrange import Tensors
from tahr.offload.homes import Home, TensorSize, TensorSplit
from tahr.weights.unread import Unread, without_data

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
CONFIG = EngineConfig(context_size=32, max_batch_size=4)
STORIES = "stories"
# The model, and the format of its matrices: those of blocks have random ones.
MODELS = [
    (STORIES, "F32"), ("llama", "Q4_0"), ("qwen2", "Q4_K"), ("mistral", "Q8_0"), ("qwen3_moe", "BF16"),
    ("granite4_h", "BF16"), ("gemma3", "F16"), ("llama", "IQ3_S"),
    ("llama", "Q2_0"),
]  # fmt: skip


def opened(case: str, stored_as: str, folder: Path, stories: Path) -> OpenedModel:
    """A tiny model whose matrices are in a format."""
    if case == STORIES:
        return open_model([stories])
    if stored_as in ("F16", "BF16"):
        return open_model([], write_hf(folder, CASES[case], make_weights(CASES[case]), stored_as))
    config = {**CASES[case], **WIDE}
    source, rng = open_model([], write_hf(folder, config, make_weights(config))), np.random.default_rng(1)
    changed = {
        name: random_tensor(stored_as, tensor.shape, rng, name)
        for name, tensor in source.tensors.items()
        if len(tensor.shape) == 2
    }
    return replace(source, tensors={**source.tensors, **changed})


def real_bytes(loaded: Loaded, backend: Backend, taken: list[Any]) -> int:
    """What the native code allocated for matrices until tokens have been generated, and all vectors."""
    greedy(loaded, backend, [1, 2, 3], 2)
    packed = [matrix.packed for matrix in taken if "packed" in vars(matrix)]
    return sum(matrix.n_bytes for matrix in packed) + loaded.n_vector_bytes


def layer_bytes(layer: Any) -> int:
    """What the arrays of a layer's states, or of its keys and values, take."""
    parts = [layer] if isinstance(layer, np.ndarray) else [layer.keys, layer.values]
    return sum(part.nbytes for part in parts)


@pytest.mark.parametrize(("case", "stored_as"), MODELS)
def test_a_plan_is_what_the_cpu_allocates(
    case: str, stored_as: str, tmp_path: Path, stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, backend, taken = opened(case, stored_as, tmp_path, stories), backends_here.backend("cpu"), []
    planned, take = plan_of(source, backend, CONFIG), backend.weight

    def weight(tensor: Any) -> Any:
        found = take(tensor)
        taken.append(found.data)
        return found

    monkeypatch.setattr(backend, "weight", weight)
    loaded = load(source, backend)
    assert planned.resident_bytes == pytest.approx(real_bytes(loaded, backend, taken), rel=0.01)
    tables = [matrix.host.n_bytes for matrix in taken if "table" in vars(matrix)]
    assert planned.file_bytes == sum(tables) > 0
    kv = build_engine(backend, loaded.decoder, CONFIG)[0].executor.kv
    assert planned.pool_bytes == pytest.approx(sum(map(layer_bytes, kv.layers)), rel=0.01)
    assert any("states" in pool.name for pool in planned.pools) == (case == "granite4_h")
    assert any("window" in pool.name for pool in planned.pools) == (case in ("gemma3", "mistral"))


@pytest.mark.parametrize("n_bytes", [2**15, 2**20])
def test_a_plan_has_the_row_slots(n_bytes: int, tmp_path: Path) -> None:
    source = open_model([], Path(write_chat_vision(tmp_path)))
    backend = backends_here.backend("cpu")
    config = replace(CONFIG, feature_cache_bytes=n_bytes)
    planned = plan_of(source, backend, config)
    engine = build_engine(backend, load(source, backend).decoder, config)[0]
    executor = engine.executor
    (pool,) = [pool for pool in planned.pools if pool.name == "row slots"]
    store = executor.executed[0].inputs.rows
    assert pool.n == store.n_slots == executor.models[0].rows.n_slots
    assert pool.n_bytes == store.data.nbytes == pytest.approx(n_bytes, rel=0.01)
    tower = executor.executed[TOWER].inputs.rows
    rest = sum(map(layer_bytes, executor.kv.layers)) + tower.data.nbytes
    assert planned.pool_bytes - pool.n_bytes == pytest.approx(rest, rel=0.01)
    assert f"{pool.n_bytes / 1e6:.1f} MB of them row slots" in summary(planned)
    assert any(line.startswith("row slots ") and f"{pool.n} slots" in line for line in placement_table(planned))


def test_a_plan_has_the_pages_of_recordings() -> None:
    config = replace(CONFIG, context_size=24)
    backend = backends_here.backend("cpu")
    source = open_model([], checkpoint("whisper"))
    planned = plan_of(source, backend, config)
    executor = build_engine(backend, load(source, backend).decoder, config)[0].executor
    rows = executor.executed[TOWER].inputs.rows
    names = ["keys and values in f16", "keys and values of inputs in f16", "rows of the tower"]
    assert [pool.name for pool in planned.pools] == names
    taken = sum(map(layer_bytes, executor.kv.layers)) + rows.data.nbytes
    assert planned.pool_bytes == pytest.approx(taken, rel=0.01)


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_every_family(case: str, name: str, tmp_path: Path) -> None:
    backend = backends_here.backend(name)
    source = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case]), "BF16"))
    planned, loaded = plan_of(source, backend, CONFIG), load(source, backend)
    sizes = {name: size._replace(panels=None) for name, size in planned.sizes.items()}
    assert sizes == tensor_sizes(loaded) and planned.homes.keys() == planned.sizes.keys()
    ties = loaded.config.tied
    counted = [size.n_bytes for name, size in planned.sizes.items() if name != "lm_head.weight" or not ties]
    assert sum(counted) == loaded.n_weight_bytes


def test_quantising_at_load(tmp_path: Path) -> None:
    config, backend = {**LLAMA, **WIDE}, backends_here.backend("cpu")
    source = open_model([], write_hf(tmp_path, config, make_weights(config)))
    planned = plan_of(source, backend, replace(CONFIG, quantize="q4_k_m"))
    assert planned.sizes == tensor_sizes(load(source, backend, quantize="q4_k_m"))
    assert {size.format for size in planned.sizes.values()} >= {"Q4_K", "Q6_K"}


@pytest.mark.parametrize("case", QUANTISED)
def test_quantised_checkpoints(case: str) -> None:
    packed = QUANTISED[case].pack((256, 256), np.random.default_rng(1))
    real = {f"w.{kind}": stored_tensor(f"w.{kind}", *part) for kind, part in packed.parts.items()}
    found = []
    for parts in (real, {name: without_data(tensor) for name, tensor in real.items()}):
        tensors = Tensors(parts)
        join_parts(tensors, scheme_of(QUANTISED[case].config))
        found.append(tensors["w.weight"])
    assert [(each.format, each.shape, each.n_bytes) for each in found[:1]] == [
        (each.format, each.shape, each.n_bytes) for each in found[1:]
    ]


def test_planning_takes_no_memory(tmp_path: Path) -> None:
    config, backend = (
        {**CASES["qwen3_moe"], "hidden_size": 1024, "moe_intermediate_size": 1024},
        backends_here.backend("cpu"),
    )
    source = open_model([], write_hf(tmp_path, config, make_weights(config)))
    tracemalloc.start()
    planned = plan_of(source, backend, CONFIG)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < planned.resident_bytes / 20 and planned.resident_bytes > 30e6


def test_bytes_that_are_not_read() -> None:
    tensor = without_data(random_tensor("BF16", (6, 8), np.random.default_rng(1)))
    values = tensor.data.view("<u2").reshape(6, 8)
    for made in (values.T, values[1:3], np.concatenate([values, values]), np.stack([values, values]), values << 4 | 1):
        assert not any(made.strides)
    assert isinstance(np.concatenate([values, values]), Unread) and np.stack([values] * 3).shape == (3, 6, 8)
    assert np.array_equal(tensor.dense(), np.zeros((6, 8), np.float32))
    assert np.array_equal(values + np.ones(8, np.uint16), np.ones((6, 8)))


def test_homes_of_devices() -> None:
    sizes = {
        "model.layers.0.mlp.up_proj.weight": TensorSize("F16", 30),
        "model.embed_tokens.weight": TensorSize("F16", 9, 7),
    }
    host = place(sizes, [DeviceFacts("cpu", 100)], [Pool("pages", 4, "pages", 40)])
    assert [host.place_of(part.home) for part in host.parts()] == ["host, resident", "file, mapped"]
    assert (host.resident_bytes, host.file_bytes, host.pool_bytes) == (30, 7, 40)
    card = place(sizes, [DeviceFacts("card", 100, is_host=False)])
    assert card.place_of(card.default_home) == "card 0, resident"
    assert card.place_of(Home(0, "streamed", TensorSplit(0, 1, 2))) == "card 0, streamed, part 2 of 2"


def test_a_model_that_does_not_fit_is_told_what_would_do(
    stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, meminfo = backends_here.backend("cpu"), tmp_path / "meminfo"
    planned = plan_of(open_model([stories]), backend, CONFIG)
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 10 kB\nSwapFree: 5 kB\n")
    with pytest.raises(LoadError, match=rf"weights take {planned.resident_bytes / 1e6:.1f} MB.*at least \d"):
        plan_of(open_model([stories]), backend, CONFIG)
    with pytest.raises(LoadError, match="at least"):
        LLM(str(stories), backend="cpu")


def test_doctor_prints_homes_and_reads_nothing(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tahr.backends.automatic", lambda n_threads: "cpu")
    assert main(["doctor", str(stories)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "attention",
        "feed-forward layers",
        "host, resident",
        "file, mapped",
        "keys and values in f16",
        "pages",
    ):
        assert words in shown
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(stories.read_bytes()[:5000])
    for path in (broken, tmp_path / "missing.gguf"):
        assert main(["doctor", str(path)]) == 1
        assert "could not be checked" in capsys.readouterr().err


def test_the_load_log_has_the_plan(stories: Path) -> None:
    with LLM(str(stories), backend="cpu") as llm:
        planned: Placement = plan_of(open_model([stories]), backends_here.backend("cpu"), EngineConfig())
        lines = [line for line in llm.load_log if line.startswith("Planned: ")]
        assert len(lines) == 1 and f"{planned.resident_bytes / 1e6:.1f} MB on cpu" in lines[0]

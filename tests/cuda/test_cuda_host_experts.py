"""Experts that stay in the host's memory while the rest of a model is on a CUDA device."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import backends_here

if "cuda" not in backends_here.NAMES:
    pytest.skip("no GPU, and no interpreter of its kernels", allow_module_level=True)

import torch

from model_cases import CASES, make_weights, token_ids
from model_files import to_gguf, write_hf
from model_runs import Runs, greedy
from tahr.backends.api import ExpertMLPs, Linear, Routing
from tahr.backends.cpu.memory import Arena, Buffer, Count
from tahr.backends.cuda import host_experts, memory
from tahr.backends.cuda.backend import CudaBackend, open_device
from tahr.backends.cuda.host_experts import HostExperts
from tahr.backends.cuda.kernels.experts import choose, weighed
from tahr.backends.cuda.layouts.presence import interprets
from tahr.cli.verbs.doctor import placement_table
from tahr.config import EngineConfig
from tahr.errors import ConfigError, LoadError, OffloadError
from tahr.loading.budgets import refuse_beside_experts
from tahr.loading.placement import Placement
from tahr.loading.sizing import SizingBackend, plan_of, size_up, summary, tensor_sizes
from tahr.models.loader.load import Loaded, OpenedModel, load, open_model
from tahr.offload.expert_homes import HOST, expert_layers
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_EXPERTS, N_FFN, WIDTH = 6, 64, 96
HALF = "F16" if interprets() else "BF16"  # the interpreter multiplies no bf16


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    """One with memory of its own, even where kernels are interpreted."""
    made = open_device()
    made.has_own_memory = True
    yield made


def stack(name: str, form: str, n_rows: int, n_cols: int) -> HostTensor:
    rng = np.random.default_rng(len(name))
    kind = FORMATS[form]
    shape = (N_EXPERTS, n_rows, n_cols)
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // kind.block, kind.block_bytes), np.uint8)
    if form in ("F32", "F16", "BF16"):
        values = rng.standard_normal(shape).astype(np.float32) / 8
        return HostTensor(name, kind, shape, to_bytes(values, form))
    blocks[:, :2] = np.array([0.002], np.float16).view(np.uint8)  # the scale
    return HostTensor(name, kind, shape, blocks.reshape(-1))


def to_bytes(values: np.ndarray, form: str) -> np.ndarray:
    if form == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    return values.astype({"F32": np.float32, "F16": np.float16}[form]).reshape(-1).view(np.uint8)


def mlps_on_host(backend: CudaBackend, form: str, routing: Routing) -> ExpertMLPs:
    shapes = {"gate": (N_FFN, WIDTH), "up": (N_FFN, WIDTH), "down": (WIDTH, N_FFN)}
    made = [Linear(backend.weight_elsewhere(stack(name, form, *shape), HOST)) for name, shape in shapes.items()]
    return ExpertMLPs(*made, routing, "silu")


def on_cpu(host: HostExperts, x: np.ndarray, scores: np.ndarray, mlps: ExpertMLPs) -> np.ndarray:
    """What the CPU backend makes of the same rows, given the experts and shares that the device chooses."""
    shares, experts = choose(torch.from_numpy(scores).to(host.device), mlps.routing)
    shares, renormalise, scale, scales_input = weighed(shares, experts, mlps.routing)
    if not scales_input:
        shares = (shares / shares.sum(dim=1, keepdim=True) if renormalise else shares) * scale
    cpu = host.cpu
    there = cpu.tensor(x)
    count = Count(np.array([len(x)], np.int32), 0, len(x))
    buffers = [Buffer(Arena(), count, 4 * mlps.routing.n_active) for _ in range(2)]
    buffers[0].block.bytes.view(np.int32)[:] = experts.int().cpu().numpy().reshape(-1)
    buffers[1].block.bytes.view(np.float32)[:] = shares.float().cpu().numpy().reshape(-1)
    return cpu.read(cpu.chosen_experts(there, *buffers, mlps)).copy()


ROUTINGS = {
    "renormalised": Routing(2, renormalise=True),
    "scaled": Routing(3, renormalise=False, sigmoid=True, scale=2.5),
    "of the input": Routing(1, renormalise=False, sigmoid=True, scales_input=True),
    "of groups": Routing(2, renormalise=True, n_groups=3, n_best_groups=2),
    "jittered": Routing(2, renormalise=False, jitter=0.01),
}


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("n_rows", [1, 5])
def test_experts_on_the_host_give_the_bits_of_the_cpu(backend: CudaBackend, routing: str, n_rows: int) -> None:
    check_bits(backend, "Q8_0", ROUTINGS[routing], n_rows)


@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q4_0", "Q5_1"])
def test_all_formats_with_kernels_of_the_cpu_do(backend: CudaBackend, form: str) -> None:
    check_bits(backend, form, ROUTINGS["renormalised"], 3)


def check_bits(backend: CudaBackend, form: str, routing: Routing, n_rows: int) -> None:
    mlps = mlps_on_host(backend, form, routing)
    rng = np.random.default_rng(n_rows)
    for _ in range(2):
        x = rng.standard_normal((n_rows, WIDTH)).astype(np.float32)
        scores = rng.standard_normal((n_rows, N_EXPERTS)).astype(np.float32)
        found = backend.read(backend.experts(backend.tensor(x), backend.tensor(scores), mlps))
        backend.step_check()()
        np.testing.assert_array_equal(found, on_cpu(backend.host_experts, x, scores, mlps))


def test_long_steps_are_sent_in_parts(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_experts, "MOST_ROWS", 4)
    check_bits(backend, "Q8_0", ROUTINGS["renormalised"], 11)


def test_formats_without_a_kernel_and_other_matrices_are_refused_by_name(backend: CudaBackend) -> None:
    with pytest.raises(ConfigError, match=r"gate are in FP8_128, for which the CPU has no kernel"):
        tensor = HostTensor("gate", FORMATS["FP8_128"], (2, 128, 128), np.zeros(0, np.uint8))
        backend.weight_elsewhere(tensor, HOST)
    with pytest.raises(ConfigError, match=r"head is no stack of experts"):
        backend.weight_elsewhere(HostTensor("head", FORMATS["F32"], (4, 4), np.zeros(64, np.uint8)), HOST)


def layers_of(source: OpenedModel, backend: CudaBackend) -> list[list[str]]:
    return expert_layers(tensor_sizes(size_up(source, SizingBackend(backend))))


def with_experts_on_host(source: OpenedModel, backend: CudaBackend, n_layers: int = 99) -> Loaded:
    names = [name for layer in layers_of(source, backend)[:n_layers] for name in layer]
    assert names
    return load(source, backend, homes=dict.fromkeys(names, HOST))


TEXT = token_ids()[:5]
COMMON = ("qwen3_moe", "gpt_oss", "llama4")  # plain, with biases, with scaled inputs
HAVE_EXPERTS = [
    pytest.param(name, marks=() if name in COMMON else pytest.mark.full)
    for name, config in CASES.items()
    if any("expert" in key for key in config)
]


@pytest.mark.parametrize("family", HAVE_EXPERTS)
def test_models_with_experts_on_the_host_say_the_same(family: str, tmp_path: Path, backend: CudaBackend) -> None:
    source = open_model([], write_hf(tmp_path, CASES[family], make_weights(CASES[family])))
    if not layers_of(source, backend):
        pytest.skip("no experts after all")
    plain = open_device()
    resident = Runs(load(source, plain), plain).eager([(0, TEXT)])
    found = Runs(with_experts_on_host(source, backend), backend).eager([(0, TEXT)])
    assert divergence(resident, found) <= 0.003
    assert (resident.argmax(axis=1) == found.argmax(axis=1)).mean() >= 0.97


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """The mean of KL(one, other) over rows of logits."""
    p, q = (np.exp(x - x.max(axis=1, keepdims=True)) for x in (one.astype(np.float64), other.astype(np.float64)))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    return float((p * np.log(p / q)).sum(axis=1).mean())


def test_a_gguf_with_some_layers_on_the_host_says_the_same(tmp_path: Path, backend: CudaBackend) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(to_gguf(CASES["qwen3_moe"], make_weights(CASES["qwen3_moe"])))
    source = open_model([path])
    plain = open_device()
    want = greedy(load(source, plain), plain, TEXT, 2)
    assert greedy(with_experts_on_host(source, backend, n_layers=1), backend, TEXT, 2) == want


def test_a_request_that_fails_fails_its_step_and_not_the_next(backend: CudaBackend) -> None:
    mlps = mlps_on_host(backend, "Q8_0", ROUTINGS["renormalised"])
    x = backend.tensor(np.ones((2, WIDTH), np.float32))
    scores = backend.tensor(np.ones((2, N_EXPERTS), np.float32))
    backend.experts(x, scores, mlps)
    backend.step_check()()
    host = backend.host_experts
    layer = host.layers[id(mlps)]
    host.layers[id(mlps)] = layer._replace(number=7)
    backend.experts(x, scores, mlps)
    failed = backend.step_check()
    host.layers[id(mlps)] = layer
    backend.experts(x, scores, mlps)
    computed = backend.step_check()
    with pytest.raises(OffloadError, match=r"a layer was asked for that is not there\. The request was given up"):
        failed()
    computed()


def planned(source: OpenedModel, backend: CudaBackend, asked: str) -> Placement:
    return plan_of(source, backend, EngineConfig(cpu_experts=asked, kv_bytes=1 << 20))


def test_plans_say_where_experts_are(tmp_path: Path, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model([], write_hf(tmp_path, CASES["qwen3_moe"], make_weights(CASES["qwen3_moe"])))
    n_free = [1 << 30]
    monkeypatch.setattr(memory, "free_and_total", lambda device: (n_free[0], 1 << 30))
    monkeypatch.setattr(CudaBackend, "kv_budget", lambda self, share: n_free[0])
    everything = planned(source, backend, "auto")
    assert everything.host_bytes == 0
    halved = planned(source, backend, "1")
    (last, *others) = expert_layers(halved.sizes)
    assert all(halved.homes[name] == HOST for name in last)
    assert all(halved.homes[name] == halved.default_home for layer in others for name in layer)
    assert halved.resident_bytes + halved.host_bytes >= everything.resident_bytes
    assert 0 < halved.host_step_bytes < halved.host_bytes
    assert "in host memory of which a step of one token reads" in summary(halved)
    assert any("host, resident" in line for line in placement_table(halved))
    n_free[0] = everything.resident_bytes + (1 << 20) - 1
    assert planned(source, backend, "auto").homes == halved.homes
    assert planned(source, backend, "all").host_bytes > halved.host_bytes
    n_free[0] = (1 << 20) + 100
    with pytest.raises(LoadError, match="Without its experts the model takes"):
        planned(source, backend, "auto")


def test_options_that_move_the_same_weights_are_refused(tmp_path: Path, backend: CudaBackend) -> None:
    with pytest.raises(ConfigError, match="cpu_experts and gpu_budget are both set"):
        refuse_beside_experts(EngineConfig(cpu_experts="all", gpu_budget="1g"))

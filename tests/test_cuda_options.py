"""What can be asked of a GPU, checked without one: how much of its memory, and replies that never depend on others."""

import json

import pytest

import backends_here
from tahr.backends import open_backend
from tahr.backends.api import KVShape, Memory
from tahr.backends.cuda import presence as cuda_presence
from tahr.backends.host_memory import host_memory
from tahr.cli.main import main
from tahr.config import EngineConfig
from tahr.engine.capacity import kv_budget, kv_groups, measure
from tahr.errors import ConfigError

GB = 1 << 30
CARD = Memory(60 * GB, 80 * GB, own=True)  # 20 GB of weights are there already


@pytest.mark.parametrize(
    ("share", "memory", "wanted_gb"),
    [
        (None, CARD, 60 - 8 - 4),  # a tenth is spared, and 4 GB are for steps
        (0.9, CARD, 60 - 8 - 4),
        (0.5, CARD, 60 - 40 - 4),
        (1.0, CARD, 60 - 4),
        (0.2, CARD, 0),  # the weights alone take more
        (0.9, Memory(6 * GB, 8 * GB, own=True), 6 - 0.8 - 1),  # a small card: an eighth is for steps
        (None, Memory(60 * GB, 80 * GB), 15),  # a host: a quarter of what is free
    ],
)
def test_how_much_a_pool_may_take(share: float | None, memory: Memory, wanted_gb: float) -> None:
    config = EngineConfig(gpu_memory_utilization=share)
    assert kv_budget(config, memory) == pytest.approx(wanted_gb * GB, abs=2)
    assert kv_budget(EngineConfig(kv_bytes=77, gpu_memory_utilization=share), memory) == 77, "what is said wins"


def test_a_host_has_no_share_to_set() -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization is for a GPU"):
        kv_budget(EngineConfig(gpu_memory_utilization=0.5), Memory(60 * GB, 80 * GB))


def test_the_pages_of_a_card_come_from_its_memory() -> None:
    groups = kv_groups([KVShape(8, 128)] * 32, [0] * 32, 32, "bf16")
    config = EngineConfig(max_batch_size=256)
    assert groups[0].page_bytes == 4 << 20
    assert measure(config, groups, 40960, CARD).n_pages == (48 * 256,)
    with pytest.raises(ConfigError, match="needs 5369 MB of KV memory, but only 0 MB"):
        measure(EngineConfig(gpu_memory_utilization=0.2, context_size=40960), groups, 40960, CARD)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization is .* above 0 and at most 1"):
        EngineConfig(gpu_memory_utilization=share)


def test_the_host_has_memory() -> None:
    memory = host_memory()
    assert 1 << 20 < memory.free_bytes <= memory.total_bytes and not memory.own


@pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")
@pytest.mark.skipif(cuda_presence.interprets(), reason="Triton's interpreter computes in the host's memory")
def test_a_card_counts_its_own_memory() -> None:
    import torch

    be = backends_here.backend("cuda")
    before = be.memory()
    assert before.own and 0 < before.free_bytes <= before.total_bytes
    much = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert be.memory().free_bytes == pytest.approx(before.free_bytes - GB, abs=64 << 20)
    del much
    assert be.memory().free_bytes == pytest.approx(before.free_bytes, abs=64 << 20), "kept by torch, but free"


@pytest.mark.parametrize("verb", ["run", "serve"])
def test_both_can_be_said_on_the_command_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    if verb == "serve":
        pytest.importorskip("msgspec")
    assert main([verb, "--deterministic", "--gpu-memory-utilization", "0.5", "--effective-config-json"]) == 0
    said = {row["key"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)}
    assert said["engine.deterministic"] == (True, "cli")
    assert said["engine.gpu_memory_utilization"] == (0.5, "cli")


@pytest.mark.parametrize("name", backends_here.NAMES)
def test_who_asks_for_a_deterministic_backend_gets_one(name: str) -> None:
    assert backends_here.backend(name, deterministic=True).deterministic
    assert open_backend(name).deterministic == (name != "cuda")

"""What can be asked of a GPU, checked without one: how much of its memory, and replies that never depend on others."""

import json
from dataclasses import replace
from typing import Any

import pytest

import backends_here
from tahr.backends import open_backend
from tahr.backends.api import KVShape, StateShape, StepDefaults
from tahr.backends.cuda.layouts import presence as cuda_presence
from tahr.backends.host import budget as memory_budget
from tahr.backends.host.budget import device_kv_budget
from tahr.backends.reference.backend import ReferenceBackend
from tahr.cli.main import main
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.loading.capacity import kv_budget, kv_groups, measure, state_bytes, with_step_defaults

GB = 1 << 30
CARD = 60 * GB, 80 * GB  # free and in all: 20 GB of weights are there already


@pytest.mark.parametrize(
    ("share", "memory", "wanted_gb"),
    [
        (None, CARD, 60 - 8 - 4),  # a tenth is spared, and 4 GB are for steps
        (0.9, CARD, 60 - 8 - 4),
        (0.5, CARD, 60 - 40 - 4),
        (1.0, CARD, 60 - 4),
        (0.2, CARD, 0),  # the weights alone take more
        (0.9, (6 * GB, 8 * GB), 6 - 0.8 - 1),  # a small card: an eighth is for steps
    ],
)
def test_how_much_of_a_card_may_be_taken(share: float | None, memory: tuple[int, int], wanted_gb: float) -> None:
    assert device_kv_budget(*memory, share) == pytest.approx(wanted_gb * GB, abs=2)


def test_a_host_gives_a_quarter_and_has_no_share_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "host_free_bytes", lambda: 60 * GB)
    be = ReferenceBackend()
    assert kv_budget(EngineConfig(), be) == 15 * GB
    assert kv_budget(EngineConfig(kv_bytes=77), be) == 77, "what is said wins"
    for kv_bytes in (None, 77):
        with pytest.raises(ConfigError, match="gpu_memory_utilization is for a GPU"):
            kv_budget(EngineConfig(gpu_memory_utilization=0.5, kv_bytes=kv_bytes), be)


def test_the_pages_of_a_card_come_from_its_memory() -> None:
    groups = kv_groups([KVShape(8, 128)] * 32, [0] * 32, 32, "bf16")
    assert groups[0].page_bytes == 4 << 20
    assert measure(EngineConfig(max_batch_size=256), groups, 40960, device_kv_budget(*CARD, None)).n_pages == (
        48 * 256,
    )
    with pytest.raises(ConfigError, match="needs 5369 MB of KV memory, but only 0 MB"):
        measure(EngineConfig(context_size=40960), groups, 40960, device_kv_budget(*CARD, 0.2))


def test_states_are_counted_before_pages() -> None:
    groups = kv_groups([KVShape(8, 128), StateShape((4, 1024))], [0, 0], 32, "bf16")
    assert [group.layers for group in groups] == [(0,)]
    config, slot_bytes = (
        EngineConfig(max_batch_size=3, prefix_cache=False),
        state_bytes([KVShape(8, 128), StateShape((4, 1024))]),
    )
    assert slot_bytes == 4 * 4 * 1024
    capacity = measure(config, groups, 40960, 4 * slot_bytes + 5 * groups[0].page_bytes, slot_bytes)
    assert (capacity.n_slots, capacity.n_pages, capacity.kv_bytes) == (
        4,
        (5,),
        4 * slot_bytes + 5 * groups[0].page_bytes,
    )
    with pytest.raises(ConfigError, match="lower max_batch_size"):
        measure(config, groups, 40960, 4 * slot_bytes - 1, slot_bytes)


@pytest.mark.parametrize(
    ("options", "n"),
    [({}, 5), ({"cache_max_bytes": 3 << 20}, 3), ({"cache_max_bytes": 1}, 0), ({"prefix_cache": False}, 0)],
)
def test_checkpoints_take_an_eighth_of_what_is_left(options: dict[str, Any], n: int) -> None:
    groups = kv_groups([KVShape(8, 128)], [0], 32, "bf16")
    capacity = measure(EngineConfig(max_batch_size=3, **options), groups, 40960, 44 << 20, 1 << 20)
    assert (capacity.n_checkpoints, capacity.n_slots) == (n, 4 + n) and capacity.kv_bytes <= 44 << 20


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization is .* above 0 and at most 1"):
        EngineConfig(gpu_memory_utilization=share)


@pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")
@pytest.mark.skipif(cuda_presence.interprets(), reason="Triton's interpreter computes in the host's memory")
def test_a_card_counts_its_own_memory() -> None:
    import torch

    be = backends_here.backend("cuda")
    assert be.has_own_memory
    before = be.kv_budget(1.0)
    assert before > 4 * GB
    much = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert be.kv_budget(1.0) == pytest.approx(before - GB, abs=64 << 20)
    del much
    assert be.kv_budget(1.0) == pytest.approx(before, abs=64 << 20), "kept by torch, but free"


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


def test_steps_are_as_large_as_suits_the_backend() -> None:
    backend = ReferenceBackend()
    ours = with_step_defaults(EngineConfig(), backend)
    assert (ours.max_batch_size, ours.max_prefill_batch, ours.prefill_chunk_size) == (16, 8, 512)
    backend.step_defaults = StepDefaults(256, 128, 4096, 8192)
    there = with_step_defaults(EngineConfig(), backend)
    assert (there.max_batch_size, there.prefill_chunk_size, there.max_prefill_tokens) == (256, 4096, 8192)
    requested = with_step_defaults(EngineConfig(max_batch_size=4, prefill_chunk_size=64), backend)
    assert (requested.max_batch_size, requested.prefill_chunk_size, requested.max_prefill_tokens) == (4, 64, 64)
    # The states of sequences take a quarter of the memory at most, unless the batch was asked for.
    config, state = EngineConfig(kv_bytes=40 << 20), 1 << 20
    assert with_step_defaults(config, backend, state).max_batch_size == 9
    assert with_step_defaults(replace(config, max_batch_size=20), backend, state).max_batch_size == 20

"""Steps whose weights could not be read, and those after them."""

import os
from pathlib import Path

import numpy as np
import pytest

from tahr.backends import open_backend
from tahr.backends.cpu.backend import CpuBackend
from tahr.errors import OffloadEof, OffloadError
from tahr.models.loader.load import load
from tahr.offload.homes import SlotArena
from test_paging import all_paged, as_gguf, load_paged, logits, sized


def test_a_failure_of_two_arenas_fails_one_step(tmp_path: Path) -> None:
    source = as_gguf(tmp_path, "qwen3_moe")
    backend = open_backend("cpu", 2)
    want = logits(load(source, backend), backend)
    plan = all_paged(sized(source, backend))
    assert [arena.by_usage for arena in plan.arenas] == [False, True]
    loaded = load_paged(source, backend, plan)
    path = tmp_path / "model.gguf"
    whole = path.read_bytes()
    for _ in range(2):
        os.truncate(path, len(whole) // 2)  # the embedding, which is mapped, stays
        with pytest.raises(OffloadEof, match="ends before"):
            logits(loaded, backend)
        path.write_bytes(whole)
        np.testing.assert_array_equal(logits(loaded, backend), want)


def test_slots_that_do_not_hold_a_matrix_fail_at_once(tmp_path: Path) -> None:
    source = as_gguf(tmp_path, "llama")
    backend = open_backend("cpu", 2)
    assert isinstance(backend, CpuBackend)
    plan = all_paged(sized(source, backend))
    narrow = [SlotArena(arena.slot_bytes, 1, by_usage=arena.by_usage) for arena in plan.arenas]
    loaded = load_paged(source, backend, plan._replace(arenas=narrow))
    with pytest.raises(OffloadError, match=r"reads \d+ slots .* memory for 1\. .* raise the ram_budget"):
        logits(loaded, backend)

"""The stack of adapters of an `InferenceEngine`: pushed, popped, applied, taken back; sessions and snapshots follow."""

from pathlib import Path

import numpy as np
import pytest

import assets
from lora_files import peft_tensors, write_peft
from tahr import InferenceConfig, InferenceEngine
from tahr.errors import AdapterError, ConfigError, SnapshotIncompatible, TahrError

TOKENS = [1, 9, 38, 27, 300, 5]


@pytest.fixture(scope="module")
def base() -> InferenceEngine:
    engine = InferenceEngine(InferenceConfig(model_path=str(assets.stories()), num_threads=2, context_size=64))
    engine.load_model()
    return engine


@pytest.fixture(scope="module")
def folders(base: InferenceEngine, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    linears = base._model.engine.executor.decoder.linears
    root = tmp_path_factory.mktemp("adapters")
    return [write_peft(root / f"a{i}", peft_tensors(linears, 4, seed=i, strength=0.3), r=4) for i in range(5)]


def logits(engine: InferenceEngine) -> np.ndarray:
    engine.truncate(0)
    return engine.forward_prefill(TOKENS, 0).copy()


def test_push_pop_clear(base: InferenceEngine, folders: list[Path]) -> None:
    before = logits(base)
    assert base.pop_lora() is None and base.lora_stack() == []
    base.push_lora(folders[0])
    base.push_lora(str(folders[1]), 0.5)
    assert base.lora_stack() == [(folders[0], 1.0), (str(folders[1]), 0.5)]
    assert base.pop_lora() == (str(folders[1]), 0.5)
    base.clear_loras()
    base.apply_lora_stack()  # an empty stack does nothing
    np.testing.assert_array_equal(logits(base), before)


def test_two_adapters_sum_and_leave_no_trace(base: InferenceEngine, folders: list[Path]) -> None:
    before = logits(base)
    base.apply_lora_adapters(folders[0])
    one = logits(base)
    base.push_lora(folders[0])
    base.push_lora(folders[1], 0.5)
    base.apply_lora_stack()
    both = logits(base)
    base.push_lora(folders[0], -1.0)
    base.push_lora(folders[1], -0.5)
    base.apply_lora_stack()
    np.testing.assert_allclose(logits(base), before, rtol=0, atol=1e-3)
    assert np.abs(one - before).max() > 0.1 < np.abs(both - one).max()
    base.unapply_all_loras()
    assert base.lora_stack() == []
    np.testing.assert_array_equal(logits(base), before)
    assert base._model.engine.adapters.loaded() == []


def test_the_text_in_memory_follows(base: InferenceEngine, folders: list[Path]) -> None:
    """Applied in the middle of a text, an adapter gives what it gives from the start; copies are not mixed up."""
    logits(base)
    plain = base.forward_one(7).copy()
    copy = base.kv_snapshot()
    assert copy is not None
    base.truncate(len(TOKENS))
    base.apply_lora_adapters(folders[2])
    assert base.kv_cache_seq_len() == len(TOKENS)
    adapted = base.forward_one(7).copy()
    logits(base)
    np.testing.assert_array_equal(base.forward_one(7), adapted)
    with pytest.raises(ConfigError, match="other adapters"):
        base.kv_restore(copy)
    base.unapply_all_loras()
    base.kv_restore(copy)
    base.truncate(len(TOKENS))
    np.testing.assert_array_equal(base.forward_one(7), plain)


def test_snapshots_know_their_adapters(base: InferenceEngine, folders: list[Path]) -> None:
    base.push_lora(folders[3], 0.5)
    base.apply_lora_stack()
    logits(base)
    data = base.snapshot()
    wanted = base.forward_one(7).copy()
    base.unapply_all_loras()
    assert InferenceEngine.snapshot_info(data).adapter
    for loras in ([], [(folders[3], 1.0)], [(folders[2], 0.5)]):
        with pytest.raises(SnapshotIncompatible, match="other adapters"):
            InferenceEngine.resume(data, loras=loras)
    resumed = InferenceEngine.resume(data, loras=[(folders[3], 0.5)])
    np.testing.assert_array_equal(resumed.forward_one(7), wanted)


def test_what_was_read_is_not_read_again(
    base: InferenceEngine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A, B, A: each is read once."""
    adapters = base._model.engine.adapters
    n_read: list[str] = []
    prepare = adapters.prepare
    monkeypatch.setattr(adapters, "prepare", lambda path: (n_read.append(str(path)), prepare(path))[1])
    first, second = (base.load_lora(folder) for folder in folders[:2])
    found = []
    for lora in (first, second, first):
        base.apply_lora_adapters(lora)
        found.append(logits(base))
    assert n_read == [str(folder) for folder in folders[:2]]
    np.testing.assert_array_equal(found[0], found[2])
    assert np.abs(found[0] - found[1]).max() > 0.1
    base.push_lora(first, 0.5)
    base.push_lora(folders[1], 0.25)
    base.apply_lora_stack()
    assert base.pop_lora() == (folders[1], 0.25) and base.pop_lora() == (first, 0.5)
    base.unapply_all_loras()


def test_an_adapter_is_for_the_engine_that_read_it(base: InferenceEngine, folders: list[Path]) -> None:
    other = InferenceEngine(base.config)
    other.load_model()
    with pytest.raises(AdapterError, match="another engine"):
        other.apply_lora_adapters(base.load_lora(folders[0]))


def test_what_cannot_be_applied_changes_nothing(base: InferenceEngine, folders: list[Path], tmp_path: Path) -> None:
    before = logits(base)
    unloaded = InferenceEngine(InferenceConfig(model_path="nowhere.gguf"))
    unloaded.push_lora(folders[0])
    unloaded.unapply_all_loras()
    with pytest.raises(TahrError, match="load"):
        unloaded.apply_lora_stack()
    with pytest.raises(AdapterError, match="no adapter at"):
        base.push_lora(tmp_path / "nowhere")
    for load in (base.load_lora, base.apply_lora_adapters):
        with pytest.raises(AdapterError):
            load(tmp_path / "nowhere")
    for wrong in ([folders[0], tmp_path], list(folders)):
        for folder in wrong:
            base.push_lora(folder)
        with pytest.raises(TahrError):
            base.apply_lora_stack()
        base.clear_loras()
        np.testing.assert_array_equal(logits(base), before)
    with pytest.raises(ConfigError, match="path"):
        base.push_lora(7)  # type: ignore[arg-type]
    for scale in (float("nan"), 1e9, "x", None):
        with pytest.raises(ConfigError, match=r"scale .* must be"):
            base.push_lora(folders[0], scale)  # type: ignore[arg-type]
    assert base.lora_stack() == []
    base.unapply_all_loras()
    assert base._model.engine.adapters.loaded() == []

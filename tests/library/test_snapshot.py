"""Snapshots: resumed elsewhere they go on identically; damaged, foreign or lying ones are refused."""

import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tahr import InferenceConfig, InferenceEngine, SamplingParams, hub
from tahr.errors import LoadError, ModelFingerprintMismatch, ModelNotFound, SnapshotIncompatible
from tahr.library.inference.snapshot import (
    MAGIC,
    START,
    VERSION,
)
from tahr.loading.fingerprint import PROBE_BYTES, fingerprint_of_bytes, fingerprint_of_files

STORY = "Once upon a time there was a small dog who liked to play with a big red ball in the park."
ROOT = Path(__file__).resolve().parents[2]


def load(path: Path, **settings: Any) -> InferenceEngine:
    engine = InferenceEngine(InferenceConfig(str(path), num_threads=2, **settings))
    engine.load_model()
    return engine


@pytest.fixture(scope="module")
def engine(stories: Path) -> InferenceEngine:
    engine = load(stories, sampler=SamplingParams(temperature=0.5, stop=("The end",), logit_bias={3: 1.5}))
    engine.prefill(engine.tokenize(STORY))
    return engine


@pytest.fixture(scope="module")
def data(engine: InferenceEngine) -> bytes:
    return engine.snapshot()


# ---- going on ---------------------------------------------------------------------------------------------------


def next_logits(engine: InferenceEngine) -> np.ndarray:
    """The logits of three more tokens, after which everything is as before."""
    n = engine.kv_cache_seq_len()
    rows = np.array([engine.forward_one(token) for token in (7, 8, 9)])
    engine.truncate(n)
    return rows


RESUME = """
import sys, numpy as np
from pathlib import Path
from tahr import InferenceEngine
engine = InferenceEngine.resume(Path(sys.argv[1]).read_bytes())
np.save(sys.argv[2], np.array([engine.forward_one(token) for token in (7, 8, 9)]))
"""


def test_another_process_goes_on_identically(engine: InferenceEngine, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(data)
    command = [sys.executable, "-c", RESUME, str(tmp_path / "snapshot"), str(tmp_path / "logits.npy")]
    subprocess.run(command, cwd=ROOT, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), next_logits(engine))


def test_everything_comes_back(engine: InferenceEngine, data: bytes) -> None:
    resumed = InferenceEngine.resume(data)
    assert resumed.config.sampler == engine.config.sampler
    assert resumed.context_size == engine.context_size
    assert resumed.kv_cache_seq_len() == len(engine.tokenize(STORY))
    assert InferenceEngine.snapshot_info(resumed.snapshot()).tokens == InferenceEngine.snapshot_info(data).tokens
    np.testing.assert_array_equal(next_logits(resumed), next_logits(engine))


def test_a_copied_file_is_the_same_model(data: bytes, engine: InferenceEngine, stories: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy.gguf"
    copied.write_bytes(stories.read_bytes())  # another name and another time
    resumed = InferenceEngine.resume(data, str(copied))
    np.testing.assert_array_equal(next_logits(resumed), next_logits(engine))


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_another_backend_can_go_on(stories: Path, kv_dtype: str) -> None:
    engine = load(stories, kv_dtype=kv_dtype, backend="cpu")
    engine.prefill(engine.tokenize(STORY))
    oracle = load(stories, kv_dtype=kv_dtype, backend="cpu")
    oracle.config = replace(oracle.config, backend="reference", num_threads=None)
    oracle.prefill(oracle.tokenize(STORY))
    resumed = InferenceEngine.resume(oracle.snapshot())
    assert resumed._model.engine.executor.backend.name == "reference"
    np.testing.assert_allclose(next_logits(resumed), next_logits(engine), atol=2e-2)


def test_an_empty_session(stories: Path) -> None:
    resumed = InferenceEngine.resume(load(stories).snapshot())
    assert resumed.kv_cache_seq_len() == 0
    assert resumed.generate("Once upon a time", 4) == ", there was a"


def test_a_model_from_bytes_resumes_from_its_file(stories: Path) -> None:
    engine = InferenceEngine(InferenceConfig())
    engine.load_model_from_bytes(stories.read_bytes())
    engine.prefill([5, 6, 7])
    np.testing.assert_array_equal(
        next_logits(InferenceEngine.resume(engine.snapshot(), str(stories))), next_logits(engine)
    )


def test_size_follows_the_text(stories: Path) -> None:
    engine = load(stories)
    sizes = []
    for _ in range(3):
        engine.prefill([5] * 40)
        sizes.append(len(engine.snapshot()))
    per_token = 5 * 2 * 4 * 8 * 2  # layers, keys and values, heads, numbers, bytes
    assert sizes[2] - sizes[1] == pytest.approx(40 * per_token, rel=0.05)


# ---- what it says of itself -------------------------------------------------------------------------------------


def test_info_needs_no_model(engine: InferenceEngine, data: bytes, stories: Path) -> None:
    info = InferenceEngine.snapshot_info(data)
    assert info.arch == "llama"
    assert list(info.tokens) == engine.tokenize(STORY)
    assert info.fingerprint == fingerprint_of_files([stories])
    assert info.config == engine.config
    assert data[:8] == MAGIC == b"TAHRSNAP"


def test_fingerprints_are_of_content_only(stories: Path, tmp_path: Path) -> None:
    original = fingerprint_of_files([stories])
    copied = Path(shutil.copy(stories, tmp_path / "other-name.gguf"))
    assert fingerprint_of_files([copied]) == original == fingerprint_of_bytes(stories.read_bytes())
    content = bytearray(stories.read_bytes())
    content[-1] ^= 1
    copied.write_bytes(content)
    assert fingerprint_of_files([copied]) != original
    copied.write_bytes(stories.read_bytes() + b"\0")
    assert fingerprint_of_files([copied]) != original


def test_a_large_file_is_probed_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROBE_BYTES == 8 << 20
    monkeypatch.setattr("tahr.loading.fingerprint.PROBE_BYTES", 1000)
    file, n = tmp_path / "large", 3000
    seen = set()
    for changed in (None, 0, n // 2, n - 1):
        content = bytearray(n)
        if changed is not None:
            content[changed] = 1
        file.write_bytes(content)
        assert fingerprint_of_files([file]) == fingerprint_of_bytes(bytes(content))
        seen.add(fingerprint_of_files([file]))
    assert len(seen) == 3  # of the middle of so small a file nothing is read


def test_a_model_with_other_layers_between_the_same_ends_is_another(tmp_path: Path) -> None:
    """As one with an adapter merged into it: embedding and head are the same, and so is the size."""
    base, merged = tmp_path / "base.gguf", tmp_path / "merged.gguf"
    head = (np.arange(1 << 23) % 251).astype(np.uint8).tobytes()
    for file, layer in ((base, b"\1"), (merged, b"\2")):
        file.write_bytes(head + bytes(6 << 20) + layer * (4 << 20) + bytes(6 << 20) + head)
    assert fingerprint_of_files([base]) != fingerprint_of_files([merged])
    assert fingerprint_of_files([merged]) == fingerprint_of_bytes(merged.read_bytes())


# ---- refusals ---------------------------------------------------------------------------------------------------


def test_other_weights_are_refused(data: bytes, stories: Path, tmp_path: Path) -> None:
    changed = bytearray(stories.read_bytes())
    changed[-5] ^= 1
    (tmp_path / "changed.gguf").write_bytes(changed)
    with pytest.raises(ModelFingerprintMismatch, match="other weights"):
        InferenceEngine.resume(data, str(tmp_path / "changed.gguf"))
    assert issubclass(ModelFingerprintMismatch, LoadError)
    assert ModelFingerprintMismatch.exit_code == LoadError.exit_code


def test_damage_anywhere_is_noticed(data: bytes) -> None:
    rng = np.random.default_rng(0)
    for at in [*range(40), *rng.integers(40, len(data), 60).tolist(), len(data) - 1]:
        broken = bytearray(data)
        broken[at] ^= 0x41
        with pytest.raises(SnapshotIncompatible):
            InferenceEngine.resume(bytes(broken))


def test_truncation_anywhere_is_noticed(data: bytes) -> None:
    for n in [*range(60), *range(60, len(data), 997), len(data) - 1]:
        with pytest.raises(SnapshotIncompatible):
            InferenceEngine.snapshot_info(data[:n])
    with pytest.raises(SnapshotIncompatible):
        InferenceEngine.snapshot_info(data + b"\0")


@pytest.mark.parametrize("foreign", [b"", b"GGUF" + bytes(100), b"OXISNAP1" + bytes(100), "TAHRSNAP", None])
def test_what_is_no_snapshot_is_refused(foreign: Any) -> None:
    with pytest.raises(SnapshotIncompatible, match="not a snapshot"):
        InferenceEngine.resume(foreign)


def sealed(start: bytes, rest: bytes) -> bytes:
    """With a checksum that is right, as a forger would make it."""
    return start + rest + hashlib.sha256(start + rest).digest()


def test_another_version_is_refused(data: bytes) -> None:
    later = START.pack(MAGIC, VERSION + 1, struct.unpack_from("<I", data, 12)[0])
    with pytest.raises(SnapshotIncompatible, match=f"version {VERSION + 1}"):
        InferenceEngine.resume(sealed(later, data[START.size : -32]))


def change(header: dict[str, Any], name: str, value: Any) -> None:
    header[name] = value


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "more tokens": lambda h: h["tokens"].append(5),
    "a token that is none": lambda h: change(h, "tokens", [*h["tokens"][:-1], "x"]),
    "huge layers": lambda h: change(h, "kv_shapes", [[len(h["tokens"]), 4, 1 << 50]] * 5),
    "flat layers": lambda h: change(h, "kv_shapes", [[1 << 20]] * 5),
    "no layers": lambda h: change(h, "kv_shapes", []),
    "fewer layers": lambda h: h["kv_shapes"].pop(),
    "a negative size": lambda h: change(h, "kv_shapes", [[len(h["tokens"]), 4, -16]] * 5),
    "no sampler": lambda h: h["config"].pop("sampler"),
    "an unknown setting": lambda h: change(h["config"], "speed", 11),
    "a setting out of range": lambda h: change(h["config"], "num_threads", -1),
    "an unknown field": lambda h: change(h, "extra", 1),
    "no tokens field": lambda h: h.pop("tokens"),
    "no config": lambda h: change(h, "config", None),
    "a path that is none": lambda h: change(h["config"], "model_path", 5),
    "a path no disk has": lambda h: change(h["config"], "model_path", "a/" + "x" * 3000),
    "a tokenizer that is a list": lambda h: change(h["config"], "tokenizer_path", ["x"]),
    "a tokenizer no disk has": lambda h: change(h["config"], "tokenizer_path", "x" * 3000),
    "a backend that is a list": lambda h: change(h["config"], "backend", [1]),
    "an origin that is an object": lambda h: change(h["config"], "origin", {"a": 1}),
    "an odd context": lambda h: change(h, "context_size", 1.5),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_refused(data: bytes, lie: str) -> None:
    n = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[START.size : START.size + n])
    LIES[lie](header)
    packed = json.dumps(header).encode()
    forged = sealed(START.pack(MAGIC, VERSION, len(packed)) + packed, data[START.size + n : -32])
    with pytest.raises(SnapshotIncompatible):
        InferenceEngine.resume(forged)


def test_keys_of_another_shape_are_refused(data: bytes) -> None:
    """The right number of bytes, shared out differently."""
    n = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[START.size : START.size + n])
    header["kv_shapes"] = [[t, heads // 2, 2 * size] for t, heads, size in header["kv_shapes"]]
    packed = json.dumps(header).encode()
    with pytest.raises(SnapshotIncompatible, match="do not fit the model"):
        InferenceEngine.resume(sealed(START.pack(MAGIC, VERSION, len(packed)) + packed, data[START.size + n : -32]))


# ---- where the model comes from ---------------------------------------------------------------------------------


def test_a_file_that_is_gone_is_fetched_again(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Path(shutil.copy(stories, tmp_path / "first.gguf"))
    again = Path(shutil.copy(stories, tmp_path / "again.gguf"))
    engine = load(first, origin="someone/stories")
    engine.prefill([5, 6, 7])
    data, expected = engine.snapshot(), next_logits(engine)
    first.unlink()
    resolve, requested = hub.resolve, list[str]()

    def fetch(text: str, **options: Any) -> hub.ModelFiles:
        if text == "someone/stories":
            requested.append(text)
            return resolve(str(again))
        return resolve(text, **options)

    with pytest.raises(ModelNotFound, match=r"'someone/stories' is not on this machine.*download=True"):
        InferenceEngine.resume(data)
    monkeypatch.setattr(hub, "resolve", fetch)
    np.testing.assert_array_equal(next_logits(InferenceEngine.resume(data, download=True)), expected)
    assert requested == ["someone/stories"]

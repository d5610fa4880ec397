"""Files of an earlier Tahr (commit 4e5eff2 wrote those in `fixtures/snapshots`), and files that strangers made up."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tahr import LLM, InferenceConfig, InferenceEngine, SpeculativeEngine
from tahr.cli.chat.prefix_files import PrefixFiles
from tahr.errors import SnapshotIncompatible, TahrError
from tahr.library.inference import snapshot
from tahr.library.inference.session import KvCopy
from tahr.library.inference.snapshot import MAGIC, START, VERSION, pack, read_info, unpack
from tahr.library.speculative.speculative_snapshot import join, split
from tahr.loading.fingerprint import fingerprint_of_files

FILES = Path(__file__).parents[1] / "fixtures" / "snapshots"
WRITTEN = ("session", "mixed", "states", "prefix", "speculative")


def written(name: str) -> bytes:
    return (FILES / f"{name}.snapshot").read_bytes()


def session_of(name: str) -> bytes:
    """The snapshot of a session, which that of two models has within."""
    return split(written(name))[1] if name == "speculative" else written(name)


@pytest.fixture
def same_stories(stories: Path) -> Path:
    if fingerprint_of_files([stories]) != read_info(written("session")).fingerprint:
        pytest.skip("the snapshots are of the released story model, which is not here")
    return stories


# ---- of an earlier version ----------------------------------------------------------------------------------------


def content_of(data: bytes) -> tuple[tuple[Any, ...], Any, bytes]:
    """The start of a snapshot, its header and the rest but the digest; the names of a header may come in any order."""
    start = START.unpack_from(data)
    begins = START.size + start[-1]
    return start, json.loads(data[START.size : begins]), data[begins:-32]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_content_of_a_snapshot_has_not_changed(name: str) -> None:
    assert content_of(pack(*unpack(session_of(name)))) == content_of(session_of(name))
    if name == "speculative":
        assert join(*split(written(name))) == written(name)


@pytest.mark.parametrize("name", ["session", "mixed"])
def test_an_earlier_session_goes_on(name: str, same_stories: Path) -> None:
    resumed = InferenceEngine.resume(written(name), str(same_stories))
    tokens = list(read_info(written(name)).tokens)
    kept = resumed.kv_snapshot()
    fresh = InferenceEngine(resumed.config)
    fresh.load_model()
    fresh.prefill(tokens)
    computed = fresh.kv_snapshot()
    assert kept and computed and kept.tokens == computed.tokens
    for mine, theirs in zip(kept.layers, unpack(written(name))[1].layers, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(resumed.forward_one(7), fresh.forward_one(7), atol=1e-3)


def test_an_earlier_text_of_two_models_goes_on(same_stories: Path) -> None:
    path = str(same_stories)
    resumed = SpeculativeEngine.resume(written("speculative"), path, path)
    fresh = SpeculativeEngine(resumed.config, path, resumed.num_speculative)
    began = fresh.generate("Once upon a time", 4)
    assert fresh.tokens == resumed.tokens and began
    assert resumed.continue_text(8) == fresh.continue_text(8)


def test_an_earlier_prefix_file_is_found_in_the_cache(same_stories: Path) -> None:
    llm = LLM(str(same_stories), context_size=64, page_size=8, n_threads=1)
    files = PrefixFiles(llm, lambda: "weights")
    assert files.restore(written("prefix")) == 8
    assert files.copy(read_info(written("prefix")).tokens)[-40:-32] == written("prefix")[-40:-32]


# ---- of strangers -------------------------------------------------------------------------------------------------


def forged(data: bytes, lie: Callable[[dict[str, Any]], Any], rows: bytes | None = None) -> bytes:
    """A snapshot with another header, and a checksum that is right."""
    n = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[START.size : START.size + n])
    lie(header)
    packed = json.dumps(header).encode()
    content = START.pack(MAGIC, VERSION, len(packed)) + packed
    content += data[START.size + n : -32] if rows is None else rows
    return content + hashlib.sha256(content).digest()


def of_no_tokens(shape: list[int]) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update(tokens=[], kv_shapes=[shape] * 5)


# Sizes that add up, and what they say of the rows.
LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], bytes | None]] = {
    "a state of half a number": (lambda h: h.update(kv_shapes=[], state_bytes=[5]), bytes(5)),
    "a side of nothing beside one beyond all": (lambda h: h.update(kv_shapes=[[len(h["tokens"]), 10**30, 0]]), b""),
    "a side that no array has": (lambda h: h.update(kv_shapes=[[len(h["tokens"]), 1 << 62, 0]]), b""),
    "layers of no tokens that no array has": (of_no_tokens([0, 1 << 62, 1 << 62]), b""),
    "sides of no tokens beyond a layer's": (of_no_tokens([0, 1 << 30, 1 << 30]), b""),
    "a token beyond all": (lambda h: h["tokens"].__setitem__(0, 1 << 40), None),
}


@pytest.mark.parametrize("lie", LIES)
def test_sizes_that_add_up_and_make_no_sense_are_refused(lie: str, stories: Path) -> None:
    data = forged(written("session"), *LIES[lie])
    with pytest.raises(SnapshotIncompatible, match="makes no sense"):
        unpack(data)
    files = PrefixFiles(LLM(str(stories), context_size=64, n_threads=1), lambda: "weights")
    with pytest.raises(SnapshotIncompatible):
        files.restore(forged(written("prefix"), *LIES[lie]))


def test_a_header_is_no_longer_than_its_rows_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_HEADER_BYTES", 2000)
    stops = {"stop": ["x" * 3000]}
    long = forged(written("session"), lambda header: header["config"]["sampler"].update(stops))
    with pytest.raises(SnapshotIncompatible, match="at most 2400 are read"):
        read_info(long)
    monkeypatch.setattr(snapshot, "MAX_HEADER_BYTES", 5000)
    info, rows = unpack(long)
    monkeypatch.setattr(snapshot, "MAX_HEADER_BYTES", 2000)
    with pytest.raises(SnapshotIncompatible, match="shorten"):
        pack(info, rows)  # nothing is written that could not be read


def test_a_prompt_longer_than_its_text_is_refused(same_stories: Path) -> None:
    text, inner = split(written("speculative"))
    header = json.dumps({"n_tokens": 2, "n_prompt": 1 << 30, "draft_path": "", "draft_fingerprint": ""})
    assert text.n_prompt < 1 << 30
    content = struct.pack("<8sII", b"TAHRSPEC", 1, len(header)) + header.encode() + inner
    with pytest.raises(TahrError, match="longer than the text"):
        SpeculativeEngine.resume(content + hashlib.sha256(content).digest(), str(same_stories), str(same_stories))


# ---- memory of copies ---------------------------------------------------------------------------------------------


def test_a_store_keeps_no_more_memory_than_it_counts(stories: Path) -> None:
    """The beginning of a long copy is not all of it."""
    from tahr import PrefixStore

    engine = InferenceEngine(InferenceConfig(str(stories), num_threads=1, context_size=256))
    engine.load_model()
    engine.prefill(list(range(3, 203)))
    store = PrefixStore(max_bytes=1 << 20)
    engine.store_kv_in_prefix_cache(list(range(3, 8)), store)
    found = store.lookup(list(range(3, 9)))
    assert found
    copy = found[0]
    assert isinstance(copy, KvCopy) and len(copy.tokens) == 5
    held = {id(layer if layer.base is None else layer.base): layer for layer in copy.layers}
    assert sum((layer if layer.base is None else layer.base).nbytes for layer in held.values()) == store.n_bytes

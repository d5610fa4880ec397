"""GGUF files: what was written is what is read, and every wrong field is refused in a sentence."""

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_cases import F32_ROWS, GOOD, TENSORS, VALUES, WRONG, tensor
from gguf_maker import CODES, Gguf, Stored, Typed
from tahr.errors import ConfigError, CorruptFile, LoadError, ModelNotFound, QuantError, TahrError
from tahr.weights import GGUFFile, open_gguf, open_safetensors, verify


def plain(value: Any) -> Any:
    """Metadata with arrays as lists, whatever their depth."""
    return [plain(item) for item in value] if hasattr(value, "tolist") else value


def same(first: GGUFFile, second: GGUFFile) -> bool:
    if list(first.tensors) != list(second.tensors):
        return False
    pairs = zip(first.tensors.values(), second.tensors.values(), strict=True)
    return all(a.shape == b.shape and a.format is b.format and np.array_equal(a.data, b.data) for a, b in pairs)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_was_written_is_read(version: int) -> None:
    opened = open_gguf(replace(GOOD, version=version).to_bytes())
    assert {key: plain(value) for key, value in opened.metadata.items()} == {k: v.value for k, v in VALUES.items()}
    assert opened.metadata["a.yes"] is True and opened.metadata["a.bools"] == [True, False]
    assert opened.version == version and opened.paths == ()
    assert np.array_equal(opened.tensors["dense"].dense(), F32_ROWS)
    assert opened.tensors["scalar"].dense() == np.float32(1.5) and opened.tensors["scalar"].shape == ()
    assert opened.tensors["packed"].dense().tolist() == [[0.5] * 32, [1.0] * 32]


def test_from_memory_equals_from_a_path(tmp_path: Path) -> None:
    content = GOOD.to_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    from_path = open_gguf(path)
    assert from_path.paths == (path,) and from_path.n_bytes == len(content)
    for source in (content, bytearray(content), memoryview(content)):
        assert same(open_gguf(source), from_path)


def test_tensors_are_views_and_can_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    big = np.random.default_rng(0).normal(size=(64, 1024)).astype("<f4")
    path.write_bytes(Gguf(tensors=[Stored("w", (1024, 64), 0, big.tobytes())]).to_bytes())
    tensor = open_gguf(path).tensors["w"]
    assert not tensor.data.flags.owndata and not tensor.data.flags.writeable
    tensor.forget()
    assert np.array_equal(tensor.dense(), big)
    in_memory = open_gguf(path.read_bytes()).tensors["w"]
    in_memory.forget()
    assert np.array_equal(in_memory.dense(), big)


def test_forgetting_gives_memory_back(tmp_path: Path) -> None:
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        pytest.skip("this system does not say how much of a file is mapped in")
    path = tmp_path / "m.gguf"
    path.write_bytes(Gguf(tensors=[Stored("w", (1 << 23,), 0, bytes(1 << 25))]).to_bytes())
    tensor = open_gguf(path).tensors["w"]

    def resident() -> int:
        return int(rollup.read_text().split("Rss:")[1].split()[0]) * 1024

    tensor.data.sum()
    before = resident()
    tensor.forget()
    assert before - resident() > 24 << 20


def test_broken_utf8_survives() -> None:
    stored = b"\xff\xfe ok \xc3"
    opened = open_gguf(Gguf({"t": Typed("str", stored), "ts": Typed("[str]", [stored, b"a"])}).to_bytes())
    assert opened.metadata["t"].encode("utf-8", "surrogateescape") == stored
    assert opened.metadata["ts"][0].encode("utf-8", "surrogateescape") == stored


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize(
    "strings",
    [
        [],
        [b""],
        [b"", b"", b""],
        [b"a", b"\xc4\xa0b", b"\xf0\x9f", b"\x9f\x98"],  # halves of a character stay halves
        [b"\xf0\x9f", b"", b"\x98\x80"],
        [b"with \0 inside", b"a", b"\0"],
        [b"x" * 255, b"y"],
        [b"x" * 256, b"y"],  # a length of more than a byte
        [b"y", b"z" * 70_000, b""],
    ],
)
def test_arrays_of_strings(strings: list[bytes], version: int) -> None:
    metadata = {"before": Typed("u8", 7), "ts": Typed("[str]", strings), "after": Typed("u8", 9)}
    found = open_gguf(Gguf(metadata, version=version).to_bytes()).metadata
    assert [text.encode("utf-8", "surrogateescape") for text in found["ts"]] == strings
    assert found["before"] == 7 and found["after"] == 9
    assert len(open_gguf(Gguf({"ts": metadata["ts"]}, version=version).to_bytes()).metadata["ts"]) == len(strings)


def test_files_of_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package writes this test's file")
    path = tmp_path / "m.gguf"
    rng = np.random.default_rng(3)
    dense, packed = rng.normal(size=(6, 10)).astype(np.float32), rng.normal(size=(5, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    writer.add_tensor("dense", dense)
    quantised = gguf.quants.quantize(packed, gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("packed", quantised, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = open_gguf(path)
    assert opened.metadata["general.architecture"] == "llama" and opened.metadata["general.alignment"] == 64
    assert list(opened.metadata["tokenizer.ggml.tokens"]) == ["a", "b", "ü"]
    assert opened.metadata["tokenizer.ggml.scores"] == [0.5, -1.0]
    assert np.array_equal(opened.tensors["dense"].dense(), dense)
    want = gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType.Q5_1)
    assert np.array_equal(opened.tensors["packed"].dense(), want)


@pytest.mark.serial
def test_large_vocabularies_open_fast() -> None:
    tokens = [f"token{i}" for i in range(100_000)]
    content = Gguf({"tokens": Typed("[str]", tokens), "scores": Typed("[f32]", [0.5] * 100_000)}).to_bytes()
    took = []
    for _ in range(5):
        start = time.perf_counter()
        opened = open_gguf(content)
        took.append(time.perf_counter() - start)
    assert opened.metadata["tokens"] == tokens
    assert min(took) < 0.3  # some 0.03 s on an idle core; the rest is for machines that are not idle


@pytest.mark.parametrize("what", WRONG)
def test_each_wrong_field_is_refused(what: str) -> None:
    file, sentence = WRONG[what]
    content = file if isinstance(file, bytes) else file.to_bytes()
    with pytest.raises(CorruptFile, match="The model in memory") as error:
        open_gguf(content)
    assert sentence in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize("kind", [4, 5, 31, 36, 43, 1000, 2**32 - 1])
def test_unknown_types_are_named(kind: int) -> None:
    with pytest.raises(QuantError, match=rf"'dense'.*ggml type {kind}.*Q4_K"):
        open_gguf(tensor(ggml_id=kind).to_bytes())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_truncation_is_refused(version: int) -> None:
    content = replace(GOOD, version=version).to_bytes()
    for n_bytes in range(len(content)):
        with pytest.raises(CorruptFile):
            open_gguf(content[:n_bytes])


def test_files_that_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(CorruptFile, match="empty"):
        open_gguf(tmp_path / "empty.gguf")
    with pytest.raises(ModelNotFound, match="no file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(LoadError, match="not a regular file"):
        open_gguf(tmp_path)
    with pytest.raises(TahrError):
        open_gguf(b"")


def split(folder: Path, **changes: Any) -> list[Path]:
    """GOOD as a set of three files, the first with metadata only, as the usual splitter can write it."""
    paths = []
    for number, tensors in enumerate([(), TENSORS[:2], TENSORS[2:]]):
        keys = {"split.no": number, "split.count": 3, "split.tensors.count": 3} | changes
        marks = {key: Typed("u16", value) for key, value in keys.items()}
        paths.append(folder / f"m-{number + 1:05}-of-00003.gguf")
        paths[-1].write_bytes(Gguf((VALUES if number == 0 else {}) | marks, tensors).to_bytes())
    return paths


def test_any_part_opens_the_whole_set(tmp_path: Path) -> None:
    paths = split(tmp_path)
    whole = open_gguf(GOOD.to_bytes())
    for path in paths:
        opened = open_gguf(path)
        assert same(opened, whole) and opened.metadata["a.text"] == VALUES["a.text"].value
        assert opened.paths == tuple(paths) and opened.n_bytes == sum(part.stat().st_size for part in paths)


def test_sets_that_are_not_whole(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(ModelNotFound, match=r"1 of the 3 parts.*m-00002-of-00003\.gguf"):
        open_gguf(paths[2])
    with pytest.raises(CorruptFile, match="not named like NAME-00001-of-00003"):
        open_gguf(tmp_path / "elsewhere.gguf")
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(CorruptFile, match="not part 2 of 3"):
        open_gguf(paths[0])
    with pytest.raises(LoadError, match="one part of a split set"):
        open_gguf(paths[0].read_bytes())


def test_sets_that_do_not_add_up(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="3 tensors instead of 4"):
        open_gguf(split(tmp_path, **{"split.tensors.count": 4})[0])
    paths = split(tmp_path)
    marks = {"split.no": Typed("u16", 2), "split.count": Typed("u16", 3)}
    paths[2].write_bytes(Gguf(marks, TENSORS[1:]).to_bytes())
    with pytest.raises(CorruptFile, match="repeats tensor 'scalar'"):
        open_gguf(paths[0])


def test_verify_says_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GOOD.to_bytes())
    digest = hashlib.sha256(GOOD.to_bytes()).hexdigest()
    found = verify(path, expected_sha256=digest.upper())
    assert (found.kind, found.n_tensors, found.n_values, found.n_metadata) == ("GGUF 3", 3, 77, len(VALUES))
    assert found.formats == {"F32": 1, "F16": 1, "Q8_0": 1} and found.sha256 == {path: digest}
    assert verify(path).sha256 == {}
    with pytest.raises(CorruptFile, match="instead of 00"):
        verify(path, expected_sha256="00" * 32)
    with pytest.raises(ConfigError, match="3 files"):
        verify(split(tmp_path)[0], expected_sha256=digest)


def test_stories_hold_the_same_in_both_formats(stories: Path) -> None:
    from_gguf, from_safetensors = open_gguf(stories), open_safetensors(stories.parent / "hf")
    pairs = {"token_embd": "embed_tokens", "output_norm": "norm", "blk.0.attn_v": "layers.0.self_attn.v_proj"}
    pairs |= {"blk.4.ffn_down": "layers.4.mlp.down_proj", "blk.2.ffn_norm": "layers.2.post_attention_layernorm"}
    for ours, theirs in pairs.items():
        first = from_gguf.tensors[f"{ours}.weight"].dense()
        assert np.array_equal(first, from_safetensors.tensors[f"model.{theirs}.weight"].dense())


def test_every_value_type_is_tried() -> None:
    assert {item.kind for item in VALUES.values()} >= {*CODES, "str"}

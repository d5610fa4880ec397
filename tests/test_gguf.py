"""GGUF files: what was written is what is read, and every wrong field is refused in a sentence."""

import hashlib
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_maker import CODES, Gguf, Stored, Typed
from tahr.errors import ConfigError, CorruptFile, LoadError, ModelNotFound, QuantError, TahrError
from tahr.weights import GGUFFile, open_gguf, open_safetensors, verify

VALUES = {
    "a.u8": Typed("u8", 255),
    "a.i8": Typed("i8", -128),
    "a.u16": Typed("u16", 65535),
    "a.i16": Typed("i16", -5),
    "a.u32": Typed("u32", 2**32 - 1),
    "a.i32": Typed("i32", -7),
    "a.f32": Typed("f32", 0.5),
    "a.yes": Typed("bool", 1),
    "a.no": Typed("bool", 0),
    "a.text": Typed("str", "grüße\n🦌"),
    "a.empty": Typed("str", ""),
    "a.u64": Typed("u64", 2**64 - 1),
    "a.i64": Typed("i64", -(2**63)),
    "a.f64": Typed("f64", 1e300),
    "a.numbers": Typed("[i32]", [1, -2, 3]),
    "a.bools": Typed("[bool]", [1, 0]),
    "a.texts": Typed("[str]", ["a", "", "longer"]),
    "a.nothing": Typed("[str]", []),
    "a.nested": Typed("[[str]]", [["x"], [], ["y", "z"]]),
    "a.deep": Typed("[[[u8]]]", [[[1], [2, 3]], []]),
}
F32_ROWS = np.arange(12, dtype="<f4").reshape(3, 4)
TENSORS = (
    Stored("dense", (4, 3), 0, F32_ROWS.tobytes()),
    Stored("scalar", (), 1, np.array([1.5], "<f2").tobytes()),
    Stored("packed", (32, 2), 8, b"".join(struct.pack("<e32b", 0.5, *[i] * 32) for i in (1, 2))),
)
GOOD = Gguf(VALUES, TENSORS)


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


# One thing wrong at a time: (what, the file, a piece of the sentence).
def tensor(**changes: Any) -> Gguf:
    return replace(GOOD, tensors=[replace(TENSORS[0], **changes)])


def metadata(key: str, raw: bytes) -> bytes:
    return Gguf(n_metadata=1).head() + Gguf().string(key) + raw


HUGE = 1 << 60
WRONG = {
    "magic": (replace(GOOD, magic=b"GGML"), "not a GGUF file"),
    "version 0": (replace(GOOD, version=0), "version 0"),
    "version 4": (replace(GOOD, version=4), "version 4"),
    "big-endian": (replace(GOOD, version=3 << 24), "big-endian"),
    "tensor count": (replace(GOOD, n_tensors=HUGE), f"{HUGE} tensors"),
    "tensor count off by one": (replace(GOOD, n_tensors=4), "at byte"),
    "metadata count": (replace(GOOD, n_metadata=HUGE), f"{HUGE} metadata values"),
    "metadata count too small": (replace(GOOD, n_metadata=3), "at byte"),
    "key length": (Gguf(n_metadata=1).head() + struct.pack("<Q", HUGE) + b"abcdefgh", "metadata key"),
    "key too long": (Gguf({"k" * 70_000: Typed("u8", 1)}), "longer than 65535"),
    "key twice": (Gguf(n_metadata=2).head() + 2 * (Gguf().string("k") + struct.pack("<IB", 0, 1)), "second time"),
    "value type": (metadata("k", struct.pack("<IQ", 13, 0)), "unknown type 13"),
    "bool": (metadata("k", struct.pack("<IB", 7, 2)), "neither true nor false"),
    "bools": (Gguf({"k": Typed("[bool]", [0, 1, 9])}), "neither true nor false"),
    "string length": (metadata("k", struct.pack("<IQ", 8, HUGE)), "'k' needs"),
    "array type": (metadata("k", struct.pack("<IIQ", 9, 99, 1)), "unknown type 99"),
    "number count": (metadata("k", struct.pack("<IIQ", 9, 10, HUGE)), f"{HUGE} items"),
    "string count": (metadata("k", struct.pack("<IIQ", 9, 8, HUGE)), f"{HUGE} items"),
    "array count": (metadata("k", struct.pack("<IIQ", 9, 9, HUGE)), f"{HUGE} items"),
    "nested too many": (Gguf({"k": Typed("[[u8]]", [[]] * 5_000)}), "more than 4096"),
    "nested too many in all": (Gguf({"k": Typed("[[[u8]]]", [[[]] * 100] * 50)}), "more than 4096"),
    "metadata too many": (Gguf({str(i): Typed("u8", 0) for i in range(70_000)}), "more than 65536"),
    "length in array": (metadata("k", struct.pack("<IIQQQ", 9, 8, 2, 2**64 - 1, 0)), "past the end"),
    "last length in array": (metadata("k", struct.pack("<IIQQ", 9, 8, 1, 1)), "past the end"),
    "string array cut": (metadata("k", struct.pack("<IIQQ", 9, 8, 2, 6) + b"abcdefwxyz"), "past the end"),
    "nested too deep": (Gguf({"k": Typed("[[[[[u8]]]]]", [[[[[1]]]]])}), "deep"),
    "alignment 0": (Gguf({"general.alignment": Typed("u32", 0)}), "power of two"),
    "alignment 24": (Gguf({"general.alignment": Typed("u32", 24)}), "power of two"),
    "alignment text": (Gguf({"general.alignment": Typed("str", "32")}), "power of two"),
    "alignment true": (Gguf({"general.alignment": Typed("bool", 1)}), "power of two"),
    "five dimensions": (tensor(dims=(4, 3, 1, 1, 1)), "5 dimensions"),
    "dimension 0": (tensor(dims=(4, 0)), "positive multiple"),
    "dimensions overflow": (tensor(dims=(2**32, 2**32, 2**32)), "ends at byte"),
    "dimensions wrap to little": (tensor(dims=(2**63, 2)), "ends at byte"),
    "row not in blocks": (replace(GOOD, tensors=[replace(TENSORS[2], dims=(48, 2))]), "multiple of 32"),
    "offset unaligned": (tensor(offset=4), "not a multiple of 32"),
    "offset outside": (tensor(offset=1 << 40), "ends at byte"),
    "offset wraps": (tensor(offset=2**64 - 32), "ends at byte"),
    "name twice": (replace(GOOD, tensors=[TENSORS[0], TENSORS[0]]), "second time"),
    "overlap": (replace(GOOD, tensors=[TENSORS[0], replace(TENSORS[2], offset=32)]), "inside tensor 'dense'"),
    "split.count": (Gguf({"split.count": Typed("str", "2")}), "whole number"),
}


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

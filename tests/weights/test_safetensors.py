"""Safetensors: one file or shards, the same tensors; every wrong header is refused in a sentence."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_maker import safetensors, with_header
from safetensors_cases import TENSORS, VALUES
from tahr.errors import CorruptFile, ModelNotFound, QuantError
from tahr.hub import resolve
from tahr.weights import open_safetensors, verify
from tahr.weights.limits import MODEL
from tahr.weights.safetensors import DTYPES


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def write_shards(folder: Path, index: dict[str, Any] | None = None) -> Path:
    """TENSORS in two shards."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    home = {name: names[name in "bdf"] for name in TENSORS}
    for shard in names:
        part = {name: TENSORS[name] for name in TENSORS if home[name] == shard}
        write(folder / shard, safetensors(part, {"format": "pt"}))
    index = index or {"metadata": {"total_size": 1}, "weight_map": home}
    return write(folder / "model.safetensors.index.json", json.dumps(index).encode())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", safetensors(TENSORS, {"format": "pt"}))
    for target in (path, tmp_path):
        opened = open_safetensors(target)
        assert opened.metadata == {"format": "pt"} and opened.paths == (path,)
        assert opened.n_bytes == path.stat().st_size
        for name in "abc":
            assert np.array_equal(opened.tensors[name].dense(), VALUES)
        assert opened.tensors["d"].dense().tolist() == [5.0, -5.0]
        assert opened.tensors["e"].dense() == 7.5 and opened.tensors["f"].dense().shape == (0, 4)
        assert not opened.tensors["a"].data.flags.owndata


def test_shards_equal_the_single_file(tmp_path: Path) -> None:
    single = open_safetensors(write(tmp_path / "single.safetensors", safetensors(TENSORS)))
    index = write_shards(tmp_path)
    for target in (tmp_path, index):
        opened = open_safetensors(target)
        assert opened.tensors.keys() == single.tensors.keys() and len(opened.paths) == 2
        for name, tensor in single.tensors.items():
            assert np.array_equal(opened.tensors[name].data, tensor.data)
            assert opened.tensors[name].shape == tensor.shape
    assert opened.metadata == {"format": "pt"}
    assert verify(tmp_path).n_tensors == len(TENSORS) and verify(index).kind == "safetensors"


def test_a_whole_file_counts_more_than_an_index_beside_it(tmp_path: Path) -> None:
    """As in transformers; what the hub names as the model's files is what is read."""
    write_shards(tmp_path)
    write(tmp_path / "model.safetensors", safetensors({"other": TENSORS["a"]}))
    write(tmp_path / "config.json", b"{}")
    opened = open_safetensors(tmp_path)
    assert opened.paths == resolve(str(tmp_path)).weights and opened.tensors.keys() == {"other"}


def test_tensors_that_the_index_does_not_list_count(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    content = json.loads(index.read_text())
    left_out = next(iter(content["weight_map"]))
    del content["weight_map"][left_out]
    index.write_text(json.dumps(content))
    assert left_out in open_safetensors(tmp_path).tensors


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_listed(tmp_path: Path, dtype: str) -> None:
    n_bytes = 8 if "64" in dtype else 4 if "32" in dtype else 2 if "16" in dtype else 1
    path = write(tmp_path / "m.safetensors", safetensors({"t": (dtype, (3,), bytes(3 * n_bytes))}))
    tensor = open_safetensors(path).tensors["t"]
    assert tensor.format.name == dtype and tensor.dense().shape == (3,)


def test_missing_shards_and_models(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="has neither"):
        open_safetensors(tmp_path)
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="missing: model-00002-of-00002"):
        open_safetensors(tmp_path)
    with pytest.raises(ModelNotFound, match="no file"):
        open_safetensors(tmp_path / "absent.safetensors")


WRONG_INDEXES = {
    "climbs": {"weight_map": {"a": "../model.safetensors"}},
    "absolute": {"weight_map": {"a": "/etc/model.safetensors"}},
    "backslash": {"weight_map": {"a": "..\\model.safetensors"}},
    "other file": {"weight_map": {"a": "config.json"}},
    "not a name": {"weight_map": {"a": 7}},
    "NUL": {"weight_map": {"a": "a\0.safetensors"}},
    "no map": {"metadata": {}},
    "empty map": {"weight_map": {}},
    "map is a list": {"weight_map": ["a"]},
    "tensor elsewhere": {"weight_map": {"a": "model-00002-of-00002.safetensors"}},
}


@pytest.mark.parametrize("what", WRONG_INDEXES)
def test_wrong_indexes_are_refused(tmp_path: Path, what: str) -> None:
    write_shards(tmp_path, WRONG_INDEXES[what])
    with pytest.raises(CorruptFile, match="index"):
        open_safetensors(tmp_path)


def entry(**changes: Any) -> Any:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


DATA = bytes(8)
WRONG = {
    "no header": (b"\x00" * 7, "does not fit"),
    "header size": (struct.pack("<Q", 1 << 63) + b"{}", "does not fit"),
    "header empty": (struct.pack("<Q", 0), "does not parse"),
    "not JSON": (with_header(b"{'t': 1}", DATA), "does not parse"),
    "not UTF-8": (with_header(b'{"\xff": 1}', DATA), "does not parse"),
    "too deep": (with_header(b'{"t":' + b"[" * 200_000, DATA), "does not parse"),
    "key twice": (with_header(b'{"t": 1, "t": 2}', DATA), "twice"),
    "NaN": (with_header(b'{"t": NaN}', DATA), "NaN"),
    "a list": (with_header([], DATA), "no object"),
    "entry is no object": (with_header({"t": 5}, DATA), "has no dtype"),
    "field missing": (with_header({"t": {"dtype": "F32", "shape": [2]}}, DATA), "has no dtype"),
    "shape negative": (with_header(entry(shape=[-2]), DATA), "whole numbers"),
    "shape of floats": (with_header(entry(shape=[2.0]), DATA), "whole numbers"),
    "shape of bools": (with_header(entry(shape=[True, 2]), DATA), "whole numbers"),
    "shape is a number": (with_header(entry(shape=2), DATA), "whole numbers"),
    "shape too deep": (with_header(entry(shape=[1] * 9 + [2]), DATA), "whole numbers"),
    "shape overflows": (with_header(entry(shape=[1 << 32, 1 << 32]), DATA), "whole numbers"),
    "shape hides a zero": (with_header(entry(shape=[0, 1 << 63], data_offsets=[0, 0]), b""), "whole numbers"),
    "shape too large": (with_header(entry(shape=[3]), DATA), "do not fit"),
    "offsets swapped": (with_header(entry(data_offsets=[8, 0]), DATA), "do not fit"),
    "offsets outside": (with_header(entry(data_offsets=[8, 16]), DATA), "do not fit"),
    "three offsets": (with_header(entry(data_offsets=[0, 4, 8]), DATA), "whole numbers"),
    "overlap": (with_header({**entry(), "u": entry()["t"]}, DATA), "is next"),
    "gap": (with_header(entry(data_offsets=[4, 12]), bytes(12)), "is next"),
    "bytes left over": (with_header(entry(), bytes(9)), "belong to no tensor"),
    "metadata is no object": (with_header({"__metadata__": 3}, b""), "__metadata__"),
    "metadata of numbers": (with_header({"__metadata__": {"a": 3}}, b""), "__metadata__"),
}


@pytest.mark.parametrize("what", WRONG)
def test_each_wrong_header_is_refused(tmp_path: Path, what: str) -> None:
    content, sentence = WRONG[what]
    path = write(tmp_path / "m.safetensors", content)
    with pytest.raises(CorruptFile, match="/m") as error:
        open_safetensors(path)
    assert sentence in str(error.value) and str(error.value).endswith(".")


def test_oversized_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MODEL.n_json_bytes + 1))
        file.truncate(MODEL.n_json_bytes + 100)  # a hole: takes no space
    with pytest.raises(CorruptFile, match="is the most"):
        open_safetensors(path)


@pytest.mark.parametrize("dtype", ["F4", "f32", 3, None, ["F32"]])
def test_unknown_dtypes_are_named(tmp_path: Path, dtype: Any) -> None:
    path = write(tmp_path / "m.safetensors", with_header(entry(dtype=dtype), DATA))
    with pytest.raises(QuantError, match=r"'t'.*dtype.*BF16"):
        open_safetensors(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = safetensors(TENSORS)
    for n_bytes in range(len(content)):
        with pytest.raises(CorruptFile):
            open_safetensors(write(tmp_path / "m.safetensors", content[:n_bytes]))

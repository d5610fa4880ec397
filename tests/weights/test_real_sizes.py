"""Files of the sizes that models are released in, as sparse files that take no space: whatever fits a disk opens."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from gguf_maker import Gguf, Stored, Typed, with_header
from tahr import InferenceConfig
from tahr.errors import CorruptFile
from tahr.kv.codec import TextRows
from tahr.library.inference.snapshot import SnapshotInfo, pack, unpack
from tahr.weights import open_gguf, open_safetensors, verify

GiB = 1 << 30
STARTS = [GiB - 2, GiB, 4 * GiB - 2, 4 * GiB, 100 * GiB, 1 << 40]  # where in a file's data a tensor begins
VALUES = np.array([1.5, -2.0, 0.25, 8.0], "<f4")


def sparse(path: Path, head: bytes, at: int, data: bytes) -> Path:
    """A file that begins with `head` and holds `data` at byte `at`; all else is a hole."""
    try:
        with path.open("wb") as file:
            file.write(head)
            file.seek(at)
            file.write(data)
    except OSError as error:  # a disk without sparse files, or with a smaller limit
        pytest.skip(f"this disk holds no file of {at} bytes ({error.strerror})")
    return path


def safetensors_entry(dtype: str, n_values: int, start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": [n_values], "data_offsets": [start, end]}


@pytest.mark.parametrize("start", STARTS)
def test_a_safetensors_tensor_may_begin_anywhere(tmp_path: Path, start: int) -> None:
    header = {
        "first": safetensors_entry("U8", start, 0, start),
        "last": safetensors_entry("F32", 4, start, start + VALUES.nbytes),
    }
    head = with_header(header, b"")
    opened = open_safetensors(sparse(tmp_path / "m.safetensors", head, len(head) + start, VALUES.tobytes()))
    assert opened.tensors["last"].dense().tolist() == VALUES.tolist()
    assert opened.tensors["first"].n_bytes == start and opened.n_bytes == len(head) + start + VALUES.nbytes
    assert verify(tmp_path / "m.safetensors").n_values == start + 4


@pytest.mark.parametrize("start", STARTS)
def test_a_gguf_tensor_may_begin_anywhere(tmp_path: Path, start: int) -> None:
    start = start // 32 * 32
    tensors = [Stored("first", [start // 2], 1, b"", 0), Stored("last", [4], 0, b"", start)]
    head = Gguf({}, tensors).to_bytes()
    opened = open_gguf(sparse(tmp_path / "m.gguf", head, len(head) + start, VALUES.tobytes()))
    assert opened.tensors["last"].dense().tolist() == VALUES.tolist()
    assert opened.tensors["first"].n_bytes == start


@pytest.mark.parametrize("offsets", [[0, 1 << 70], [1 << 70, (1 << 70) + 8], [-8, 0], [0, 8.0], [False, 8]])
def test_offsets_that_no_file_has_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    header = {"t": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_header(header, bytes(8)))
    with pytest.raises(CorruptFile, match="data_offsets"):
        open_safetensors(path)


@pytest.mark.full
def test_a_safetensors_header_of_many_megabytes(tmp_path: Path) -> None:
    """A mixture of 61 layers of 384 experts, unfused, in one file: 70,272 tensors."""
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
        for layer in range(61)
        for expert in range(384)
        for part in ("gate", "up", "down")
    ]
    step = 4096 * 1536 * 2
    header = {
        name: {"dtype": "BF16", "shape": [1536, 4096], "data_offsets": [i * step, (i + 1) * step]}
        for i, name in enumerate(names)
    }
    head = with_header(header, b"")
    assert len(head) > 8 << 20
    path = sparse(tmp_path / "m.safetensors", head, len(head) + len(names) * step - 1, b"\0")
    assert len(open_safetensors(path).tensors) == len(names)


@pytest.mark.full
def test_gguf_metadata_of_many_megabytes() -> None:
    """A vocabulary of 262,144 tokens with merges and scores, and a template of 1 MB."""
    tokens = [f"token {i}" for i in range(262_144)]
    metadata = {
        "tokenizer.ggml.tokens": Typed("[str]", tokens),
        "tokenizer.ggml.merges": Typed("[str]", [f"a {i}" for i in range(500_000)]),
        "tokenizer.ggml.token_type": Typed("[i32]", [1] * len(tokens)),
        "tokenizer.ggml.scores": Typed("[f32]", [0.0] * len(tokens)),
        "tokenizer.chat_template": Typed("str", "x" * (1 << 20)),
    }
    opened = open_gguf(Gguf(metadata).to_bytes())
    assert opened.metadata["tokenizer.ggml.tokens"][-1] == "token 262143"
    assert len(opened.metadata["tokenizer.ggml.merges"]) == 500_000
    assert len(opened.metadata["tokenizer.chat_template"]) == 1 << 20


@pytest.mark.full
def test_a_shard_index_of_many_megabytes(tmp_path: Path) -> None:
    """Every tensor of a large mixture is listed with the shard it is in."""
    names = [f"model.layers.{i // 1536}.mlp.experts.{i % 1536}.down_proj.weight" for i in range(50_000)]
    for shard in range(2):
        some = names[shard::2]
        header = {name: safetensors_entry("U8", 1, i, i + 1) for i, name in enumerate(some)}
        (tmp_path / f"model-0000{shard + 1}-of-00002.safetensors").write_bytes(with_header(header, bytes(len(some))))
    home = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(names)}
    index = {"metadata": {"total_size": len(names)}, "weight_map": home}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(open_safetensors(tmp_path).tensors) == len(names)


@pytest.mark.full
def test_a_snapshot_of_more_than_a_gibibyte() -> None:
    """A long text in a large model: 2 layers of more than 512 MiB each."""
    shape = (2, 1 << 5, (1 << 23) + 128)
    layers = [np.zeros(shape, np.uint8) for _ in range(2)]
    layers[1][-1, -1, -5:] = [1, 2, 3, 4, 5]
    info = SnapshotInfo("llama", "f" * 64, InferenceConfig("m"), (1, 2), 1 << 20, "f16", (shape, shape))
    data = pack(info, TextRows(tuple(layers)))
    assert len(data) > GiB
    read, found = unpack(data)
    assert read == info and found.layers[1][-1, -1, -6:].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.full
def test_a_snapshot_of_a_million_tokens() -> None:
    shape = (1 << 20, 1, 2)
    tokens = tuple(range(200_000, 200_000 + (1 << 20)))
    info = SnapshotInfo("llama", "f" * 64, InferenceConfig("m"), tokens, 1 << 20, "f16", (shape,))
    read, _ = unpack(pack(info, TextRows((np.zeros(shape, np.uint8),))))
    assert read.tokens == tokens


@pytest.mark.parametrize("kind", ["str", "u8", "i32", "bool"])
def test_a_vast_file_cannot_hold_vastly_many_items(tmp_path: Path, kind: str) -> None:
    """Before they were bounded, 40 seconds and 1.8 GB were not enough for 8 GiB of empty strings."""
    head = Gguf({"tokenizer.ggml.tokens": Typed(f"[{kind}]", [])}).to_bytes()
    at = head.index(b"tokens") + len(b"tokens") + 8
    head = head[:at] + (4 * GiB).to_bytes(8, "little")
    began = time.monotonic()
    with pytest.raises(CorruptFile, match="number of items of arrays"):
        open_gguf(sparse(tmp_path / "m.gguf", head, 64 * GiB, b"\0"))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("kind", ["str", "[str]"])
def test_a_vast_string_is_not_read(tmp_path: Path, kind: str) -> None:
    head = Gguf({"general.name": Typed(kind, "" if kind == "str" else [""])}).to_bytes()
    at = head.index(b"general.name") + len(b"general.name") + (4 if kind == "str" else 16)
    head = head[:at] + (32 * GiB).to_bytes(8, "little")
    began = time.monotonic()
    with pytest.raises(CorruptFile, match="bytes of text"):
        open_gguf(sparse(tmp_path / "m.gguf", head, 64 * GiB, b"\0"))
    assert time.monotonic() - began < 5


@pytest.mark.full
def test_the_largest_vocabulary_opens(tmp_path: Path) -> None:
    """262144 tokens with scores and types, and twice as many merges."""
    n = 1 << 18
    fields = {"tokens": Typed("[str]", [f"t{i}" for i in range(n)]), "scores": Typed("[f32]", [0.5] * n)}
    fields |= {"token_type": Typed("[i32]", [1] * n), "merges": Typed("[str]", [f"a{i} b{i}" for i in range(2 * n)])}
    opened = open_gguf(Gguf({f"tokenizer.ggml.{name}": value for name, value in fields.items()}).to_bytes())
    assert opened.metadata["tokenizer.ggml.tokens"][-1] == f"t{n - 1}"
    assert len(opened.metadata["tokenizer.ggml.merges"]) == 2 * n

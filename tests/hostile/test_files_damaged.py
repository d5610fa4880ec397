"""Damaged and made-up files: only errors of ours come out, and no small file makes us allocate much."""

import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_cases import GOOD, WRONG
from gguf_maker import safetensors, with_header
from safetensors_cases import TENSORS
from tahr.errors import TahrError
from tahr.weights import open_gguf, open_safetensors
from tahr.weights.metadata import MetadataArray
from tiers import examples

GGUF_BYTES = GOOD.to_bytes()
SAFETENSORS_BYTES = safetensors(TENSORS, {"format": "pt"})
EDGES = [0, 1, 0x7F, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1]

flips = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 7)), min_size=1, max_size=8)
pokes = st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from(EDGES), st.sampled_from("BIQ")), max_size=3)


def damaged(content: bytes, bits: list[tuple[int, int]], numbers: list[tuple[int, int, str]]) -> bytes:
    """The content with some bits flipped and some whole numbers overwritten."""
    out = bytearray(content)
    for at, bit in bits:
        out[at % len(out)] ^= 1 << bit
    for at, number, kind in numbers:
        size = struct.calcsize(kind)
        struct.pack_into("<" + kind, out, at % (len(out) - size), number & (1 << 8 * size) - 1)
    return bytes(out)


def use_gguf(content: bytes) -> None:
    """Open, and read all there is to read; errors of ours are fine."""
    try:
        opened = open_gguf(content)
        for value in opened.metadata.values():
            if isinstance(value, MetadataArray):
                value.tolist()
        for tensor in opened.tensors.values():
            assert tensor.dense().shape == tensor.shape
    except TahrError as error:
        assert str(error).endswith(".")


def use_safetensors(path: Path) -> None:
    try:
        for tensor in open_safetensors(path).tensors.values():
            assert tensor.dense().shape == tensor.shape
    except TahrError as error:
        assert str(error).endswith(".")


@settings(max_examples=examples(400), deadline=None)
@given(flips, pokes)
def test_damaged_gguf(bits: list[tuple[int, int]], numbers: list[tuple[int, int, str]]) -> None:
    use_gguf(damaged(GGUF_BYTES, bits, numbers))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300))
def test_made_up_gguf(content: bytes) -> None:
    use_gguf(content)
    for version in (1, 2, 3):
        use_gguf(b"GGUF" + struct.pack("<I", version) + content)


@settings(max_examples=examples(200), deadline=None)
@given(flips, pokes)
def test_damaged_safetensors(
    tmp_path_factory: pytest.TempPathFactory, bits: list[tuple[int, int]], numbers: list[tuple[int, int, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged(SAFETENSORS_BYTES, bits, numbers))
    use_safetensors(path)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(EDGES)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
sizes = st.lists(scalars | st.integers(0, 8), max_size=4)
entries = st.fixed_dictionaries(
    {}, optional={"dtype": st.sampled_from(["F32", "U8", "BOOL"]) | scalars, "shape": sizes, "data_offsets": sizes}
)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text(max_size=4), entries | values, max_size=4), st.binary(max_size=64))
def test_made_up_safetensors(tmp_path_factory: pytest.TempPathFactory, header: object, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "made_up.safetensors"
    path.write_bytes(with_header(header, data))
    use_safetensors(path)


def peak_bytes(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", WRONG)
def test_lies_cost_no_memory(what: str) -> None:
    file = WRONG[what][0]
    content = file if isinstance(file, bytes) else file.to_bytes()
    assert peak_bytes(lambda: use_gguf(content)) < 1 << 20


UNDER_A_LIMIT = """
import resource, struct, sys
from tahr.errors import TahrError
from tahr.weights import open_gguf
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
refused = 0
for kind in (0, 4, 8, 9, 12):
    for n_items in (1 << 28, 1 << 40, 1 << 60, (1 << 64) - 1):
        try:
            open_gguf(head + struct.pack("<IIQ", 9, kind, n_items) + bytes(4096))
        except TahrError:
            refused += 1
print(refused)
"""


def test_lies_are_refused_when_memory_is_short() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not say how much memory a process uses")
    ran = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "20", ran.stderr

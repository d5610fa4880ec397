"""Steps, samples and results as bytes, and what a process does that decodes them and sends them back.

It knows the executor's records and NumPy: whatever else a step needed would be missing there.
"""

import io
import struct
import sys
from collections.abc import Set
from typing import Any, BinaryIO

import numpy as np

from tahr.backends.sampling.sample_rows import LogitEdits, Logprobs, SampledTokens, SampleRows
from tahr.executor.protocol import StepRequest, StepResult
from tahr.kv.tables import PageCopy

RECORDS = {
    each.__name__: each for each in (LogitEdits, Logprobs, PageCopy, SampledTokens, SampleRows, StepRequest, StepResult)
}
# What records are made of: the interface of backends with the arrays and homes it names, and no backend.
OURS = (
    *("tahr.backends.api", "tahr.backends.host", "tahr.backends.sampling", "tahr.executor.protocol"),
    *("tahr.kv", "tahr.models.parts", "tahr.offload.homes", "tahr.weights"),
)
SAMPLE_FIELDS = tuple(SampleRows.__dataclass_fields__)


def fields_of(record: Any) -> list[Any]:
    return [getattr(record, name) for name in SAMPLE_FIELDS] if isinstance(record, SampleRows) else list(record)


def write(out: BinaryIO, value: Any) -> None:
    """A number, an array, a list, or a record of such things; anything else is no part of a step."""
    match value:
        case None:
            out.write(b"n")
        case bool() | int() | float():
            out.write(b"i" + struct.pack("<q", value))
        case np.ndarray():
            content = io.BytesIO()
            np.save(content, value, allow_pickle=False)
            out.write(b"a" + struct.pack("<q", content.tell()) + content.getvalue())
        case _ if type(value).__name__ in RECORDS:
            name = type(value).__name__.encode()
            out.write(b"r" + struct.pack("<q", len(name)) + name)
            write(out, fields_of(value))
        case list() | tuple():
            out.write(b"l" + struct.pack("<q", len(value)))
            for each in value:
                write(out, each)
        case _:
            raise TypeError(f"{type(value).__name__} is no part of a step")


def read(source: BinaryIO) -> Any:
    kind = source.read(1)
    if kind == b"n":
        return None
    (n,) = struct.unpack("<q", source.read(8))
    match kind:
        case b"i":
            return n
        case b"a":
            return np.load(io.BytesIO(source.read(n)), allow_pickle=False)
        case b"r":
            record = RECORDS[source.read(n).decode()]
            return record(*read(source))
        case _:
            return [read(source) for _ in range(n)]


def encoded(value: Any) -> bytes:
    out = io.BytesIO()
    write(out, value)
    return out.getvalue()


def is_stranger(name: str) -> bool:
    """Whether a module is neither Python's nor NumPy's, nor one of ours that the records of an executor are made of."""
    package = name.partition(".")[0]
    if package != "tahr":
        known = (*sys.stdlib_module_names, "__main__", "numpy", __name__)
        return package not in known and not package.startswith("_")
    return name.count(".") > 1 and not name.startswith(OURS)


def serve(of_machine: Set[str]) -> None:
    """Decode each message and send back what it says; end with the input."""
    strangers = [name for name in sys.modules.keys() - of_machine if is_stranger(name)]
    assert not strangers, f"the records of an executor import more than they need: {strangers}"
    while head := sys.stdin.buffer.read(8):
        value = read(io.BytesIO(sys.stdin.buffer.read(*struct.unpack("<q", head))))
        content = encoded(value)
        sys.stdout.buffer.write(struct.pack("<q", len(content)) + content)
        sys.stdout.buffer.flush()

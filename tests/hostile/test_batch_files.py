"""Files of requests that somebody else made, for `tahr batch`: lines of any size and form."""

import io
import json
import resource
import tracemalloc
from pathlib import Path

import pytest

from tahr.errors import ConfigError
from tahr.server.batches import lines
from tahr.server.batches.lines import LineError, custom_id_of, parse, read_lines
from tahr.server.batches.results import ResultFiles, open_results

GOOD = '"method": "POST", "url": "/v1/completions", "body": {}'
STREAM = GOOD.replace("{}", '{"stream": true}')
MOST = 1 << 16


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\x00" * 100, "invalid_line"),
        (b"\xff\xfe{}", "invalid_line"),
        (b'{"custom_id": "\xff", ' + GOOD.encode() + b"}", "invalid_line"),
        (b'{"custom_id": "a", "method": "\xff"}', "invalid_line"),
        (b'{"custom_id": "a", "\xff": 1}', "invalid_line"),
        (b"[]", "invalid_line"),
        (b"null", "invalid_line"),
        (b"{" * 20_000, "invalid_line"),
        (b'{"body": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", "invalid_line"),
        (f'{{"custom_id": "", {GOOD}}}'.encode(), "invalid_line"),
        (f'{{"custom_id": "{"x" * 513}", {GOOD}}}'.encode(), "invalid_line"),
        (f'{{"custom_id": 7, {GOOD}}}'.encode(), "invalid_line"),
        (f'{{"custom_id": "\\ud800", {GOOD}}}'.encode(), "invalid_line"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions"}', "invalid_line"),
        (f'{{"custom_id": "a", "model": "b", {GOOD}}}'.encode(), "invalid_line"),
        (b'{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "invalid_method"),
        (b'{"custom_id": "a", "method": "POST", "url": "/admin/loras", "body": {}}', "invalid_url"),
        (b'{"custom_id": "a", "method": "POST", "url": "http://10.0.0.1/", "body": {}}', "invalid_url"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions/../x", "body": {}}', "invalid_url"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"stream": true}}',
            "stream_unsupported",
        ),
        (None, "line_too_long"),
    ],
)
def test_lines_that_are_no_requests(line: bytes | None, code: str) -> None:
    with pytest.raises(LineError) as refused:
        parse(line, MOST)
    assert refused.value.code == code and len(str(refused.value)) < 1000
    name = custom_id_of(line)
    assert name is None or len(name) <= 512


class Endless(io.RawIOBase):
    """A line without an end, until so many bytes have been read."""

    def __init__(self, n_bytes: int):
        self.n_left = n_bytes

    def readable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = 0) -> int:
        return 0

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        n = min(len(into), self.n_left)
        into[:n] = b"x" * n
        self.n_left -= n
        return n


def test_a_line_of_any_length_takes_little_memory() -> None:
    class Reader(io.BufferedReader):
        def seek(self, at: int, whence: int = 0) -> int:
            return 0

    tracemalloc.start()
    try:
        (line,) = read_lines(Reader(Endless(200 << 20)), MOST)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert line.data is None and peak < 8 << 20


def test_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 10)
    assert len(list(read_lines(io.BytesIO(b"x\n" * 10), MOST))) == 10
    with pytest.raises(ConfigError, match="more than 10 lines: split it"):
        list(read_lines(io.BytesIO(b"\n" * 11), MOST))


@pytest.mark.parametrize("body", [b'{"prompt": "\xff"}', b'{"\xff": 1}', b'{"stream": "\xff"}'])
def test_bodies_that_are_not_utf8_are_left_to_their_routes(body: bytes) -> None:
    line = b'{"custom_id": "a", ' + GOOD.encode().replace(b"{}", body) + b"}"
    assert bytes(parse(line, MOST).body) == body


@pytest.mark.parametrize("line", [b'{"id": "\xff"}', b'{"id": {"a": 1}}', b"[" * 20_000, b"\xff\xfe"])
def test_results_that_no_batch_wrote(tmp_path: Path, line: bytes) -> None:
    out, errors, requests = (tmp_path / name for name in ("out", "errors", "in"))
    requests.write_text("{}")
    out.write_bytes(line + b"\n")
    with requests.open("rb") as file, pytest.raises(ConfigError, match="no batch of Tahr wrote"):
        ResultFiles(out, errors, file)
    assert out.read_bytes() == line + b"\n"


@pytest.mark.parametrize("number", [0, 1_000_001, 9_999_999])
def test_numbers_of_results_bound_the_memory(tmp_path: Path, number: int) -> None:
    out, errors, requests = (tmp_path / name for name in ("out", "errors", "in"))
    requests.write_text("{}")
    out.write_text(json.dumps({"id": f"batch_req_{number}_{'1' * 16}"}) + "\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with requests.open("rb") as file, pytest.raises(ConfigError, match="no batch of Tahr wrote"):
        ResultFiles(out, errors, file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_pipe_does_not_hold_up_the_start(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        open_results(tmp_path / "pipe")

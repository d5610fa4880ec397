"""Files of requests that somebody else made: lines of any size and form, and forms that bring them to a server."""

import asyncio
import io
import json
import os
import random
import resource
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.errors import ConfigError
from tahr.server.batches import lines
from tahr.server.batches.lines import LineError, custom_id_of, parse, read_lines
from tahr.server.batches.results import BatchFault, BatchResult, ResultFiles, open_results
from tahr.server.files.files import take
from tahr.server.http.errors import HttpError
from tahr.server.http.form_stream import FormStream
from tahr.server.kept.file_store import FileLimits, FileStore
from tahr.server.state.settings import Settings

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


def test_nothing_stands_behind_a_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other lines end in the moment in which the disk is full, and some of them would still fit."""
    out, errors, requests = (tmp_path / name for name in ("out", "errors", "in"))
    requests.write_text("{}")
    write = os.write
    result = BatchResult(f"batch_req_1_{'1' * 16}", "a", error=BatchFault("x", "y" * 100))
    with requests.open("rb") as file:
        files = ResultFiles(out, errors, file)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: write(fd, data[:20]) if len(data) > 150 else full_disk())
            with pytest.raises(OSError, match="No space"):
                files.write(result)
        with pytest.raises(OSError, match="No space"):
            files.write(result)
        files.close()
        assert errors.stat().st_size < 100
        again = ResultFiles(out, errors, file)
        assert again.n_done == 0 and errors.stat().st_size == 0
        again.write(result)
        assert again.n_bytes == (0, errors.stat().st_size) and again.n_errors == 1
        again.close()


def full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_pipe_does_not_hold_up_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        open_results(tmp_path / "pipe")


# ---- forms ------------------------------------------------------------------------------------------------------

KIND = "multipart/form-data; boundary=b"
HEAD = b'Content-Disposition: form-data; name="%b"'
PURPOSE = b"--b\r\n" + HEAD % b"purpose" + b"\r\n\r\nbatch\r\n"
CONTENT = b"a\r\n--\r\n--c"  # begins like a boundary, and is none
FILE = b"--b \t\r\n" + HEAD % b"file" + b'; filename="../../x.jsonl"\r\n\r\n' + CONTENT + b"\r\n"
FORM = b"before\r\n" + PURPOSE + FILE + b"--b--\r\nafter"


def read(body: bytes, *ends: int) -> tuple[FormStream, bytes]:
    """A form that comes in pieces, and the bytes of its file."""
    found: list[bytes] = []
    form = FormStream(KIND, "file", found.append)
    for begin, end in zip((0, *ends), (*ends, len(body)), strict=True):
        form.feed(body[begin:end])
    form.finish()
    return form, b"".join(found)


def test_a_form_is_the_same_however_it_comes() -> None:
    ways = [(), *((at,) for at in range(len(FORM))), tuple(range(1, len(FORM)))]
    for ends in ways:
        form, content = read(FORM, *ends)
        assert content == CONTENT and form.fields == {"purpose": "batch"}, ends
        assert form.filename == "../../x.jsonl"
    assert read(FORM.replace(CONTENT, b""))[1] == b""
    assert read(FORM.replace(b"\r\n" + CONTENT, b""))[1] == b"", "not even a line end"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cut off"),
        (FORM[:-12], "cut off"),
        (b"x" * 100_000, "cut off"),
        (b"--b\r\n" + b"x" * 9000, "8 KiB"),
        (b"--b\r\n\r\nx\r\n--b--", "damaged"),
        (b"--bx\r\n" + HEAD % b"file" + b"\r\n\r\n", "damaged"),
        (b"--b" + b" " * 300 + b"\r\n" + HEAD % b"purpose" + b"\r\n\r\nx\r\n--b--", "damaged"),
        (b"--b\r\nContent-Disposition: attachment\r\n\r\nx\r\n--b--", "no name"),
        (PURPOSE + PURPOSE + b"--b--", "purpose is there twice"),
        (FILE + FILE + b"--b--", "file is there twice"),
        (b"--b\r\n" + HEAD % b"file" + b"\r\n\r\nx\r\n--b--", "must be a file"),
        (b"--b\r\n" + HEAD % b"purpose" + b'; filename="x"\r\n\r\nx\r\n--b--', "must be a text"),
        (PURPOSE.replace(b"batch", b"x" * 5000) + b"--b--", "more than 4096 bytes"),
        (PURPOSE.replace(b"batch", b"\xff") + b"--b--", "not UTF-8"),
        (b"".join(PURPOSE.replace(b"purpose", b"%d" % i) for i in range(17)) + b"--b--", "more than 16 fields"),
    ],
)
def test_forms_that_are_none(body: bytes, said: str) -> None:
    for ends in ((), tuple(range(1, min(len(body), 200)))):
        with pytest.raises(HttpError, match=said) as refused:
            read(body, *ends)
        assert refused.value.status == 400


def test_noise_ends_in_a_sentence() -> None:
    rng = random.Random(1)
    words = [b"--b", b"\r\n", b"--", b"\r", b"\n", HEAD % b"file", b'; filename="x"', b"x", b":", b"\x00", b"--b--"]
    n_whole = 0
    for _ in range(5000):
        body = b"".join(rng.choices(words, k=rng.randrange(1, 20)))
        try:
            read(body, *sorted(rng.sample(range(len(body) + 1), 1)))
            n_whole += 1
        except HttpError as refused:
            assert refused.status == 400
    assert n_whole, "none was a form"


def test_a_large_file_takes_no_memory() -> None:
    form = FormStream(KIND, "file", lambda _: None)
    form.feed(PURPOSE + FILE[: FILE.index(CONTENT)])
    tracemalloc.start()
    try:
        for _ in range(1000):
            form.feed(b"\r\n--" * 16_384)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


# ---- a server ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    settings = Settings(port=0, log_interval_s=0, state_dir=str(tmp_path), body_timeout_s=0.5)
    with (
        serving(ScriptedEngine(), settings=settings) as running,
        httpx.Client(base_url=running.address, timeout=30) as made,
    ):
        yield made


def names(tmp_path: Path) -> list[str]:
    return [each.name for each in (tmp_path / "files").iterdir()]


def send(client: httpx.Client, body: bytes | Iterator[bytes], kind: str = KIND, **headers: str) -> httpx.Response:
    return client.post("/v1/files", content=body, headers={"content-type": kind, **headers})


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (FORM, "application/json", 400),
        (FORM, "multipart/form-data", 400),
        (FORM, "multipart/form-data; boundary=c", 400),
        (PURPOSE + b"--b--", KIND, 400),
        (FILE + b"--b--", KIND, 400),
        (FORM.replace(b"\r\nbatch", b"\r\nfine-tune"), KIND, 400),
        (PURPOSE.replace(b'"purpose"', b'"model"') + FORM, KIND, 400),
        (PURPOSE.replace(b'"purpose"', b'"expires_after[seconds]"') + FORM, KIND, 400),
        (PURPOSE.replace(b'"purpose"', b'"expires_after[x]"') + FORM, KIND, 400),
        (FORM[:-12], KIND, 400),
    ],
)
def test_forms_that_bring_no_file(client: httpx.Client, tmp_path: Path, body: bytes, kind: str, status: int) -> None:
    refused = send(client, body, kind)
    assert refused.status_code == status and refused.json()["error"]["message"].endswith(".")
    assert names(tmp_path) == []
    assert send(client, FORM, **{"content-encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"../../x.jsonl", "x.jsonl"),
        (b"..\\\\..\\\\x.jsonl", "x.jsonl"),
        (b"/etc/passwd", "passwd"),
        (b"", "file"),
        (b"a/", "file"),
        (b"\x00\x1b[2J", "__[2J"),
        (b"x" * 5000, "x" * 255),
        (b"\xff.jsonl", "\ufffd.jsonl"),
    ],
)
def test_names_lead_nowhere(client: httpx.Client, tmp_path: Path, sent: bytes, shown: str) -> None:
    made = send(client, FORM.replace(b"../../x.jsonl", sent)).json()
    assert made["filename"] == shown and made["bytes"] == len(CONTENT)
    assert sorted(names(tmp_path)) == [f"{made['id']}.data", f"{made['id']}.json"]
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == ["batches", "files"]


@pytest.mark.parametrize(
    "id", ["..", "../state.sqlite3", "%2e%2e%2fstate.lock", "file-" + "0" * 32, "x" * 5000, "file-*"]
)
def test_ids_lead_nowhere(client: httpx.Client, id: str) -> None:
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/batches/{id}"):
        assert client.get(path).status_code == 404
    assert client.delete(f"/v1/files/{id}").status_code in (404, 405)


def head_of(n_bytes: int) -> bytes:
    headers = ("host: localhost", f"content-type: {KIND}", f"content-length: {n_bytes}")
    return "\r\n".join(["POST /v1/files HTTP/1.1", *headers, "\r\n"]).encode()


def test_clients_that_leave_or_send_no_more(client: httpx.Client, tmp_path: Path) -> None:
    address = urlsplit(str(client.base_url))
    for leaves in (True, False):
        with socket.create_connection((address.hostname, address.port), timeout=10) as made:
            made.sendall(head_of(999_999) + FORM[:60])
            while not names(tmp_path):
                time.sleep(0.01)
            if not leaves:
                assert b"400 Bad Request" in made.recv(4096)
        until = time.monotonic() + 10
        while names(tmp_path):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_body_that_says_or_has_too_much(client: httpx.Client, tmp_path: Path) -> None:
    settings = Settings(port=0, log_interval_s=0, state_dir=str(tmp_path / "small"), file_max_bytes=100_000)
    with serving(ScriptedEngine(), settings=settings) as running:
        address = urlsplit(running.address)
        with socket.create_connection((address.hostname, address.port), timeout=10) as made:
            made.sendall(head_of(99_999_999))
            assert b"413" in made.recv(4096)

        def endless() -> Iterator[bytes]:
            yield PURPOSE + FILE[: FILE.index(CONTENT)]
            while True:
                yield b"x" * 65_536

        # The answer may come while it still sends.
        with httpx.Client(base_url=running.address, timeout=30) as other, suppress(httpx.TransportError):
            assert send(other, endless()).status_code == 413
        assert names(tmp_path / "small") == []


def test_a_line_of_a_hundred_megabytes(client: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield PURPOSE + FILE[: FILE.index(CONTENT)] + b'{"custom_id": "'
        for _ in range(100):
            yield b"x" * (1 << 20)
        yield b'"}\n\r\n--b--'

    sent = send(client, pieces()).json()
    assert sent["bytes"] > 100 << 20
    asked = {"input_file_id": sent["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = client.post("/v1/batches", json=asked).json()
    until = time.monotonic() + 30
    while batch["status"] != "failed":
        assert time.monotonic() < until
        batch = client.get(f"/v1/batches/{batch['id']}").json()
    assert [each["code"] for each in batch["errors"]["data"]] == ["line_too_long"]
    assert client.delete(f"/v1/files/{sent['id']}").status_code == 200


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_a_file_that_an_editor_began_with_a_mark_keeps_its_first_line(ends: bytes) -> None:
    file = io.BytesIO(lines.BOM + ends.join(f'{{"custom_id": "{name}", {GOOD}}}'.encode() for name in "ab"))
    found = [parse(each.data, MOST).custom_id for each in read_lines(file, MOST)]
    assert found == ["a", "b"]
    assert not list(read_lines(io.BytesIO(lines.BOM), MOST))
    other = io.BytesIO(b"\n" + lines.BOM + b"{}")
    with pytest.raises(LineError):
        parse(next(read_lines(other, MOST)).data, MOST)


def test_a_file_in_tiny_pieces_takes_no_more_than_its_bytes(tmp_path: Path) -> None:
    """Each piece was kept by itself and all were counted again for the next one: seconds of the server's loop."""
    store = FileStore(tmp_path, FileLimits(1 << 20, 1 << 22, 10, 1e6))
    arriving = store.begin("me")
    form = FormStream(KIND, "file", arriving.unwritten.extend)
    form.feed(PURPOSE + FILE[: FILE.index(CONTENT)])
    piece = b"xy"

    async def send_all() -> None:
        for _ in range(50_000):
            await take(store, arriving, form, piece)

    tracemalloc.start()
    try:
        asyncio.run(send_all())
        assert tracemalloc.get_traced_memory()[0] < 1 << 19
    finally:
        tracemalloc.stop()
    assert len(arriving.unwritten) == pytest.approx(100_000, abs=10)
    store.discard(arriving)

"""WebSockets of strangers: what they send is bounded in bytes, time and number, and nothing of it outlives them."""

import json
import os
import random
from collections.abc import Iterator

import httpx
import pytest

from pooled_server import until
from scripted_engine import ScriptedEngine, serving
from socket_client import SocketClient, masked, socket_to
from tahr.server.lifecycle import HttpServer
from tahr.server.responses.sockets import MAX_WAITING
from tahr.server.state.settings import Settings
from tahr.server.websocket.frames import Close, Opcode

LIMIT = 1 << 16
MANY = 12


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    settings = Settings(
        port=0, log_interval_s=0, max_body_bytes=LIMIT, body_timeout_s=0.4, max_websockets=MANY, reader_timeout_s=1.0
    )
    with serving(ScriptedEngine(context_size=4096), settings=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(server: HttpServer) -> Iterator[None]:
    """However a client ends, it leaves nothing behind, and others are answered."""
    yield
    memory = server._uvicorn.config.loaded_app._limits.memory
    until(lambda: server.state.n_sockets == 0 and memory.n_bytes == 0)
    assert len(server.state.recent) == 0 and not server.state.admission.active
    with socket_to(server.address) as client:
        assert client.reply(input="hello")["type"] == "response.completed"
    until(lambda: server.state.n_sockets == 0)


def request(**body: object) -> bytes:
    return masked(Opcode.TEXT, json.dumps({"type": "response.create", **body}).encode())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\xff" + (1 << 62).to_bytes(8, "big"), Close.TOO_LARGE),
        (masked(Opcode.TEXT, bytes(LIMIT - 9), is_last=False) + masked(Opcode.MORE, bytes(LIMIT)), Close.TOO_LARGE),
        (b"\x81\x05hello", Close.PROTOCOL_ERROR),
        (b"\xff" * 64, Close.PROTOCOL_ERROR),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", Close.PROTOCOL_ERROR),
        (masked(Opcode.BINARY, b"{}"), Close.UNSUPPORTED),
        (masked(Opcode.TEXT, b"\xff\xfe"), Close.NOT_UTF8),
        (masked(Opcode.CLOSE, (1000).to_bytes(2, "big")), 1000),
        (masked(Opcode.CLOSE, b""), 0),
    ],
    ids=["endless", "large", "unmasked", "unknown", "http", "binary", "not-utf8", "close", "empty-close"],
)
def test_what_is_no_message_closes_the_connection(server: HttpServer, data: bytes, code: int) -> None:
    with socket_to(server.address) as client:
        client.send(data)
        assert client.closed() == code


def test_a_mask_that_is_wrong_makes_a_text_that_is_refused(server: HttpServer) -> None:
    text = json.dumps({"type": "response.create", "input": "hello"}).encode()
    with socket_to(server.address) as client:
        client.send(masked(Opcode.TEXT, text, mask=b"\x01\x01\x01\x01")[:-1] + b"\x00")
        client.send(masked(Opcode.TEXT, text)[:2] + os.urandom(4) + text)  # masked with another key
        assert client.closed() == Close.NOT_UTF8 or client.closed() == 0


def test_a_message_in_thousands_of_parts_is_one(server: HttpServer) -> None:
    text = json.dumps({"type": "response.create", "input": "hello", "store": False}).encode()
    parts = b"".join(
        masked(Opcode.MORE if i else Opcode.TEXT, text[i : i + 1], is_last=False) for i in range(len(text))
    )
    with socket_to(server.address) as client:
        client.send(parts + masked(Opcode.MORE, b"", is_last=False) * 2000 + masked(Opcode.MORE, b""))
        assert client.events()[-1]["type"] == "response.completed"


def test_a_message_that_does_not_end_is_given_up(server: HttpServer) -> None:
    with socket_to(server.address) as client:
        client.send(masked(Opcode.TEXT, b"{", is_last=False))
        assert client.closed() == Close.POLICY
    with socket_to(server.address) as client:
        client.send(b"\x81")
        assert client.closed() == Close.POLICY


def test_messages_wait_in_a_short_queue(server: HttpServer) -> None:
    with socket_to(server.address) as client:
        client.send(b"".join(request(input=f"SLOW {i}", store=False) for i in range(1 + MAX_WAITING)))
        texts = [client.events()[-1]["response"]["output"][0]["content"][0]["text"] for _ in range(1 + MAX_WAITING)]
        assert [text[15] for text in texts] == ["0", "1", "2", "3", "4"]
    with socket_to(server.address) as client:
        client.send(b"".join(request(input=f"HANG@1 {i}") for i in range(3 + MAX_WAITING)))
        assert client.closed() == Close.POLICY


@pytest.mark.parametrize("script", ["HANG@3", "SLOW " * 20])
def test_a_client_that_goes_in_the_middle_ends_its_reply(server: HttpServer, script: str) -> None:
    (engine,) = (model.engine for model in server.state.models.loaded)
    for _ in range(3):
        with socket_to(server.address) as client:
            client.ask(input=script, store=False)
            until(lambda: bool(engine.live))  # type: ignore[attr-defined]
        until(lambda: not engine.live)  # type: ignore[attr-defined]


def test_more_connections_than_there_may_be_are_refused(server: HttpServer) -> None:
    clients = [SocketClient(server.address) for _ in range(3 * MANY)]
    assert [each.status for each in clients] == [101] * MANY + [503] * 2 * MANY
    assert "retry-after: 5" in clients[-1].head
    assert all(each.reply(input="hello")["type"] == "response.completed" for each in clients[:MANY])
    assert httpx.get(f"{server.address}/health").status_code == 200
    for each in clients:
        each.close()


def test_a_flood_of_pings_to_which_nobody_listens(server: HttpServer) -> None:
    with socket_to(server.address) as client:
        client.raw.settimeout(0.5)
        try:
            for _ in range(400):
                client.send(masked(Opcode.PING, bytes(125)) * 500)
        except OSError:
            pass  # cut off, or it would have to wait
        client.raw.settimeout(20)
        client.closed()


def test_random_bytes(server: HttpServer) -> None:
    source = random.Random(7)
    for _ in range(60):
        with socket_to(server.address) as client:
            whole = request(input="hello", store=False)
            at = source.randrange(len(whole))
            client.send(source.choice([source.randbytes(80), whole[:at] + source.randbytes(9) + whole[at:]]))
            client.raw.shutdown(1)  # nothing more comes
            client.closed()

"""/v1/responses over WebSockets, as Codex speaks it, against an engine that follows a script."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from keyed_server import keyed, many_keys
from pooled_server import until
from scripted_engine import ScriptedEngine, serving
from socket_client import OFFER, SocketClient, masked, socket_to
from tahr.cli.main import main
from tahr.server import lifecycle
from tahr.server.lifecycle import HttpServer
from tahr.server.state.settings import Settings
from tahr.server.websocket import socket as sockets
from tahr.server.websocket.frames import Close, Opcode
from tool_replies import CALLS, THOUGHT, TOOL_TEMPLATE, WEATHER

TOOL = {"type": "function", **WEATHER["function"]}
QUIET = {"port": 0, "log_interval_s": 0}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[HttpServer]:
    with serving(engine, settings=Settings(**QUIET, max_body_bytes=1 << 18)) as running:
        yield running


def bare(value: Any) -> Any:
    """Without ids and times, which differ between two replies to the same script."""
    if isinstance(value, list):
        return [bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    dropped = ("id", "item_id", "call_id", "created_at", "completed_at")
    return {name: bare(each) for name, each in value.items() if name not in dropped}


def http_events(server: HttpServer, **body: Any) -> list[dict[str, Any]]:
    text = httpx.post(f"{server.address}/v1/responses", json={"stream": True, **body}).text
    return [json.loads(each.partition("data: ")[2]) for each in text.removesuffix("\n\n").split("\n\n")]


@pytest.mark.parametrize("script", ["Hi, “naïve” \\ \n\n data: x\n\nworld", "", CALLS, THOUGHT])
def test_a_message_has_the_events_of_a_request(server: HttpServer, engine: ScriptedEngine, script: str) -> None:
    engine.scripts = [script] * 2
    body = {"input": "hello", "tools": [TOOL], "instructions": "Be brief."}
    with socket_to(server.address) as client:
        client.ask(**body)
        assert bare(client.events()) == bare(http_events(server, **body))


def test_a_conversation_that_nobody_stores_goes_on(server: HttpServer, engine: ScriptedEngine) -> None:
    engine.scripts = ["First.", "Second.", "Third."]
    with socket_to(server.address) as client, socket_to(server.address) as other:
        first = client.reply(input="one", store=False)["response"]
        ask = {"input": [{"role": "user", "content": "two"}], "previous_response_id": first["id"], "store": False}
        refused = other.reply(**ask)
        assert refused["status"] == 404 and refused["error"]["code"] == "response_not_found"
        assert httpx.get(f"{server.address}/v1/responses/{first['id']}").status_code == 404
        second = client.reply(**ask)["response"]
        assert engine.seen[-1].text.startswith("[user]one[assistant]First.[user]two[assistant]")
        assert client.reply(**ask)["status"] == 404  # only the last one is kept
        assert client.reply(input="three", previous_response_id=second["id"])["type"] == "response.completed"
        assert "two[assistant]Second.[user]three" in engine.seen[-1].text
    until(lambda: server.state.n_sockets == 0 and not len(server.state.recent))
    assert server.state.recent.n_bytes == 0


def test_stored_responses_are_those_of_http(server: HttpServer, engine: ScriptedEngine) -> None:
    engine.scripts = ["First.", "Second.", "Third."]
    with socket_to(server.address) as client:
        first = client.reply(input="one")["response"]
        second = client.reply(input="two", previous_response_id=first["id"], store=False)["response"]
        third = client.reply(input="three", previous_response_id=second["id"])["response"]
    body = {"input": "four", "previous_response_id": third["id"]}
    assert httpx.post(f"{server.address}/v1/responses", json=body).status_code == 200
    assert "one[assistant]First.[user]two[assistant]Second.[user]three[assistant]Third." in engine.seen[-1].text


def test_a_prompt_is_computed_ahead(server: HttpServer, engine: ScriptedEngine) -> None:
    n_seen = len(engine.seen)
    with socket_to(server.address) as client:
        ahead = client.reply(instructions="Be brief.", input=[], tools=[TOOL], generate=False, store=False)
        made = ahead["response"]
        assert ahead["type"] == "response.completed" and made["output"] == [] and made["status"] == "completed"
        assert made["usage"]["output_tokens"] == 0 and made["usage"]["input_tokens"] > 10
        prompt = engine.seen[n_seen].text
        engine.scripts = ["Yes."]
        client.reply(input="hello", instructions="Be brief.", tools=[TOOL], previous_response_id=made["id"])
        assert engine.seen[-1].text.startswith(prompt) and engine.seen[-1].text.count("Be brief.") == 1
        empty = client.reply(input=[], generate=False)
        assert empty["status"] == 400 and "nothing" in empty["error"]["message"]
    assert httpx.post(f"{server.address}/v1/responses", json={"input": "x", "generate": False}).status_code == 400


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"{", "is no event"),
        (b"[]", "is no event"),
        (b'{"type": "session.update", "session": {}}', "session.update"),
        (b'{"type": "response.create", "input": "x", "stream_id": "1"}', "stream_id"),
        (b'{"type": "response.create", "input": "x", "model": "other"}', "other"),
        (b'{"type": "response.create", "input": "x", "background": true}', "background"),
        (b'{"type": "session", "more": "%b"}' % (b"x" * (1 << 16)), "more"),
    ],
)
def test_a_wrong_message_is_an_event_and_the_next_is_answered(
    server: HttpServer, engine: ScriptedEngine, message: bytes, says: str
) -> None:
    with socket_to(server.address) as client:
        client.send(masked(Opcode.TEXT, message))
        (event,) = client.events()
        assert event["type"] == "error" and event["status"] in (400, 404) and says in event["error"]["message"]
        client.send(masked(Opcode.TEXT, b'{"type": "response.processed", "response_id": "resp_1"}'))
        assert client.reply(input="hello")["type"] == "response.completed"


def test_a_reply_that_fails_says_so(server: HttpServer) -> None:
    with socket_to(server.address) as client:
        failed = client.reply(input="FAIL@3")
        assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
        assert client.reply(input="hello")["type"] == "response.completed"


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"sec-websocket-version": "8"}, 400, "version 13"),
        ({"sec-websocket-key": "short"}, 400, "16 bytes"),
        ({"origin": "https://evil.example"}, 403, "evil.example"),
        ({"host": "evil.example"}, 403, "evil.example"),
        ({"upgrade": "h2c"}, 200, "list"),
    ],
)
def test_handshakes_that_are_refused(server: HttpServer, headers: dict[str, str], status: int, says: str) -> None:
    client = SocketClient(server.address, **headers)
    assert client.status == status and "101" not in client.head
    length = int(client.head.lower().partition("content-length: ")[2].split("\r\n")[0])
    assert says in client._take(length).decode()
    client.close()


def test_other_routes_speak_no_websocket(server: HttpServer) -> None:
    client = SocketClient(server.address, path="/v1/models")
    assert client.status == 200
    client.close()
    assert SocketClient(server.address, path="/responses").status == 101
    answer = httpx.get(f"{server.address}/v1/responses", headers=OFFER)
    assert answer.status_code == 101 and answer.headers["sec-websocket-accept"] == "ICX+Yqv66kxgM0FcWaLWlFLwTAI="


def test_keys_and_rates_hold_for_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.02)
    keys = many_keys(tmp_path / "state", ["ann"], requests_per_minute=3)
    bearer = {"authorization": f"Bearer {keys['ann']}"}
    with keyed(tmp_path / "state") as (server, _):
        assert SocketClient(server.address).status == 401
        with socket_to(server.address, **bearer) as client:
            for _ in range(3):
                assert client.reply(input="hello")["type"] == "response.completed"
            late = client.reply(input="hello")
            assert late["status"] == 429 and int(late["headers"]["retry-after"]) > 0
        with socket_to(server.address, **bearer) as client:
            assert main(["keys", "revoke", "ann", "--state-dir", str(tmp_path / "state")]) == 0
            until(lambda: client.reply(input="x")["status"] == 401)


def test_websockets_and_http_together(server: HttpServer) -> None:
    def by_socket(i: int) -> list[str]:
        with socket_to(server.address) as client:
            return [client.reply(input=f"{i} {turn}")["response"]["output"][0]["content"][0]["text"] for turn in "ab"]

    def by_http(i: int) -> list[str]:
        return [
            http_events(server, input=f"{i} {turn}")[-1]["response"]["output"][0]["content"][0]["text"] for turn in "ab"
        ]

    with ThreadPoolExecutor(64) as pool:
        made = list(pool.map(lambda i: (by_http if i % 2 else by_socket)(i), range(64)))
    assert made == [[f"You said “{i} {turn}”, naïvely" for turn in "ab"] for i in range(64)]


def test_a_server_that_ends_closes_idle_clients_and_finishes_replies() -> None:
    engine = ScriptedEngine(context_size=4096)
    with serving(engine, settings=Settings(**QUIET)) as server:
        busy, idle = SocketClient(server.address), SocketClient(server.address)
        busy.ask(input="SLOW")
        until(lambda: bool(engine.live))
        assert httpx.post(f"{server.address}/drain").status_code == 202
        assert busy.events()[-1]["type"] == "response.completed"
        assert busy.closed() == Close.GOING_AWAY and idle.closed() == Close.GOING_AWAY


def test_a_silent_client_is_asked_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PING_S", 0.05)
    monkeypatch.setattr(sockets, "SILENT_S", 0.3)
    with serving(ScriptedEngine(), settings=Settings(**QUIET)) as server, socket_to(server.address) as client:
        assert [client.frame()[0] for _ in range(2)] == [Opcode.PING, Opcode.PING]
        assert client.closed() == 0  # no pong has come: it is cut off
        with socket_to(server.address) as polite:
            for _ in range(12):
                assert polite.frame() == (Opcode.PING, b"")
                polite.send(masked(Opcode.PONG, b""))
            assert polite.reply(input="hello")["type"] == "response.completed"

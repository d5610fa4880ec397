"""The end of a server in good order: what runs finishes, nothing new is taken, and every end says why."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.server import lifecycle
from tahr.server.http.listening import Listener
from tahr.server.lifecycle import HttpServer
from tahr.server.state.settings import Settings

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "SLOW and long"}]
LONG = {"stream": True, "max_tokens": 400}  # 8 s
TIMEOUT_S = 1.0


def settings(**more: Any) -> Settings:
    return Settings(**{"port": 0, "log_interval_s": 0, "stream_interval_s": 0, **more})


def chat(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def ends(address: str, within_s: float = 5) -> None:
    """Wait until nobody listens any more."""
    host, port = address.removeprefix("http://").split(":")
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError(f"it still listens after {within_s} s")


def test_streams_finish_and_nothing_new_is_taken() -> None:
    with serving(ScriptedEngine(), settings=settings()) as server, httpx.Client(base_url=server.address) as client:
        address = server.address
        body = chat("SLOW please", stream=True)
        with client.stream("POST", CHAT, json=body) as running:
            lines = running.iter_lines()
            next(lines)
            asked = httpx.post(f"{address}/drain")
            assert asked.status_code == 202
            assert asked.json() == {"status": "draining", "active_requests": 1, "drain_timeout_s": 10.0}
            assert httpx.post(f"{address}/drain").status_code == 202  # again changes nothing
            assert httpx.get(f"{address}/ready").status_code == 503
            assert httpx.get(f"{address}/health").json()["status"] == "closing"
            refused = httpx.post(address + CHAT, json=chat())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "closing")
            assert "retry-after" in refused.headers and refused.headers["connection"] == "close"
            events = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "stop" and events[-1] == "[DONE]"
        ends(address)


def test_an_idle_server_ends_at_once() -> None:
    with serving(ScriptedEngine(), settings=settings()) as server, httpx.Client(base_url=server.address) as client:
        address = server.address
        assert client.get("/ready").status_code == 200  # a connection that is kept holds nothing up
        described = client.get("/openapi.json").json()["paths"]["/drain"]["post"]["responses"]
        assert set(described) == {"202", "default"}
        began = time.monotonic()
        assert client.post("/drain").status_code == 202
        ends(address)
        assert time.monotonic() - began < 3


def test_only_an_admin_ends_a_server() -> None:
    with serving(ScriptedEngine(), settings=settings(api_keys=("key",), admin_key="admin")) as server:
        address = server.address
        for key in ("none", "key", "wrong"):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.post(f"{server.address}/drain", headers=headers).status_code == 401
        assert httpx.get(f"{server.address}/drain").status_code == 401
        assert httpx.get(f"{server.address}/ready").status_code == 200
        assert httpx.post(f"{server.address}/drain", headers={"authorization": "Bearer admin"}).status_code == 202
        ends(address)


# ---- ends that are told -------------------------------------------------------------------------------------


def last_event(text: str) -> dict[str, Any]:
    """The last event with data, whatever its framing is."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.removeprefix("data: ").startswith("{")]
    made: dict[str, Any] = json.loads(data[-1])
    return made


def finish_of(kind: str, text: str) -> Any:
    """Why a stream says that it ended, and whether it ended as it should."""
    made = last_event(text)
    if kind in ("chat", "text"):
        assert text.endswith("data: [DONE]\n\n")
        return made["choices"][0]["finish_reason"]
    if kind == "anthropic":
        assert made == {"type": "message_stop"}
        delta = [line for line in text.splitlines() if '"message_delta"' in line and line.startswith("data: ")]
        return json.loads(delta[-1].removeprefix("data: "))["delta"]["stop_reason"]
    if kind == "responses":
        return made["type"], made["response"]["status"], made["response"]["incomplete_details"]["reason"]
    if kind == "ollama":
        return made["done"], made["done_reason"]
    return made["stop"], made["stop_type"]


STREAMS = {
    "chat": (CHAT, {"messages": MESSAGES, **LONG}, "abort"),
    "text": ("/v1/completions", {"prompt": "SLOW", **LONG}, "abort"),
    "anthropic": ("/v1/messages", {"model": "scripted", "messages": MESSAGES, **LONG}, "pause_turn"),
    "responses": (
        "/v1/responses",
        {"input": "SLOW", "stream": True, "max_output_tokens": 400},
        ("response.incomplete", "incomplete", "abort"),
    ),
    "ollama": (
        "/api/chat",
        {"model": "scripted", "messages": MESSAGES, "options": {"num_predict": 400}},
        (True, "abort"),
    ),
    "llamacpp": ("/completion", {"prompt": "SLOW", "stream": True, "n_predict": 400}, (True, "none")),
}


class EndlessEngine(ScriptedEngine):
    """Its replies take much longer than any drain here."""

    def script_for(self, prompt: str, index: int) -> str:
        return "and so on, " * 40


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_that_outlasts_the_drain_ends_with_the_truth(kind: str) -> None:
    path, body, expected = STREAMS[kind]
    began = 0.0
    text = ""
    with (
        serving(EndlessEngine(), settings=settings(drain_timeout_s=TIMEOUT_S)) as server,
        httpx.stream("POST", server.address + path, json=body, timeout=20) as response,
    ):
        for piece in response.iter_text():
            text += piece
            if not began:
                began = time.monotonic()
                assert httpx.post(f"{server.address}/drain").status_code == 202
    assert finish_of(kind, text) == expected
    assert text.count("\n") > 10 and 'error"' not in text.replace('"error":null', "")
    assert 0.5 < time.monotonic() - began < 3


def test_a_reply_that_is_not_streamed_is_refused_then() -> None:
    with ThreadPoolExecutor(1) as threads:
        with serving(EndlessEngine(), settings=settings(drain_timeout_s=TIMEOUT_S)) as server:
            body = {"messages": MESSAGES, "max_tokens": 400}
            waiting = threads.submit(httpx.post, server.address + CHAT, json=body, timeout=20)
            while not server.state.admission.active:
                time.sleep(0.01)
            httpx.post(f"{server.address}/drain")
            found = waiting.result(10)
        assert found.status_code == 503 and found.json()["error"]["code"] == "closing"


def test_an_engine_that_hangs_holds_up_no_end() -> None:
    with serving(ScriptedEngine(), settings=settings(drain_timeout_s=TIMEOUT_S)) as server:
        address = server.address
        with httpx.stream("POST", server.address + CHAT, json=chat("HANG@3", stream=True), timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            httpx.post(f"{server.address}/drain")
            events = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(events[-2])["error"]["code"] == "closing"
        ends(address)


# ---- a socket that others hold ------------------------------------------------------------------------------


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[tuple[HttpServer, socket.socket]]:
    """A server on a socket that outlives it, as systemd's, and our own end of it."""
    with socket.create_server(("127.0.0.1", 0)) as ours:
        monkeypatch.setattr(lifecycle, "bind", lambda *_: Listener(ours.dup(), outlives_us=True))
        with serving(ScriptedEngine(), settings=settings(**more)) as server:
            yield server, ours


def ask(connection: http.client.HTTPConnection, text: str) -> http.client.HTTPResponse:
    connection.request("POST", CHAT, json.dumps(chat(text)), {"content-type": "application/json"})
    return connection.getresponse()


def test_clients_that_were_accepted_are_served_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with held(monkeypatch) as (server, ours), ThreadPoolExecutor(1) as threads:
        host, port = ours.getsockname()
        fresh, kept, running, late = (http.client.HTTPConnection(host, port, timeout=10) for _ in range(4))
        for each in (fresh, kept, running):
            each.connect()
        assert ask(kept, "one").read()
        slow = threads.submit(ask, running, "SLOW")
        while not server.state.admission.active:
            time.sleep(0.01)
        assert httpx.post(f"{server.address}/drain").status_code == 202
        late.connect()  # in the queue of the socket
        for each in (fresh, kept):
            reply = ask(each, "two")
            assert reply.status == 200 and reply.headers["connection"] == "close"
            assert json.loads(reply.read())["choices"][0]["finish_reason"] == "stop"
        assert slow.result().status == 200
        late.sock.settimeout(0.2)
        late.request("GET", "/health")
        with pytest.raises(TimeoutError):
            late.sock.recv(1)
        ours.settimeout(5)
        accepted = ours.accept()[0]  # the next server gets it whole
        assert accepted.recv(4096).startswith(b"GET /health")
        accepted.close()
        for each in (fresh, kept, running, late):
            each.close()

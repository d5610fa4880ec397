"""What a stranger may not do: make the server hold, compute or send more than it agreed to."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.engine.step_traces import DecisionLog
from tahr.server.http import protocol
from tahr.server.http.connection import Connection
from tahr.server.lifecycle import HttpServer
from tahr.server.observe.observer import Observer, Observers
from tahr.server.openai import embeddings, formatters
from tahr.server.replies import served
from tahr.server.state.settings import Settings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HEAD = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\n"


def settings(**more: Any) -> Settings:
    return Settings(**{"port": 0, "log_interval_s": 0, **more})


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ScriptedEngine(context_size=4096), settings=settings()) as running:
        yield running


def connected(server: HttpServer, buffer_bytes: int = 0) -> socket.socket:
    made = socket.socket()
    if buffer_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    made.settimeout(10)
    made.connect(("127.0.0.1", int(server.address.rsplit(":", 1)[1])))
    return made


def until(condition: Any, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def is_closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes, however much it sends before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


# ---- bodies and connections ---------------------------------------------------------------------------------


def test_trailers_are_bounded_like_headers(server: HttpServer) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ")
        n_sent = 0
        with pytest.raises(ConnectionError):
            while n_sent < 64 * 2**20:
                n_sent += connection.send(b"y" * 65536)
                time.sleep(0.001)
        assert n_sent < 8 * 2**20, "what fits between two machines, and no more"
    assert httpx.get(server.address + "/health").status_code == 200


def test_many_trailers_are_bounded_too(server: HttpServer) -> None:
    with connected(server) as connection, pytest.raises(ConnectionError):
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        for _ in range(10_000):
            connection.sendall(b"name: value\r\n" * 1000)
            time.sleep(0.001)


def test_a_trailer_is_no_header(server: HttpServer) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    with connected(server) as connection:
        connection.sendall(
            HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\norigin: evil\r\n\r\n" % (len(body), body)
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_small_chunks_are_fine(server: HttpServer) -> None:
    body = json.dumps({"prompt": "x" * 3000}).encode()
    made = httpx.post(server.address + "/tokenize", content=(bytes([each]) for each in body))
    assert made.status_code == 200


@pytest.mark.serial
@pytest.mark.parametrize("head", [b"GET /health HTTP/1.1\r\nhost: localhost\r\n", HEAD.replace(b"POST", b"PUT")])
def test_a_body_that_drips_after_the_response(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.3)
    with serving(ScriptedEngine(), settings=settings()) as server, connected(server) as connection:
        connection.sendall(head + b"content-length: 1000000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 8:
                connection.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 3


def test_bytes_between_two_requests_hold_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.4)
    with serving(ScriptedEngine(), settings=settings()) as server, connected(server) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert is_closed_within(connection, 3)


@pytest.mark.parametrize("keep", [b"keep-alive", b"close"])
def test_a_response_nobody_reads(keep: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.server.http.connection.SLOWEST_BYTES_PER_S", 4 << 20)  # or it takes 20 seconds
    engine = ScriptedEngine(context_size=400_000)
    with (
        serving(engine, settings=settings(reader_timeout_s=0.2)) as server,
        connected(server, 4096) as connection,
    ):
        body = json.dumps({"prompt": "x" * 390_000, "return_token_strs": True}).encode()
        connection.sendall(HEAD + b"connection: %b\r\ncontent-length: %d\r\n\r\n%b" % (keep, len(body), body))
        connections = server._uvicorn.server_state.connections
        assert until(lambda: len(connections) == 1)
        assert until(lambda: not connections, 60), "it was never cut off"


def test_a_slow_reader_gets_everything(server: HttpServer) -> None:
    with httpx.Client(base_url=server.address) as client:
        body = {"prompt": "x" * 4000, "return_token_strs": True}
        with client.stream("POST", "/tokenize", json=body) as response:
            n_bytes = 0
            for part in response.iter_raw(1000):
                n_bytes += len(part)
                time.sleep(0.002)
        assert n_bytes == int(response.headers["content-length"])


def test_a_chunk_of_no_bytes_does_not_end_a_stream() -> None:
    class Written:
        write_paused = False
        data = b""

        async def drain(self) -> None: ...

        def write_now(self, data: bytes) -> None:
            self.data += data

    written = Written()
    connection = Connection(written, written)  # type: ignore[arg-type]
    assert connection.send_chunk(b"") and connection.send_chunk(b"x") and written.data == b"1\r\nx\r\n"


def test_an_upgrade_that_is_not_taken_keeps_its_body(server: HttpServer) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": 3}).encode()
    for offer in (b"h2c", b"websocket"):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade, HTTP2-Settings\r\n"
        whole = head + b"upgrade: %b\r\n" % offer + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        for cut in (len(whole), len(whole) - 5, len(whole) - len(body), 40):
            with connected(server) as connection:
                connection.sendall(whole[:cut])
                time.sleep(0.02)
                connection.sendall(whole[cut:])
                assert connection.recv(65536).startswith(b"HTTP/1.1 200"), (offer, cut)


# ---- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_name_that_was_made_to_point_here_gets_nothing(host: str) -> None:
    made = settings(host=host, allowed_hosts=("llm.example",))
    with serving(ScriptedEngine(), settings=made) as server:
        address = "http://127.0.0.1:" + server.address.rsplit(":", 1)[1]
        for name, status in (
            ("evil.example", 403), ("evil.example:80", 403), ("localhost.evil.example", 403), ("[::1", 403),
            ("localhost", 200), ("LOCALHOST:1", 200), ("127.0.0.1:9", 200), ("[::1]:8080", 200), ("10.0.0.7", 200),
            ("llm.example", 200), ("llm.example.:443", 200),
        ):  # fmt: skip
            for path in ("/health", "/metrics", "/v1/models", "/"):
                got = httpx.get(address + path, headers={"host": name})
                assert got.status_code == status, (name, path)
        refused = httpx.post(address + CHAT, json={}, headers={"host": "evil.example"}).json()["error"]
        assert refused["code"] == "host_not_allowed" and "--allowed-hosts evil.example" in refused["message"]
        page = {"host": "llm.example", "origin": "https://llm.example"}
        assert httpx.get(address + "/version", headers=page).status_code == 200
        assert httpx.get(address + "/version", headers=page | {"origin": "null"}).status_code == 403


def test_all_names_can_be_allowed() -> None:
    with serving(ScriptedEngine(), settings=settings(allowed_hosts=("*",))) as server:
        assert httpx.get(server.address + "/version", headers={"host": "any.example"}).status_code == 200


# ---- amplification ------------------------------------------------------------------------------------------


def test_a_prompt_is_scored_once_for_all_its_choices(server: HttpServer) -> None:
    requested = {"prompt": ["ab", "cd"], "n": 3, "prompt_logprobs": 1, "max_tokens": 1}
    choices = httpx.post(server.address + TEXT, json=requested).json()["choices"]
    assert ["prompt_logprobs" in each for each in choices] == [True, False, False] * 2
    messages = [{"role": "user", "content": "x"}]
    requested = {"messages": messages, "n": 3, "prompt_logprobs": 1, "max_tokens": 1}
    reply = httpx.post(server.address + CHAT, json=requested).json()
    assert "prompt_logprobs" in reply and not any("prompt_logprobs" in each for each in reply["choices"])


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_prompts_are_bounded_by_their_product(
    server: HttpServer, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MAX_LOGPROB_ENTRIES", 4000)
    echo = {"prompt": [97] * 100, "echo": True, "logprobs": 9, "max_tokens": 1, "stream": stream}
    assert httpx.post(server.address + TEXT, json={**echo, "n": 4}).status_code == 200
    refused = httpx.post(server.address + TEXT, json={**echo, "n": 5})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "logprobs"
    if not stream:
        scored = {"prompt": [97] * 400, "prompt_logprobs": 10, "n": 128, "max_tokens": 1}
        refused = httpx.post(server.address + TEXT, json=scored)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize("path, body, param", [
    (TEXT, {"prompt": ["a", "b"], "logprobs": 20, "n": 2}, "logprobs"),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20, "n": 4},
     "top_logprobs"),
])  # fmt: skip
def test_log_probabilities_of_choices_are_bounded_by_their_product(
    server: HttpServer, path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MAX_OUTPUT_ENTRIES", 4 * 21 * 10)
    assert httpx.post(server.address + path, json={**body, "max_tokens": 10}).status_code == 200
    refused = httpx.post(server.address + path, json={**body, "max_tokens": 11})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_large_responses_are_not_made_on_the_loop(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noting(sound: Any) -> Any:
        def noted(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return sound(*args)

        return noted

    for module, name in ((formatters, "joined"), (formatters, "prompt_logprobs"), (embeddings, "written")):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    requested = {"prompt": [97] * 300, "max_tokens": 1}
    for more in ({"echo": True, "logprobs": 20, "n": 2}, {"echo": True, "logprobs": 20, "n": 2, "stream": True}):
        assert httpx.post(server.address + TEXT, json=requested | more).status_code == 200
    assert httpx.post(server.address + TEXT, json=requested | {"prompt_logprobs": 3}).status_code == 200
    assert httpx.post(server.address + "/v1/embeddings", json={"input": ["x"] * 100}).status_code == 200
    assert len(threads) >= 6 and all(name.startswith("tahr-text") for name in threads)


def test_long_texts_hold_up_no_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising megabytes takes minutes at worst: ordinary prompts, and streams of log-probabilities, go on."""
    engine, begun, freed = ScriptedEngine(context_size=1 << 20), threading.Event(), threading.Event()
    encode = engine.tokenizer.encode

    def slow(text: str, **options: Any) -> list[int]:
        if len(text) > 1 << 16:
            begun.set()
            assert freed.wait(50)
        return list(encode(text, **options))

    monkeypatch.setattr(engine.tokenizer, "encode", slow, raising=False)
    sizes = [1 << 17] * 4 + [3 << 20] * 4
    with serving(engine, settings=settings()) as server, ThreadPoolExecutor(len(sizes)) as clients:
        ask = partial(httpx.post, server.address + "/tokenize", timeout=60)
        longs = [clients.submit(ask, json={"prompt": "x" * n}) for n in sizes]
        try:
            assert begun.wait(15)
            time.sleep(0.2)
            requested = {"prompt": "x" * 4000, "max_tokens": 1, "logprobs": 5}
            for more in ({}, {"stream": True}):
                assert httpx.post(server.address + TEXT, json=requested | more, timeout=15).status_code == 200
        finally:
            freed.set()
        assert [each.result().status_code for each in longs] == [200] * len(sizes)


# ---- embeddings ---------------------------------------------------------------------------------------------


class StuckEngine(ScriptedEngine):
    """Its embeddings never come; `embedding` says whether somebody waits."""

    embedding = False

    async def embed(self, texts: Any, options: Any, lora: Any = (), background: bool = False) -> Any:
        self.embedding = True
        try:
            await asyncio.Event().wait()
        finally:
            self.embedding = False


def test_embeddings_end_when_the_client_leaves() -> None:
    engine = StuckEngine()
    body = json.dumps({"input": "x"}).encode()
    with serving(engine, settings=settings()) as server:
        with connected(server) as connection:
            connection.sendall(
                HEAD.replace(b"/tokenize", b"/v1/embeddings") + b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            assert until(lambda: engine.embedding)
        assert until(lambda: not engine.embedding)


def test_embeddings_have_a_deadline() -> None:
    engine = StuckEngine()
    with serving(engine, settings=settings(request_timeout_s=0.2)) as server:
        late = httpx.post(server.address + "/v1/embeddings", json={"input": "x"})
        assert late.status_code == 504 and not engine.embedding


def test_embeddings_end_with_the_server() -> None:

    engine = StuckEngine()
    got: list[int] = []
    with serving(engine, settings=settings(drain_timeout_s=0.1)) as server:
        asking = threading.Thread(
            target=lambda: got.append(httpx.post(server.address + "/v1/embeddings", json={"input": "x"}).status_code)
        )
        asking.start()
        assert until(lambda: engine.embedding)
    asking.join(10)
    assert got == [503]


# ---- texts longer than anything the model can hold ----------------------------------------------------------


@pytest.mark.parametrize(
    "path, body, param",
    [
        (TEXT, {"prompt": "x" * 50_000}, "prompt"),
        (TEXT, {"prompt": ["a", "x" * 50_000]}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 50_000}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 500}] * 100}, "messages"),
        ("/tokenize", {"prompt": "x" * 50_000}, "prompt"),
        ("/tokenize", {"content": "x" * 50_000}, "content"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x" * 50_000}]}, "messages"),
        ("/v1/embeddings", {"input": "x" * 50_000}, "input"),
        ("/detokenize", {"tokens": [97] * 70_000}, "tokens"),
    ],
)
def test_a_text_that_cannot_fit_is_refused_unread(
    server: HttpServer, path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.state.models.models[0].engine
    read: list[int] = []
    encode = engine.tokenizer.encode
    monkeypatch.setattr(
        engine.tokenizer, "encode", lambda text, **more: (read.append(len(text)), encode(text, **more))[1]
    )
    refused = httpx.post(server.address + path, json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    assert max(read, default=0) < 100
    if path != "/detokenize":
        assert "maximum context length is 4096 tokens" in refused.json()["error"]["message"]


# ---- 400, not 500 -------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "path, body, param",
    [
        (TEXT, {"prompt": "x", "logit_bias": {"1" * 5000: 1}}, "logit_bias"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"mood": nested(900)}},
         "chat_template_kwargs"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"mood": nested(17)}},
         "chat_template_kwargs"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "name": "n" * 300}]}, "messages"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_client_is_no_fault_of_the_server(
    server: HttpServer, path: str, body: dict[str, Any], param: str
) -> None:
    refused = httpx.post(server.address + path, json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param


def test_prompts_of_both_kinds_can_be_echoed(server: HttpServer) -> None:
    requested = {"prompt": ["ab", [99, 100], "e"], "echo": True, "max_tokens": 1}
    made = httpx.post(server.address + TEXT, json=requested).json()["choices"]
    assert [each["text"] for each in made] == ["abY", "cdY", "eY"]


# ---- several tenants ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_keys_do_not_share_a_prefix_cache(shared: bool) -> None:
    engine = ScriptedEngine()
    made = settings(api_keys=("first", "second"), shared_prefix_cache=shared)
    with serving(engine, settings=made) as server:
        for path, body in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": [{"role": "user", "content": "x"}]})):
            for key in ("first", "second", "first"):
                for salt in ("", "mine"):
                    requested = {**body, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
                    headers = {"authorization": f"Bearer {key}"}
                    assert httpx.post(server.address + path, json=requested, headers=headers).status_code == 200
    salts = [each.params.cache_salt for each in engine.seen[-12:]]
    assert len(set(salts)) == (2 if shared else 4)
    assert salts[:2] == salts[4:6] == salts[6:8] == salts[10:]
    assert not any("first" in salt or "second" in salt for salt in salts)


def test_one_key_needs_no_salt() -> None:
    engine = ScriptedEngine()
    with serving(engine, settings=settings(api_keys=("only",))) as server:
        headers = {"authorization": "Bearer only"}
        httpx.post(server.address + TEXT, json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert engine.seen[-1].params.cache_salt == ""


# ---- observers ----------------------------------------------------------------------------------------------


def test_an_observer_that_breaks_breaks_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def generation_started(self, record: Any) -> None:
            raise OSError("disk full")

        def next_tokens(self, record: Any, n_tokens: int, seconds_each: float) -> None:
            raise OSError("disk full")

        def request_finished(self, record: Any) -> None:
            raise OSError("disk full")

    with serving(ScriptedEngine(), settings=settings()) as server:
        server.state.observers = Observers([Broken(), server.state.metrics])
        for stream in (False, True, True):
            requested = {"prompt": "x", "max_tokens": 5, "stream": stream}
            assert httpx.post(server.address + TEXT, json=requested).status_code == 200
        assert 'tahr_generation_tokens_total{model_name="scripted"} 15' in httpx.get(server.address + "/metrics").text
    assert caplog.text.count("requests go on without it") == 3, "said once for each hook"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
def test_a_full_disk_ends_a_trace_and_no_request(caplog: pytest.LogCaptureFixture) -> None:
    trace = DecisionLog(Path("/dev/full"))
    for step in range(3):
        trace.step("m", {"step": step}, [])
    trace.close()
    assert caplog.text.count("A trace ends here") == 1

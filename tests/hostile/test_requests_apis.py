"""What a stranger may not do through the routes of other APIs than OpenAI's first: multiply, hold the loop, confuse."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from fill_in_tokenizer import FillInTokenizer
from keyed_server import by, keyed, many_keys
from pooled_server import until
from scripted_engine import ScriptedEngine, client_of, serving
from tahr.models.parts.encoding import Encoding
from tahr.server import app
from tahr.server.http.connection import CONNECTION
from tahr.server.http.request import BodyLimits, BodyMemory, ClientGone, HttpRequest
from tahr.server.lifecycle import HttpServer
from tahr.server.openai import openapi
from tahr.server.responses import responses
from tahr.server.state.settings import Settings

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COMPLETION, INFILL = "/completion", "/infill"
USER = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image"}
HUGE = int("9" * 400)
LONG = "x" * 1_000_000
TOOLS = [{"type": "function", "function": {"name": "f"}}]
UNREADABLE = {"type": "json_schema", "json_schema": {"name": "x", "schema": "text"}}
DEEP: Any = {}
for _ in range(400):
    DEEP = {"a": DEEP}


class RepositoryTokenizer(FillInTokenizer):
    """Also with tokens for files, whose names are text then."""

    def split_special(self, text: str) -> list[str | int]:
        return [300] if text in ("<|repo_name|>", "<|file_sep|>") else super().split_special(text)


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    made = ScriptedEngine("coder", context_size=4096)
    made.tokenizer = RepositoryTokenizer()
    return made


@pytest.fixture(scope="module")
def ranker() -> ScriptedEngine:
    made = ScriptedEngine("ranker", context_size=4096)
    made.inputs = replace(made.inputs, encoding=Encoding(scores_pairs=True, sigmoid=False), vector_width=1)
    return made


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine, ranker: ScriptedEngine) -> Iterator[HttpServer]:
    with serving(engine, ranker, settings=Settings(port=0, log_interval_s=0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as made:
        yield made


def post(client: httpx.Client, path: str, body: Any) -> httpx.Response:
    return client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())


# ---- products -----------------------------------------------------------------------------------------------


def test_one_stored_item_is_not_read_a_thousand_times(client: httpx.Client) -> None:
    stored = client.post(RESPONSES, json={"input": "x" * 2000}).json()["output"][0]["id"]
    once = {"type": "item_reference", "id": stored}
    user = {"role": "user", "content": "again"}
    assert client.post(RESPONSES, json={"input": [once, user]}).status_code == 200
    refused = client.post(RESPONSES, json={"input": [once] * 50_000 + [user]})
    assert refused.status_code == 400 and "several times" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "files",
    [[{"text": ""}] * 100_000, [{"text": "", "filename": "x" * 9_000_000}], [{"text": "y" * 9_000}] * 1000],
    ids=["many", "a long name", "long together"],
)
def test_other_files_are_bounded_together(client: httpx.Client, files: list[Any]) -> None:
    began = time.perf_counter()
    got = post(client, INFILL, {"model": "coder", "input_prefix": "a", "input_suffix": "b", "input_extra": files})
    assert got.status_code == 400 and len(got.text) < 500, got.text[:300]
    assert time.perf_counter() - began < 5


def test_a_query_is_tokenised_once_and_checked_before_any_pair(
    client: httpx.Client, ranker: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, seen = ranker.tokenizer.encode, list[int]()

    def counted(text: str, **options: Any) -> list[int]:
        seen.append(len(text))
        return list(encode(text, **options))

    monkeypatch.setattr(ranker.tokenizer, "encode", counted, raising=False)
    body: dict[str, Any] = {"model": "ranker", "query": "q" * 1000, "documents": ["d"] * 2048}
    assert client.post("/v1/rerank", json=body).status_code == 200
    assert sorted(seen)[-2:] == [1, 1000] and len(seen) == 2049
    seen.clear()
    body["query"] = "q" * 10_000
    assert client.post("/v1/rerank", json=body).status_code == 400
    assert seen == [10_000], "no document was looked at"


# ---- the event loop -----------------------------------------------------------------------------------------


def test_items_of_no_text_are_not_written_down_on_the_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fit any context, so only the size of the body bounds them."""
    shown_input, threads = responses.shown_input, set[str]()

    def shown_seen(item: Any) -> dict[str, Any]:
        threads.add(threading.current_thread().name.split("_")[0])
        return shown_input(item)

    monkeypatch.setattr(responses, "shown_input", shown_seen)
    for stream in (False, True):
        items = [{"role": "user", "content": []}] * 10_000 + USER
        assert client.post(RESPONSES, json={"input": items, "stream": stream}).status_code == 200
    assert threads == {"tahr-text"}
    made = client.post(RESPONSES, json={"input": items}).json()["id"]
    listed = client.get(f"{RESPONSES}/{made}/input_items?limit=2").json()
    assert listed["data"][0]["content"][0]["text"] == "hi" and listed["has_more"] and len(listed["data"]) == 2


def test_a_long_prompt_is_not_decoded_on_the_loop(
    client: httpx.Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, threads = engine.tokenizer.decode, set[str]()

    def decode_seen(tokens: Any, **options: Any) -> str:
        if options.get("skip_special") is False:
            threads.add(threading.current_thread().name.split("_")[0])
        return str(decode(tokens, **options))

    monkeypatch.setattr(engine.tokenizer, "decode", decode_seen, raising=False)
    for stream in (False, True):
        body = {"model": "coder", "prompt": list(b"x" * 3000), "n_predict": 2, "stream": stream}
        assert client.post(COMPLETION, json=body).status_code == 200
    assert threads == {"tahr-text"}


# ---- types and numbers --------------------------------------------------------------------------------------

ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "bias of a huge token": (COMPLETION, {"prompt": "x", "logit_bias": [[HUGE, 1]]}),
    "bias of a true token": (COMPLETION, {"prompt": "x", "logit_bias": [[True, 1]]}),
    "bias of nothing": (COMPLETION, {"prompt": "x", "logit_bias": [[], [1], [1, 2, 3]]}),
    "bias by a huge number": (COMPLETION, {"prompt": "x", "logit_bias": [[1, HUGE]]}),
    "bias by a long text": (COMPLETION, {"prompt": "x", "logit_bias": {"9" * 1025: 1}}),
    "a prompt in a prompt in a prompt": (COMPLETION, {"prompt": [[[["x"]]]]}),
    "huge tokens": (COMPLETION, {"prompt": [HUGE]}),
    "a prompt of switches": (COMPLETION, {"prompt": [True, False]}),
    "a prompt of nothing": (COMPLETION, {"prompt": [[], []]}),
    "many prompts": (COMPLETION, {"prompt": [[1]] * 5000}),
    "a path through everything": (COMPLETION, {"prompt": "x", "response_fields": ["/".join("a" * 100_000)] * 65}),
    "huge n_predict": (COMPLETION, {"prompt": "x", "n_predict": -HUGE}),
    "huge n_probs": (COMPLETION, {"prompt": "x", "n_probs": 10**9}),
    "huge indentation": (COMPLETION, {"prompt": "x", "n_indent": 10**18}),
    "samplers without end": (COMPLETION, {"prompt": "x", "samplers": ["x" * 1000] * 10_000}),
    "deep input of a tool": (
        MESSAGES,
        {
            "max_tokens": 1,
            "messages": [
                *USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": DEEP}]},
                *USER,
            ],
        },
    ),
    "deep schema": (
        MESSAGES,
        {"max_tokens": 1, "messages": USER, "tools": [{"name": "f", "input_schema": DEEP}]},
    ),
    "deep results": (
        MESSAGES,
        {
            "max_tokens": 1,
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]},
            ],
        },
    ),
    "no tokens": (MESSAGES, {"max_tokens": 0, "messages": USER}),
    "huge budget": (
        MESSAGES,
        {"max_tokens": 9, "messages": USER, "thinking": {"type": "enabled", "budget_tokens": HUGE}},
    ),
    "edits of nonsense": (MESSAGES, {"max_tokens": 1, "messages": USER, "context_management": {"edits": [[DEEP]]}}),
    "a namespace in a namespace": (
        RESPONSES,
        {
            "input": "x",
            "tools": [{"type": "namespace", "name": "a", "tools": [{"type": "namespace", "name": "b", "tools": []}]}],
        },
    ),
    "a namespace without a name": (RESPONSES, {"input": "x", "tools": [{"type": "namespace", "tools": [1]}]}),
    "a choice of nonsense": (RESPONSES, {"input": "x", "tool_choice": {"type": "allowed_tools", "tools": [DEEP, 1]}}),
    "an unknown parent": (RESPONSES, {"input": "x", "previous_response_id": "x" * 1_000_000}),
    "an unknown item": (RESPONSES, {"input": [{"type": "item_reference"}]}),
    "much metadata": (RESPONSES, {"input": "x", "metadata": {str(i): "v" for i in range(17)}}),
    "a format of nonsense": ("/api/chat", {"model": "coder", "messages": USER, "format": 7}),
    "deep arguments": (
        "/api/chat",
        {
            "model": "coder",
            "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}, *USER],
        },
    ),
    "a context of everything": ("/api/generate", {"model": "coder", "prompt": "x", "context": [1] * 100_000}),
    "a life of nonsense": ("/api/chat", {"model": "coder", "messages": USER, "keep_alive": "1" * 1000}),
    "huge num_ctx": ("/api/chat", {"model": "coder", "messages": USER, "options": {"num_ctx": 2**62}}),
    "embedding of nothing": ("/api/embed", {"model": "coder", "input": ["", ""]}),
    "huge dimensions": ("/api/embed", {"model": "coder", "input": "x", "dimensions": 2**62}),
    "a schema of no JSON": (CHAT, {"messages": USER, "json_schema": "text"}),
    "a schema of no JSON beside tools": (CHAT, {"messages": USER, "tools": TOOLS, "response_format": UNREADABLE}),
    "a schema without end": (CHAT, {"messages": USER, "json_schema": "[" * 100_000}),
    "a role of a million letters": (CHAT, {"messages": [{"role": LONG, "content": "x"}]}),
    "a part of a million letters": (CHAT, {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    "a format of a million letters": (CHAT, {"messages": USER, "response_format": {"type": LONG}}),
    "a field of a million letters": (CHAT, {"messages": USER, LONG: 1}),
    "a field of a million letters in a format": (
        CHAT,
        {"messages": USER, "response_format": {"type": "text", LONG: 1}},
    ),
    "a variable of a million letters": (CHAT, {"messages": USER, "chat_template_kwargs": {LONG: 1}}),
    "a grammar of a million letters": (CHAT, {"messages": USER, "structured_outputs": {LONG: 1}}),
    "an encoding of a million letters": ("/v1/embeddings", {"model": "coder", "input": "x", "encoding_format": LONG}),
    "scores of unlike numbers": ("/v1/score", {"model": "ranker", "text_1": ["a"] * 3, "text_2": ["b"] * 2}),
    "huge top_n": ("/v1/rerank", {"model": "ranker", "query": "q", "documents": ["a"], "top_n": -HUGE}),
}


@pytest.mark.parametrize("name", ODD)
def test_nonsense_is_refused_in_a_sentence(client: httpx.Client, name: str) -> None:
    path, body = ODD[name]
    got = post(client, path, body)
    error = got.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert got.status_code in (400, 404, 413) and message and len(message) < 1000, got.text[:500]
    assert len(got.content) < 2000, "the field's name is short too"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_biases_are_counted_before_they_are_looked_at(client: httpx.Client, path: str) -> None:
    body = {"model": "coder", "messages": USER, "prompt": "x", "logit_bias": {f"no token {i}": 1 for i in range(2000)}}
    del body["prompt" if path == CHAT else "messages"]
    got = client.post(path, json=body)
    assert got.status_code == 400 and "2000 entries" in got.text


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES, COMPLETION, INFILL, "/api/chat", "/api/embed", "/v1/rerank"])
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'"x"', b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe"])
def test_what_is_no_body_is_refused(client: httpx.Client, path: str, body: bytes) -> None:
    got = post(client, path, body)
    assert got.status_code == 400, got.text[:300]


# ---- many at once -------------------------------------------------------------------------------------------


def test_a_body_that_is_cut_off_goes_with_its_error() -> None:
    """An error may live as long as Python's collector of cycles lets it; the memory counts as free at once."""
    messages = [{"type": "http.request", "body": bytes(1000), "more_body": True}] * 3 + [{"type": "http.disconnect"}]
    left = iter(messages)

    async def receive() -> Any:
        return next(left)

    scope = {"method": "POST", "path": "/", "headers": [], CONNECTION: MagicMock()}
    request = HttpRequest(scope, receive, MagicMock(), BodyLimits(10_000, 10.0, BodyMemory(10_000), set()))
    with pytest.raises(ClientGone) as gone:
        asyncio.run(request.body())
    frames = [frame for frame, _ in walk_tb(gone.tb) if frame.f_code.co_name in ("_read", "_joined")]
    assert [frame.f_locals["read"] for frame in frames] == [b"", b""]


def test_bodies_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "host_total_bytes", lambda: 8 << 20)
    body = json.dumps({"prompt": "HANG@1", "stream": True}).encode().ljust(700_000)
    largest = {"max_body_bytes": 1 << 20, "max_image_body_bytes": 1 << 20, "max_audio_body_bytes": 1 << 20}
    limits = Settings(port=0, log_interval_s=0, **largest)
    with client_of(ScriptedEngine(), settings=limits) as client:
        with client.stream("POST", "/v1/completions", content=body) as first:
            assert first.status_code == 200
            refused = client.post("/tokenize", content=b'{"prompt": "x"}'.ljust(700_000))
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "too_many_bodies"
            assert client.post("/tokenize", json={"prompt": "x"}).status_code == 200
        until(lambda: client.post("/tokenize", content=b'{"prompt": "x"}'.ljust(700_000)).status_code == 200)
        for _ in range(5):  # none is forgotten
            assert client.post("/tokenize", content=b"{".ljust(700_000)).status_code == 400


def test_a_client_that_leaves_after_a_large_body_is_noticed(client: httpx.Client, server: HttpServer) -> None:
    for stream in (True, False):
        body = json.dumps({"prompt": "HANG@1", "stream": stream}).encode().ljust(8_000_000)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1]))) as connection:
            connection.sendall(head + body)
            until(lambda: len(server.state.admission.active) == 1)
        until(lambda: not server.state.admission.active)


@pytest.mark.parametrize(
    "more", [b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n", b"POST /x HTTP/1.1\r\ncontent-length: 9\r\n\r\n"]
)
def test_a_client_that_leaves_after_a_pipelined_request_is_noticed(server: HttpServer, more: bytes) -> None:
    body = json.dumps({"prompt": "HANG@1"}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1]))) as connection:
        connection.sendall(head + body)
        until(lambda: len(server.state.admission.active) == 1)
        connection.sendall(more)
        time.sleep(0.1)  # it has been read before the connection ends
    until(lambda: not server.state.admission.active)


def test_pipelined_requests_without_end_are_not_all_read(server: HttpServer) -> None:
    body = json.dumps({"prompt": "HANG@1"}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1]))) as connection:
        connection.sendall(head + body)
        until(lambda: len(server.state.admission.active) == 1)
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(2_000_000):
                connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100)
        (protocol,) = [each for each in server._uvicorn.server_state.connections if each.pipeline]
        assert len(protocol.pipeline) < 10_000, "what came in one read, and no more"
        server.state.admission.cancel_all()
    until(lambda: not server.state.admission.active)


def test_the_description_is_made_once(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.get("/openapi.json").json()
    monkeypatch.setattr(openapi, "document", lambda routes: pytest.fail("made again"))
    assert client.get("/openapi.json").json() == first


# ---- keys ---------------------------------------------------------------------------------------------------


def test_a_flood_of_unknown_keys_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (key,) = many_keys(tmp_path, ["ci"]).values()
    with keyed(tmp_path) as (server, client):
        state = server.state
        assert client.post(CHAT, json={"messages": USER}, headers=by(key)).status_code == 200
        n_lines = len(caplog.records)
        for i in range(2000):
            sent = {"authorization": f"Bearer sk-tahr-{i}{'x' * (i % 60) * 100}"}
            assert client.post(CHAT, json={"messages": USER}, headers=sent).status_code == 401
        state.write_usage()
        assert len(state.keys) == 1 and not state.admission.active and not state.admission._n_active
        assert len(state.rate_limits.of_keys._buckets) == 0 and len(state.ledger._today) == 1
        assert state._file and state._file.read("SELECT key, requests FROM usage") == [("ci", 1)]
        assert len(caplog.records) == n_lines
        assert client.post(CHAT, json={"messages": USER}, headers=by(key)).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"Bearer",
        b"Bearer " + b"\xff" * 100,
        b"Bearer \xed\xa0\x80",
        b"Bearer (none)",
        b"Bearer (api-key 1)",
        b"Bearer ci",
    ],
)
def test_names_and_bytes_are_no_keys(sent: bytes, tmp_path: Path) -> None:
    many_keys(tmp_path, ["ci"])
    with keyed(tmp_path, api_keys=("given",)) as (_, client):
        assert client.get("/v1/usage", headers={b"authorization": sent}).status_code == 401
        assert client.get("/v1/usage", headers={b"x-api-key": sent}).status_code == 401
        assert client.get("/v1/usage", headers={"authorization": "Bearer given"}).status_code == 200


def test_one_key_cannot_take_all_places(tmp_path: Path) -> None:
    greedy, other = many_keys(tmp_path, ["greedy", "other"]).values()
    hanging = {"messages": [{"role": "user", "content": "HANG@1"}]}
    with keyed(tmp_path, max_requests=16) as (server, client):
        codes: list[int] = []

        def ask() -> None:
            codes.append(httpx.post(server.address + CHAT, json=hanging, headers=by(greedy), timeout=30).status_code)

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        until(lambda: len(codes) == 16)
        refused = client.post(CHAT, json=hanging, headers=by(greedy))
        assert refused.status_code == 503 and "free places are for other keys" in refused.text
        for _ in range(5):
            assert client.post(CHAT, json={"messages": USER}, headers=by(other)).status_code == 200
        server.state.admission.cancel_all()
        for thread in threads:
            thread.join()
        assert codes[:16] == [503] * 16


def test_another_key_sees_nothing_of_ones_usage_and_responses(tmp_path: Path) -> None:
    ana, ben = many_keys(tmp_path, ["ana", "ben"]).values()
    with keyed(tmp_path) as (_, client):
        made = client.post(RESPONSES, json={"input": "secret"}, headers=by(ana)).json()["id"]
        assert client.get(f"{RESPONSES}/{made}", headers=by(ana)).status_code == 200
        assert client.get(f"{RESPONSES}/{made}", headers=by(ben)).status_code == 404
        assert client.get("/v1/usage", headers=by(ben)).json()["data"] == []


@pytest.mark.parametrize(("origins", "keys", "status"), [(("*",), (), 403), (("https://ui.example",), (), 202)])
@pytest.mark.parametrize("path", ["/drain", "/api/delete"])
def test_a_page_of_any_site_does_not_change_a_server(
    origins: tuple[str, ...], keys: tuple[str, ...], status: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--cors-origin '*'` lets pages chat; any of them could end the server of whoever looked at it."""
    settings = Settings(port=0, log_interval_s=0, cors_origins=origins, api_keys=keys)
    with serving(ScriptedEngine(), settings=settings) as server:
        monkeypatch.setattr(server.state, "drain", lambda: None)
        method = "POST" if path == "/drain" else "DELETE"

        def ask(origin: str) -> int:
            sent = httpx.request(method, server.address + path, json={"model": "x"}, headers={"origin": origin})
            return sent.status_code

        refused = ask("https://ui.example")
        assert refused == 403 if status == 403 else refused != 403
        assert ask(server.address) != 403, "the page of the server itself"
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        asked = httpx.post(server.address + CHAT, json=chat, headers={"origin": "https://ui.example"})
        assert asked.status_code == 200

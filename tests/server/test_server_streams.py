"""Streams: the same bytes as without, one end, errors that harm nobody else, and clients that leave."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of, reply_to, serving
from tahr import AsyncLLM
from tahr.server.lifecycle import HttpServer
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.state.settings import Settings

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[HttpServer]:
    with serving(engine, settings=Settings(port=0, keep_alive_s=0.2, log_interval_s=0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=20) as made:
        yield made


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def raw(client: httpx.Client, path: str, body: dict[str, Any]) -> str:
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return response.text


def events(text: str) -> list[dict[str, Any]]:
    """A strict reader: events and comments, [DONE] exactly once and last."""
    blocks = text.split("\n\n")
    assert blocks.pop() == "", "the last event is complete"
    assert all(block.startswith(("data: ", ": ")) and "\n" not in block for block in blocks)
    data = [block[6:] for block in blocks if block.startswith("data: ")]
    assert data.count("[DONE]") == 1 and data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def test_a_chat_stream_event_by_event(client: httpx.Client) -> None:
    made = events(raw(client, CHAT, chat("hello", max_tokens=3)))
    assert len({each["id"] for each in made}) == 1 and made[0]["id"].startswith("chatcmpl-")
    assert all(each["object"] == "chat.completion.chunk" and len(each["choices"]) == 1 for each in made)
    choices = [each["choices"][0] for each in made]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {} and choices[-1]["finish_reason"] == "length"
    assert all(c["finish_reason"] is None for c in choices[:-1])
    assert "".join(c["delta"].get("content", "") for c in choices) == "You"
    assert not any("usage" in each for each in made)


def test_usage_comes_last_if_asked_for(client: httpx.Client) -> None:
    body = chat("hello", max_tokens=3)
    made = events(raw(client, CHAT, {**body, "stream_options": {"include_usage": True}}))
    assert made[-1]["choices"] == [] and made[-1]["usage"] == client.post(CHAT, json=body).json()["usage"]
    assert all(each["usage"] is None for each in made[:-1])
    assert "usage" not in raw(client, CHAT, {**body, "stream_options": {"include_usage": False}})


def joined(path: str, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client puts together from a stream, in the shape of the whole answer."""
    whole: dict[int, dict[str, Any]] = {}
    for choice in (choice for each in made for choice in each["choices"]):
        got = whole.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
        got["text"] += choice["delta"].get("content", "") if path == CHAT else choice["text"]
        got["finish_reason"] = choice["finish_reason"] or got["finish_reason"]
        for name, values in (choice["logprobs"] or {}).items():
            got["logprobs"] = got["logprobs"] or {}
            if isinstance(values, list):
                got["logprobs"].setdefault(name, []).extend(values)
            else:
                got["logprobs"][name] = values
    return [whole[index] for index in sorted(whole)]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "more",
    [
        {}, {"n": 3}, {"max_tokens": 1}, {"max_tokens": 11}, {"stop": "nothing"}, {"stop": ["naï", "hello”"]},
        {"stop": "said “h"}, {"logprobs": 2}, {"logprobs": 0, "n": 2}, {"logprobs": 1, "stop": "vely"}, {"echo": True},
        {"echo": True, "logprobs": 1, "n": 2}, {"echo": True, "max_tokens": 0},
        {"prompt": ["a", "bc", "d" * 40], "n": 2},
        {"ignore_eos": True, "max_tokens": 80, "logprobs": 0},
        {"prompt": [104, 101, 108, 108, 111]}, {"prompt": [[104, 105], [256, 111, 104]], "logprobs": 1, "n": 2},
        {"prompt": [104, 105, 200], "echo": True, "logprobs": 0}, {"prompt": ["x", "y"], "echo": True, "stop": "y"},
        {"seed": 5, "n": 2, "temperature": 1.5}, {"stop": ["”", "q"], "n": 3, "logprobs": 1}, {"min_tokens": 5},
        {"stop_token_ids": [108], "logprobs": 1}, {"max_tokens": 14, "n": 2, "logprobs": 20},
        {"logit_bias": {"104": 3}, "banned_tokens": [105]}, {"cache_prompt": False}, {"priority": 2, "cache_salt": "s"},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "top_k": 5, "min_p": 0.1},
    ],
)  # fmt: skip
def test_a_stream_is_the_whole_answer_in_pieces(client: httpx.Client, path: str, more: dict[str, Any]) -> None:
    if path == CHAT and (more.keys() & {"echo", "prompt"}):
        pytest.skip("only completions have this")
    body = {"prompt": "hello", **more} if path == TEXT else chat("hello", **more)
    if path == CHAT and "logprobs" in more:
        body |= {"logprobs": True, "top_logprobs": more["logprobs"]}
    whole = client.post(path, json=body).json()
    for choice in whole["choices"]:
        choice["text"] = choice["message"]["content"] if path == CHAT else choice["text"]
    wanted = [{name: c[name] for name in ("text", "logprobs", "finish_reason")} for c in whole["choices"]]
    made = events(raw(client, path, {**body, "stream_options": {"include_usage": True}}))
    assert made.pop()["usage"] == whole["usage"]
    assert joined(path, made) == wanted
    assert joined(path, events(raw(client, path, body))) == wanted


def test_an_error_in_a_stream_is_an_event_and_not_a_stop(client: httpx.Client) -> None:
    made = events(raw(client, CHAT, chat("FAIL@3")))
    assert (
        made[-1]["error"]["type"] == "internal_server_error" and made[-1]["error"]["message"] == "The script says so."
    )
    assert not any(choice["finish_reason"] for each in made[:-1] for choice in each["choices"])
    whole = client.post(CHAT, json=chat("FAIL@3"))
    assert whole.status_code == 500 and whole.json()["error"]["message"] == "The script says so."


def test_one_of_several_prompts_fails(client: httpx.Client) -> None:
    body = {"prompt": ["fine", "FAIL@2"]}
    assert client.post(TEXT, json=body).status_code == 500
    assert "error" in events(raw(client, TEXT, body))[-1]


def test_one_failing_request_of_32_leaves_31_alone(server: HttpServer, engine: ScriptedEngine) -> None:
    async def one(client: httpx.AsyncClient, i: int) -> tuple[int, str]:
        text = "FAIL@4" if i == 13 else f"request {i} SLOW"
        response = await client.post(CHAT, json=chat(text, stream=bool(i % 2)))
        if not i % 2:
            return response.status_code, response.json()["choices"][0]["message"]["content"]
        made = events(response.text)
        broken = 500 if "error" in made[-1] else 200
        return broken, "".join(c["delta"].get("content", "") for e in made for c in e.get("choices", ()))

    async def all_of_them() -> list[tuple[int, str]]:
        async with httpx.AsyncClient(base_url=server.address, timeout=60, limits=httpx.Limits()) as client:
            return await asyncio.gather(*(one(client, i) for i in range(32)))

    results = asyncio.run(all_of_them())
    assert results[13][0] == 500
    for i, result in enumerate(results):
        assert i == 13 or result == (200, reply_to(f"request {i} SLOW"))
    assert not engine.live


def test_comments_keep_a_silent_stream_alive(server: HttpServer) -> None:
    seen = ""
    with httpx.stream("POST", server.address + CHAT, json=chat("HANG@2", stream=True), timeout=5) as response:
        for part in response.iter_text():
            seen += part
            if seen.count(": keep-alive\n\n") >= 2:
                break
    assert '"role":"assistant"' in seen


def test_comments_keep_a_buffered_stream_alive_while_it_is_generated(server: HttpServer) -> None:
    body = chat("SLOW " + "word " * 20, stream=True, buffer=True, guided_regex=".*", max_tokens=200)
    with httpx.stream("POST", server.address + CHAT, json=body, timeout=20) as response:
        parts = response.read().decode().split("\n\n")
    assert ": keep-alive" in parts and sum('"content":"' in part for part in parts) == 2  # the first is empty


def test_progress_of_a_prompt(server: HttpServer) -> None:
    found: list[dict[str, Any]] = []
    body = chat("HANG@0", stream=True, return_progress=True)
    with httpx.stream("POST", server.address + CHAT, json=body, timeout=5) as response:
        for line in response.iter_lines():
            if "prompt_progress" in line:
                found.append(json.loads(line[6:])["prompt_progress"])
            if len(found) == 2:
                break
    assert found[0]["total"] == len("[user]HANG@0\n[assistant]") + 1 and found[0]["cache"] == 3
    assert found[0]["processed"] < found[1]["processed"] <= found[1]["total"]


def test_progress_is_told_of_every_chunk(stories: Path) -> None:
    llm = AsyncLLM(str(stories), prefill_chunk_size=8)
    with client_of(LlmEngine(llm)) as client:
        made = client.post(TEXT, json={"prompt": [5] * 60, "max_tokens": 1, "stream": True, "return_progress": True})
    shown = [json.loads(line[6:]) for line in made.text.splitlines() if "prompt_progress" in line]
    assert [each["prompt_progress"]["processed"] for each in shown] == [0, 8, 16, 24, 32, 40, 48, 56, 60]
    times = [each["prompt_progress"]["time_ms"] for each in shown]
    assert times == sorted(times)


def until(condition: Any, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("at", ["HANG@0", "HANG@5", "SLOW"])
def test_a_client_that_leaves_frees_its_sequence(
    server: HttpServer, engine: ScriptedEngine, path: str, stream: bool, at: str
) -> None:
    before = len(engine.seen)
    text = at + " leaving" * 5
    body = json.dumps(chat(text, stream=stream) if path == CHAT else {"prompt": text, "stream": stream}).encode()
    with socket.create_connection(server.address.removeprefix("http://").split(":")) as connection:  # type: ignore[arg-type]
        connection.sendall(
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
        )
        assert until(lambda: len(engine.seen) > before)
        if stream:
            connection.recv(64)
        assert engine.live
    assert until(lambda: not engine.live, 1.0) and engine.seen[-1].aborted


def request_of(path: str, body: dict[str, Any], version: bytes = b"1.1") -> bytes:
    text = json.dumps(body).encode()
    head = b"POST %b HTTP/%b\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    return head % (path.encode(), version, len(text)) + text


def half_closed(server: HttpServer, data: bytes) -> bytes:
    """What a client gets that sends this and says that it sends no more, as `nc -N` does."""
    address = server.address.removeprefix("http://").split(":")
    with socket.create_connection(address, timeout=10) as connection:  # type: ignore[arg-type]
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        reply = b""
        while part := connection.recv(65536):
            reply += part
    return reply


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("text", ["hello", "SLOW hello"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_no_more_gets_its_reply(
    server: HttpServer, stream: bool, text: str, version: bytes
) -> None:
    reply = half_closed(server, request_of(CHAT, chat(text, stream=stream), version))
    *interim, final = reply.split(b"HTTP/1.1 ")[1:]
    assert (final.startswith(b"200 ") and b"usage" in final) or b"[DONE]" in final
    assert interim in ([], [b"100 Continue\r\n\r\n"]) and (version == b"1.1" or not interim)


def test_a_stream_to_a_client_that_sends_no_more_stays_whole(server: HttpServer) -> None:
    """Whether somebody is still there is found out by a zero before the size of a chunk."""
    address = server.address.removeprefix("http://").split(":")
    with socket.create_connection(address, timeout=10) as connection:  # type: ignore[arg-type]
        connection.sendall(request_of(CHAT, chat("SLOW " * 5, stream=True)))
        head = connection.recv(64)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            head += part
    body, made = head.partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        n_bytes = int(size, 16)
        assert rest[n_bytes : n_bytes + 2] == b"\r\n"
        made += rest[:n_bytes]
        body = rest[n_bytes + 2 :]
    assert made.startswith(b"data: ") and made.endswith(b"data: [DONE]\n\n") and n_bytes == 0
    assert head.count(b"\r\n0") == 2, "the zero, and the end"


def test_a_client_that_sends_no_more_gets_all_its_replies(server: HttpServer) -> None:
    requested = request_of(CHAT, chat("SLOW hello")) + b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert half_closed(server, requested + requested).count(b"HTTP/1.1 200 OK") == 4
    assert half_closed(server, requested + requested[:50]) == b"", "its last request will never be whole"


@pytest.mark.parametrize("n_behind", [0, 1])
def test_a_client_that_sends_no_more_and_then_leaves_frees_its_sequence(
    server: HttpServer, engine: ScriptedEngine, n_behind: int
) -> None:
    text = f"HANG@1 with {n_behind} behind"
    with socket.create_connection(server.address.removeprefix("http://").split(":")) as connection:  # type: ignore[arg-type]
        connection.sendall(request_of(TEXT, {"prompt": text}) + b"GET /version HTTP/1.1\r\n\r\n" * n_behind)
        connection.shutdown(socket.SHUT_WR)
        assert until(lambda: any(text in reply.text for reply in engine.seen))
        (mine,) = [reply for reply in engine.seen if text in reply.text]
        assert not until(lambda: mine.aborted, 0.7), "it may still wait for its reply"
    assert until(lambda: mine.aborted, 2.0)


def test_a_client_that_never_reads_frees_its_sequence() -> None:
    engine = ScriptedEngine("x" * 1000, context_size=200_000)  # which every event names: buffers are full soon
    settings = Settings(port=0, log_interval_s=0, keep_alive_s=0.1, reader_timeout_s=0.3)
    body = json.dumps({"prompt": "x", "max_tokens": 150_000, "ignore_eos": True, "stream": True}).encode()
    with serving(engine, settings=settings) as running, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(running.address.rsplit(":", 1)[1])))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert until(lambda: bool(engine.live))
        assert until(lambda: not engine.live and not running.state.admission.active, 10)
        assert engine.seen[-1].aborted and httpx.get(running.address + "/health").status_code == 200


def test_a_client_that_reads_slowly_gets_all_of_it_in_order() -> None:
    engine = ScriptedEngine("x" * 1000, context_size=20_000)
    requested = {"prompt": "x", "max_tokens": 5000, "ignore_eos": True}
    body = json.dumps({**requested, "stream": True}).encode()
    with serving(engine, settings=Settings(port=0, log_interval_s=0)) as running, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(running.address.rsplit(":", 1)[1])))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        time.sleep(0.5)  # meanwhile the system takes a part of an event and then nothing
        response = HTTPResponse(connection)
        response.begin()
        made = events(response.read().decode())
        whole = httpx.post(running.address + TEXT, json=requested).json()["choices"][0]["text"]
    assert "".join(choice["text"] for event in made for choice in event["choices"]) == whole


def test_a_client_that_leaves_in_the_middle_of_its_body(server: HttpServer, client: httpx.Client) -> None:
    with socket.create_connection(server.address.removeprefix("http://").split(":")) as connection:  # type: ignore[arg-type]
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
    assert client.get("/health").status_code == 200


def test_32_at_once_all_complete(server: HttpServer) -> None:
    async def read(client: httpx.AsyncClient, i: int) -> AsyncIterator[str]:
        async with client.stream("POST", CHAT, json=chat(f"number {i}", stream=True)) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        yield choice["delta"].get("content", "")

    async def main() -> list[str]:
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:

            async def one(i: int) -> str:
                return "".join([piece async for piece in read(client, i)])

            return await asyncio.gather(*(one(i) for i in range(32)))

    assert asyncio.run(main()) == [reply_to(f"number {i}") for i in range(32)]


def test_a_client_of_http_1_0_gets_events_without_chunks(server: HttpServer, client: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 3}
    data = json.dumps({**body, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=10) as made:
        made.sendall(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (TEXT.encode(), len(data), data))
        head, _, sent = b"".join(iter(lambda: made.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    text = "".join(each["choices"][0]["text"] for each in events(sent.decode()))
    assert text == client.post(TEXT, json=body).json()["choices"][0]["text"]

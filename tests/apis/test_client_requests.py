"""Requests as Open WebUI and LibreChat document them, replayed: lists, streamed chats, titles, tools, embeddings."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scripted_engine import serving
from scripted_model import Message, ScriptedModel, call, text_of
from tahr.server.state.settings import Settings

KEY = {"authorization": "Bearer secret"}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HELLO = [{"role": "user", "content": "Hello"}]
TITLE = "### Task:\nGenerate a concise, 3-5 word title for this conversation."


def play(messages: list[Message], tools: list[dict[str, Any]]) -> str:
    if "title" in text_of(messages[0]):
        return '{"title": "A greeting"}'
    if tools and messages[-1]["role"] == "user":
        return call("get_weather", city="Rome")
    return f"You said: {text_of(messages[-1])}"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    settings = Settings(port=0, log_interval_s=0, api_keys=("secret",))
    with serving(ScriptedModel(play), settings=settings) as running:
        yield httpx.Client(base_url=running.address, headers=KEY)


def streamed(client: httpx.Client, body: dict[str, Any], **headers: str) -> tuple[str, list[dict[str, Any]]]:
    """The text of a streamed reply, and all its events."""
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"]), events


def whole(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


# ---- Open WebUI -----------------------------------------------------------------------------------------------


def test_open_webui_lists_models(client: httpx.Client) -> None:
    reply = client.get("/v1/models", headers={"x-openwebui-user-name": "Someone", "x-openwebui-user-role": "admin"})
    assert [each["id"] for each in reply.json()["data"]] == ["scripted"]
    assert reply.json()["object"] == "list"
    assert client.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_open_webui_chats_with_all_its_parameters(client: httpx.Client) -> None:
    body = {
        "model": "scripted", "messages": [{"role": "system", "content": "Be kind."}, *HELLO], "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0.8, "top_p": 0.9, "max_tokens": 400,
        "frequency_penalty": 0.5, "presence_penalty": 0.1, "seed": 42, "stop": ["###"], "logit_bias": {"65": 5},
        "reasoning_effort": None, "top_k": 40, "min_p": 0.05, "repeat_penalty": 1.1,
    }  # fmt: skip
    text, events = streamed(client, body, **{"x-openwebui-chat-id": "c1"})
    assert text == "You said: Hello"
    assert events[-1]["usage"]["completion_tokens"] > 0 and events[-1]["choices"] == []


def test_open_webui_asks_for_a_title(client: httpx.Client) -> None:
    body = {
        "model": "scripted", "messages": [{"role": "user", "content": TITLE}], "stream": False,
        "max_completion_tokens": 1000,
    }  # fmt: skip
    assert json.loads(whole(client, body)["content"]) == {"title": "A greeting"}


def test_open_webui_calls_tools_natively(client: httpx.Client) -> None:
    body: dict[str, Any] = {
        "model": "scripted", "messages": HELLO, "stream": True, "tools": [{"type": "function", "function": TOOL}],
    }  # fmt: skip
    _, events = streamed(client, body)
    parts = [part for e in events for c in e["choices"] for part in c["delta"].get("tool_calls", ())]
    assert json.loads("".join(part["function"].get("arguments", "") for part in parts)) == {"city": "Rome"}
    # The deltas are put together and sent back with their index.
    called = {
        "index": 0, "id": parts[0]["id"], "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": parts[0]["id"], "content": "31 degrees"}
    more = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [called]}, result]
    assert streamed(client, {**body, "messages": more})[0] == "You said: 31 degrees"


def test_open_webui_embeds_for_retrieval(client: httpx.Client) -> None:
    reply = client.post("/v1/embeddings", json={"input": ["a", "b"], "model": "scripted"})
    assert reply.status_code == 200 and [each["index"] for each in reply.json()["data"]] == [0, 1]


# ---- LibreChat ------------------------------------------------------------------------------------------------

DEFAULTS = {
    "model": "scripted", "temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0,
    "user": "64f1c0ffee",
}  # fmt: skip


def test_librechat_lists_models(client: httpx.Client) -> None:
    assert client.get("/v1/models", params={"user": "64f1c0ffee"}).json()["data"][0]["object"] == "model"


def test_librechat_chats(client: httpx.Client) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    for messages in (HELLO, parts):
        body = {**DEFAULTS, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        assert streamed(client, body)[0] == "You said: Hello"


def test_librechat_asks_for_a_title(client: httpx.Client) -> None:
    title = [{"role": "user", "content": "Write a concise title for this conversation."}]
    body = {**DEFAULTS, "messages": title, "temperature": 0.2, "max_tokens": 75}
    assert "A greeting" in whole(client, body)["content"]


def test_librechat_agents_call_tools(client: httpx.Client) -> None:
    body = {
        **DEFAULTS, "messages": HELLO, "stream": True, "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": TOOL}], "tool_choice": "auto", "parallel_tool_calls": False,
    }  # fmt: skip
    _, events = streamed(client, body)
    assert [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]] == ["tool_calls"]

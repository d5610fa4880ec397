"""Marks of the prefix cache in Anthropic's API: accepted where it has them, counted, refused where they are odd."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of
from serve_process import served
from tool_replies import TOOL_TEMPLATE

MESSAGES = "/v1/messages"
MARK = {"type": "ephemeral"}
BLOCK = {"type": "text", "text": "hello", "cache_control": MARK}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [BLOCK]}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
PLACES: dict[str, dict[str, Any]] = {
    "body": {"cache_control": MARK},
    "system": {"system": [BLOCK]},
    "message": {"messages": [{"role": "user", "content": [BLOCK]}]},
    "tool": {"tools": [{**TOOL, "cache_control": {**MARK, "ttl": "1h"}}]},
    "result": {
        "tools": [TOOL],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [RESULT]},
        ],
    },
}


def body_of(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **more}


def counted(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    made = body_of(**body)
    del made["max_tokens"]
    return client.post(f"{MESSAGES}/count_tokens", json=made)


@pytest.mark.parametrize("place", PLACES)
def test_a_mark_anywhere_counts(place: str) -> None:
    engine = ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)
    engine.stats.page_size, engine.stats.prefix_enabled = 8, True
    with client_of(engine) as client:
        reply = client.post(MESSAGES, json=body_of(**PLACES[place]))
        assert reply.status_code == 200, reply.text
        usage = reply.json()["usage"]
        n_prompt = len(engine.seen[-1].tokens)
        assert usage["cache_read_input_tokens"] == 3 and usage["cache_creation_input_tokens"] == n_prompt // 8 * 8 - 3
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(usage[name] for name in parts) == n_prompt
        assert counted(client, PLACES[place]).status_code == 200
        engine.stats.prefix_enabled = False
        usage = client.post(MESSAGES, json=body_of(**PLACES[place])).json()["usage"]
        assert usage["cache_creation_input_tokens"] == 0, "nothing is kept"


@pytest.mark.parametrize(
    "mark", [{"type": "forever"}, {"type": "ephemeral", "ttl": "2d"}, {"ttl": "5m"}, "ephemeral", 1]
)
def test_marks_that_say_something_else(mark: Any) -> None:
    with client_of(ScriptedEngine()) as client:
        for body in ({"cache_control": mark}, {"system": [{**BLOCK, "cache_control": mark}]}):
            for refused in (client.post(MESSAGES, json=body_of(**body)), counted(client, body)):
                assert refused.status_code == 400 and "cache_control" in refused.text, refused.text
        assert client.post(MESSAGES, json=body_of(cache_control=None)).status_code == 200


def test_what_was_put_into_the_cache_is_read_from_it(stories: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    content = "Once upon a time there was a little goat who lived on a hill. " * 6

    def ask(address: str, **more: Any) -> dict[str, int]:
        made = body_of(**more) | {"messages": [{"role": "user", "content": content}]}
        usage: dict[str, int] = httpx.post(address + MESSAGES, json=made, timeout=60).json()["usage"]
        return usage

    with served(str(stories), "--chat-template", str(template)) as server:
        first, second, plain = ask(server.address, cache_control=MARK), ask(server.address, cache_control=MARK), None
        assert first["cache_creation_input_tokens"] > 30 and first["cache_read_input_tokens"] == 0
        assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
        assert second["cache_creation_input_tokens"] == 0
        plain = ask(server.address)
        assert plain["cache_read_input_tokens"] == second["cache_read_input_tokens"]
        assert plain["cache_creation_input_tokens"] == 0 and plain["input_tokens"] == second["input_tokens"]

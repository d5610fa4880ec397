"""Anthropic's API, against an engine that follows a script."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of
from tahr.server.state.settings import Settings
from tahr.text.tool_calls.json_text import loaded_prefix
from tool_replies import CALLS, ROME, THOUGHT, TOOL_TEMPLATE, WEATHER, WX, hermes

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": WX, "description": "The weather.", "input_schema": WEATHER["function"]["parameters"]}
NOW = {"name": "now", "input_schema": {"type": "object"}}
THINK = {"type": "enabled", "budget_tokens": 20}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    plain = ScriptedEngine("plain", context_size=256)
    settings = Settings(port=0, log_interval_s=0, api_keys=("secret",), keep_alive_s=0.05)
    headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
    with client_of(engine, plain, settings=settings, headers=headers) as made:
        yield made


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(MESSAGES, json={"messages": HELLO, "max_tokens": 300, **body})
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


def refused(client: httpx.Client, status: int = 400, **body: Any) -> str:
    response = client.post(MESSAGES, json={"messages": HELLO, "max_tokens": 300, **body})
    assert response.status_code == status, response.text
    made = response.json()
    assert (
        made["type"] == "error"
        and made["request_id"] == response.headers["request-id"]
        and set(made)
        == {
            "type",
            "error",
            "request_id",
        }
    )
    message: str = made["error"]["message"]
    assert len(message) < 400
    return message


def events(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    made = []
    with client.stream(
        "POST", MESSAGES, json={"messages": HELLO, "max_tokens": 300, "stream": True, **body}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for event in response.read().decode().removesuffix("\n\n").split("\n\n"):
            name, data = event.split("\n")
            made.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {made[-1]['type']}"
    return made


def put_together(made: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the events, whose order is checked."""
    assert made[0]["type"] == "message_start" and [each["type"] for each in made[-2:]] == [
        "message_delta",
        "message_stop",
    ]
    message, is_open = made[0]["message"], False
    for event in made[1:-2]:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append({**event["content_block"], "json": ""})
            is_open = True
        elif kind == "content_block_delta":
            assert is_open and event["index"] == len(message["content"]) - 1
            block, delta = message["content"][-1], event["delta"]
            name = {"input_json_delta": "json", "thinking_delta": "thinking", "text_delta": "text"}.get(delta["type"])
            if name is None:
                block["signature"] = delta["signature"]
            else:
                block[name] += delta["partial_json" if name == "json" else name]
        elif kind == "content_block_stop":
            assert is_open and event["index"] == len(message["content"]) - 1
            is_open = False
        else:
            assert kind == "ping"
    assert not is_open
    for block in message["content"]:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = loaded_prefix(text)
    last = made[-2]
    return {**message, **last["delta"], "usage": last["usage"]}


def same(whole: dict[str, Any], streamed: dict[str, Any]) -> bool:
    """Whether two replies to one script are equal but for their ids."""

    def bare(message: dict[str, Any]) -> dict[str, Any]:
        blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
        return {**message, "id": "", "content": blocks}

    return bare(whole) == bare(streamed)


# ---- the wire -----------------------------------------------------------------------------------------------


def test_a_message(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["Hi."]
    made = ask(client)
    assert made.pop("id").startswith("msg_")
    n_prompt = len(engine.seen[-1].tokens)
    assert made == {
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [{"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": n_prompt - 3,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "output_tokens": 4,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_events_in_their_order(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["Hi"]
    start, *rest = events(client)
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] == len(engine.seen[-1].tokens)
    usage = rest[-2].pop("usage")
    assert usage["input_tokens"] == len(engine.seen[-1].tokens) - 3 and usage["output_tokens"] == 3
    assert rest == [
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "H"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "i"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("script", "body"),
    [
        ("Hi, “naïve” \\ \n world", {}),
        ("", {}),
        (CALLS, {"tools": [TOOL, NOW]}),
        (CALLS, {"tools": [TOOL, NOW], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        (THOUGHT, {"thinking": THINK}),
        (THOUGHT, {"thinking": {**THINK, "display": "omitted"}}),
        (THOUGHT, {"thinking": {"type": "adaptive"}}),
        (THOUGHT, {}),
        (THOUGHT + THOUGHT, {}),  # thoughts nobody sees stand between two texts
        (THOUGHT.replace("Yes.", CALLS), {"thinking": THINK, "tools": [TOOL, NOW]}),
        ("one two three", {"stop_sequences": ["two", "three"]}),
        ("one two three", {"max_tokens": 5}),
        (hermes('{"city": "Rome", "days": 12, "where": {"lat": 1}}'), {"tools": [TOOL], "max_tokens": 75}),
        (hermes('{"city": "Rome", "days": 12}'), {"tools": [TOOL], "max_tokens": 50}),
        ("wordy " * 100, {"model": "plain", "max_tokens": 5000}),
    ],
)
def test_a_stream_is_the_whole(client: httpx.Client, engine: ScriptedEngine, script: str, body: dict[str, Any]) -> None:
    for each in (engine,):
        each.scripts = [script] * 2 if body.get("model") != "plain" else []
    whole = ask(client, **body)
    streamed = put_together(events(client, **body))
    assert same(whole, streamed), (whole, streamed)


def test_why_a_reply_ended(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["one two three"] * 2
    made = ask(client, stop_sequences=["three", "two"])
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", "two")
    assert made["content"][0]["text"] == "one "
    assert ask(client, max_tokens=5)["stop_reason"] == "max_tokens"
    engine.scripts = ["endless " * 1000]
    full = ask(client, max_tokens=100_000)
    assert full["stop_reason"] == "model_context_window_exceeded"
    assert full["usage"]["output_tokens"] == 4096 - len(engine.seen[-1].tokens)


def test_pings_while_there_is_nothing_to_send(client: httpx.Client) -> None:
    made = events(client, messages=[{"role": "user", "content": "SLOW"}], max_tokens=12)
    assert [each["type"] for each in made].count("ping") >= 1
    with client.stream(
        "POST", MESSAGES, json={"messages": [{"role": "user", "content": "HANG@1"}], "max_tokens": 9, "stream": True}
    ) as response:
        began, text = time.monotonic(), ""
        for piece in response.iter_text():
            text += piece
            if text.count("event: ping") > 3:
                break
        assert time.monotonic() - began < 5


# ---- messages -----------------------------------------------------------------------------------------------


def prompt(client: httpx.Client, engine: ScriptedEngine, **body: Any) -> str:
    ask(client, **body)
    return engine.seen[-1].text


def test_system_as_text_and_as_blocks(client: httpx.Client, engine: ScriptedEngine) -> None:
    billed = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"}
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    for system in ("Be brief.", [cached], [billed, cached]):
        assert prompt(client, engine, system=system).startswith("[system]Be brief.[user]hello")
    assert prompt(client, engine, system="").startswith("[user]hello")


def test_a_loop_of_tools_round_trips(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [THOUGHT.replace("Yes.", CALLS), "It is warm."]
    first = ask(client, tools=[TOOL, NOW], thinking=THINK)
    assert first["stop_reason"] == "tool_use"
    assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    rome, now = first["content"][2:]
    assert (rome["name"], rome["input"]) == (WX, json.loads(ROME)) and (now["name"], now["input"]) == ("now", {})
    results = [
        {"type": "tool_result", "tool_use_id": rome["id"], "content": "31 degrees"},
        {
            "type": "tool_result",
            "tool_use_id": now["id"],
            "content": [{"type": "text", "text": "no clock"}],
            "is_error": True,
        },
        {"type": "text", "text": "And now?"},
    ]
    history = [*HELLO, first, {"role": "user", "content": results}]
    second = ask(client, tools=[TOOL, NOW], messages=history)
    assert second["content"][0]["text"] == "It is warm." and second["stop_reason"] == "end_turn"
    seen = engine.seen[-1].text
    assert f"[tool]31 degrees({rome['id']})[tool]Error: no clock({now['id']})[user]And now?" in seen
    assert "[assistant]Let me look.<tool_call>" in seen and ROME in seen


def test_turns_of_one_side_are_one(client: httpx.Client, engine: ScriptedEngine) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "later"},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"},
    ]
    assert "[user]a\nb\nc\nlater[assistant]d[user]e[assistant]" in prompt(client, engine, messages=messages)


def test_images_and_others_are_refused_by_name(client: httpx.Client) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    for block in (image, {**image, "type": "document"}, {"type": "server_tool_use"}, {"type": "x" * 10_000}):
        message = refused(client, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, block]}])
        assert "messages[0].content[1]" in message
        assert ("an image" if block is image else repr(block["type"][:64])) in message
        result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
        assert "content[0].content[0]" in refused(client, messages=[{"role": "user", "content": [result]}])
    assert "system[0]" in refused(client, system=[image])


# ---- fields -------------------------------------------------------------------------------------------------


def test_sampling_reaches_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    ask(client, temperature=0.25, top_k=7, top_p=0.5, stop_sequences=["a", "b"], max_tokens=9)
    params = engine.seen[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.25, 7, 0.5, 9)
    assert params.stop == ("a", "b")


@pytest.mark.parametrize(
    ("choice", "mode"),
    [({"type": "any"}, True), ({"type": "tool", "name": "now"}, True), ({"type": "auto"}, False), (None, False)],
)
def test_required_tools_have_a_grammar(client: httpx.Client, engine: ScriptedEngine, choice: Any, mode: bool) -> None:
    engine.scripts = [hermes("{}", "now")]
    made = ask(client, tools=[TOOL, NOW], **({"tool_choice": choice} if choice else {}))
    assert made["stop_reason"] == "tool_use" and (engine.seen[-1].params.grammar is not None) == mode


def test_none_hides_the_tools(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes("{}", "now")]
    made = ask(client, tools=[NOW], tool_choice={"type": "none"})
    assert made["content"][0]["type"] == "text" and '"now"' not in engine.seen[-1].text


def test_examples_of_input_are_shown(client: httpx.Client, engine: ScriptedEngine) -> None:
    tool = {**TOOL, "type": "custom", "input_examples": [{"city": "Oslo"}], "cache_control": {"type": "ephemeral"}}
    assert "Oslo" in prompt(client, engine, tools=[tool])


def test_thinking_is_off_unless_it_is_asked_for(client: httpx.Client, engine: ScriptedEngine) -> None:
    for body in ({}, {"thinking": {"type": "disabled"}}, {"output_config": {"effort": "high"}}):
        assert prompt(client, engine, **body).endswith("</think>\n\n")
    assert not prompt(client, engine, thinking=THINK).endswith("</think>\n\n")
    assert engine.seen[-1].params.thinking_budget == 20
    ask(client, thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert engine.seen[-1].params.thinking_budget == 1024
    assert ask(client, model="plain", thinking=THINK, max_tokens=30)["content"][0]["type"] == "text"


def test_thoughts_nobody_asked_for_are_left_out(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [THOUGHT] * 2
    made = ask(client)
    assert [block["type"] for block in made["content"]] == ["text"] and made["content"][0]["text"] == "Yes."
    omitted = ask(client, thinking={**THINK, "display": "omitted"})
    assert omitted["content"][0] == {"type": "thinking", "thinking": "", "signature": "tahr"}
    assert omitted["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_a_schema_for_the_output(client: httpx.Client, engine: ScriptedEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for body in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        ask(client, **body)
        assert engine.seen[-1].params.grammar is not None


def test_fields_without_effect_are_taken(client: httpx.Client) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    ask(
        client,
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management=edits,
        mcp_servers=[],
        speed="standard",
    )
    ask(client, cache_control={"type": "ephemeral"}, user_profile_id="x", workspace_id="y", diagnostics=None)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages", {"messages": [{"role": "user"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
        ("content", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("tool_use_id", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
        ("name", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}),
        ("id", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a" * 300, "name": "n"}]}]}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -1}),
        ("max_tokens", {"max_tokens": None}),
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": -1}),
        ("stop_sequences", {"stop_sequences": ["x"] * 1000}),
        ("stop_sequences", {"stop_sequences": ["x" * 5000]}),
        ("stop_sequences", {"stop_sequences": "x"}),
        ("tools", {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}),
        ("tools", {"tools": [{"name": "f"}]}),
        ("tools", {"tools": [{"name": "f f", "input_schema": {}}]}),
        ("tools", {"tools": [{"name": "f", "input_schema": {}}] * 2}),
        ("tools", {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}),
        ("tools", {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]}]}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "tool"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "auto", "name": "now"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "tool", "name": "then"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "perhaps"}}),
        ("tool_choice", {"tool_choice": {"type": "any"}}),
        ("thinking", {"thinking": {"type": "enabled"}}),
        ("thinking", {"thinking": {"type": "disabled", "budget_tokens": 5}}),
        ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 0}}),
        ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 300}}),
        ("thinking", {"thinking": {"type": "sometimes"}}),
        ("thinking", {"thinking": {**THINK, "display": "loud"}}),
        ("output_config", {"output_config": {"effort": "none"}}),
        ("output_config", {"output_config": {"format": {"type": "text"}}}),
        (
            "output_format",
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
        ),
        ("context_management", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
        ("context_management", {"context_management": 5}),
        ("mcp_servers", {"mcp_servers": [{"type": "url"}]}),
        ("container", {"container": "c"}),
        ("inference_geo", {"inference_geo": "eu"}),
        ("speed", {"speed": "fast"}),
        ("thread", {"thread": {"type": "create"}}),
        ("compaction", {"compaction": {"type": "summarize"}}),
        ("fallbacks", {"fallbacks": "default"}),
        ("nonsense", {"nonsense": 1}),
    ],
)
def test_what_is_wrong_is_said_by_name(client: httpx.Client, name: str, body: dict[str, Any]) -> None:
    assert name in refused(client, **body)


# ---- counting, errors, sizes --------------------------------------------------------------------------------


def test_counting_tokens(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = {"messages": HELLO, "system": "Be brief.", "tools": [TOOL]}
    counted = client.post(COUNT, json=body).json()
    ask(client, **body)
    assert counted == {"input_tokens": len(engine.seen[-1].tokens)}
    long = client.post(COUNT, json={"messages": [{"role": "user", "content": "x" * 9000}]})
    assert long.json()["input_tokens"] > 9000, "a prompt may be counted that does not fit"
    assert client.post(COUNT, json={"messages": []}).status_code == 400


def test_errors_have_their_types(client: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 5}
    wrong = client.post(MESSAGES, json=body, headers={"x-api-key": "wrong"})
    assert wrong.status_code == 401 and wrong.json()["error"]["type"] == "authentication_error"
    assert "nobody" in refused(client, 404, model="nobody")
    lost, misused = client.post(f"{MESSAGES}/batches", json={}), client.get(MESSAGES)
    assert (lost.status_code, misused.status_code) == (404, 405)
    for each in (wrong, lost, misused):  # refused before their handler
        assert each.json()["type"] == "error" and each.json()["request_id"] == each.headers["request-id"]
    broken = client.post(MESSAGES, content=b"{")
    assert broken.status_code == 400 and broken.json()["error"]["type"] == "invalid_request_error"
    long = refused(client, messages=[{"role": "user", "content": "x" * 5000}])
    assert "maximum context length" in long
    thread = client.post(MESSAGES, json={**body, "thread": {"type": "create"}}).json()
    assert thread["error"]["details"] == {"error_code": "thread_unsupported_request"}
    failing = {"messages": [{"role": "user", "content": "FAIL@3"}], "max_tokens": 9}
    failed = client.post(MESSAGES, json=failing)
    assert failed.status_code == 500 and failed.json()["error"]["type"] == "api_error"
    assert failed.json()["request_id"] == failed.headers["request-id"] == failed.headers["x-request-id"]
    last = events(client, **failing)[-1]
    assert last["type"] == "error" and last["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": ""}] * 50_000,
        [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ""}] * 50_000}],
        [{"type": "tool_result", "tool_use_id": "a"}] * 10_000,
    ],
)
def test_many_blocks_cost_no_more_than_their_size(client: httpx.Client, content: list[Any]) -> None:
    began = time.monotonic()
    response = client.post(MESSAGES, json={"messages": [{"role": "user", "content": content}], "max_tokens": 5})
    assert response.status_code == 400 and "maximum context length" in response.text
    assert time.monotonic() - began < 10


def test_deep_nesting_is_refused(client: httpx.Client) -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": deep}
    assert "nested" in refused(client, messages=[{"role": "assistant", "content": [use]}, *HELLO])
    assert "nested" in refused(client, tools=[{"name": "f", "input_schema": deep}])
    text = (
        b'{"max_tokens": 5, "messages": [{"role": "user", "content": '
        + b'[{"type": "tool_result", "content": ' * 50_000
    )
    assert client.post(MESSAGES, content=text).status_code == 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {}),
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": {"b": [1, 2, {"c": 3', {"a": {"b": [1, 2, {}]}}),
        ('{"a": "x, {", "b": [1, 2], "c": tru', {"a": "x, {", "b": [1, 2]}),
        ("{'a': 1}", {}),
        ('{"a": "\\', {}),
        ("{" * 1000, {}),
    ],
)
def test_members_of_a_text_that_was_cut(text: str, value: dict[str, Any]) -> None:
    assert loaded_prefix(text) == value


def test_formats_are_refused_where_tokens_are_counted_too(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "output_format": {"type": "text"}}
    assert client.post(COUNT, json=body).status_code == 400

"""Tools and thinking over HTTP, with an engine that replies what it is told to."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.server.state.settings import Settings
from tool_replies import NOW, ROME, TOOL_TEMPLATE, WEATHER, WX, hermes

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    plain = ScriptedEngine("plain", context_size=4096)
    settings = Settings(port=0, log_interval_s=0, session_cache="memory")
    with serving(engine, plain, settings=settings) as server, httpx.Client(base_url=server.address) as made:
        yield made


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(CHAT, json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()["choices"][0]
    return made


def refused(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(CHAT, json={"messages": HELLO, **body})
    assert response.status_code == 400, response.text
    made: dict[str, Any] = response.json()["error"]
    return made


def streamed(client: httpx.Client, **body: Any) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
    """The message a client puts together, the finish reason, and all deltas."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": {}, "function_call": {}}
    deltas, reason = [], ""
    with client.stream("POST", CHAT, json={"messages": HELLO, "stream": True, **body}) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            deltas.append(delta)
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning_content") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for part in delta.get("tool_calls", ()):
                call = message["tool_calls"].setdefault(part["index"], {"arguments": ""})
                call.update({name: value for name, value in part.items() if name in ("id", "type")})
                call["arguments"] += part["function"]["arguments"]
                call.update({"name": part["function"]["name"]} if "name" in part["function"] else {})
            legacy = delta.get("function_call", {})
            for name, value in legacy.items():
                message["function_call"][name] = message["function_call"].get(name, "") + value
    return message, reason, deltas


REPLY = "Let me look.\n" + hermes(ROME) + "\n" + hermes("{}", "now")


def test_calls_in_a_message(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [REPLY]
    made = ask(client, tools=[WEATHER, NOW])
    assert made["finish_reason"] == "tool_calls" and made["message"]["content"] == "Let me look."
    first, second = made["message"]["tool_calls"]
    assert first["function"] == {"name": WX, "arguments": ROME} and first["type"] == "function"
    assert second["function"] == {"name": "now", "arguments": "{}"} and first["id"] != second["id"]
    assert first["id"].startswith("call_") and '"get_weather"' in engine.seen[-1].text


def test_calls_in_a_stream_come_in_pieces_and_without_marks(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [REPLY]
    message, reason, deltas = streamed(client, tools=[WEATHER, NOW])
    assert reason == "tool_calls" and message["content"] == "Let me look."
    assert [(call["name"], call["arguments"]) for call in message["tool_calls"].values()] == [(WX, ROME), ("now", "{}")]
    assert sum("tool_calls" in delta for delta in deltas) > 10, "arguments come as they are generated"
    assert not any("tool_call>" in json.dumps(delta) for delta in deltas)


def test_calls_alone_have_no_content(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes("{}", "now")]
    made = ask(client, tools=[NOW])
    assert made["message"]["content"] is None and made["finish_reason"] == "tool_calls"


def test_without_tools_or_with_none_calls_are_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    for body in ({}, {"tools": [NOW], "tool_choice": "none"}):
        engine.scripts = [hermes("{}", "now")]
        made = ask(client, **body)
        assert made["message"]["content"] == hermes("{}", "now") and made["finish_reason"] == "stop"
        assert '"now"' not in engine.seen[-1].text, "tools that may not be called are not shown"


def test_one_call_where_they_may_not_be_parallel(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [REPLY]
    made = ask(client, tools=[WEATHER, NOW], parallel_tool_calls=False)
    assert len(made["message"]["tool_calls"]) == 1 and made["finish_reason"] == "tool_calls"
    assert engine.seen[-1].stats.n_generated_tokens < len(REPLY) - 20, "it ends with the first call"


def test_allowed_tools_are_the_ones_the_model_sees(client: httpx.Client, engine: ScriptedEngine) -> None:
    names = [{"type": "function", "function": {"name": "now"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    ask(client, tools=[WEATHER, NOW], tool_choice=choice)
    assert '"now"' in engine.seen[-1].text and WX not in engine.seen[-1].text


@pytest.mark.parametrize(
    ("script", "max_tokens", "reason", "n_calls"),
    [
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro', 300, "stop", 0),
        (hermes(ROME), 50, "length", 0),
        (hermes(ROME), 15, "length", 0),
        ("<tool_call>\n{'name': 'now'}\n</tool_call>", 300, "stop", 0),
        ('<tool_call>\n{"nome": "now"}\n</tool_call>', 300, "stop", 0),
        ("<tool_call>" * 20, 220, "length", 0),
        ("<tool_call>" * 20, 300, "stop", 0),
        ('{"name": "now", "arguments": {' * 9, 270, "length", 0),
    ],
)
def test_malformed_calls_end_with_a_true_reason(
    client: httpx.Client, engine: ScriptedEngine, script: str, max_tokens: int, reason: str, n_calls: int
) -> None:
    engine.scripts = [script] * 2
    made = ask(client, tools=[WEATHER, NOW], max_tokens=max_tokens)
    assert made["finish_reason"] == reason and len(made["message"].get("tool_calls", [])) == n_calls
    message, finished, _ = streamed(client, tools=[WEATHER, NOW], max_tokens=max_tokens)
    n_cut = len(message["tool_calls"]) - n_calls  # in a stream its pieces came before anybody knew
    assert finished == reason and n_cut == ("incomplete_tool_call" in made)
    assert message["content"] == (made["message"]["content"] or "") and "tool_call>" not in message["content"]


@pytest.mark.parametrize("n_tokens, name, arguments", [(45, "get_weather", ""), (65, "get_weather", '{"city": "Ro')])
def test_a_call_that_the_budget_cuts_is_no_call_and_is_told(
    client: httpx.Client, engine: ScriptedEngine, n_tokens: int, name: str, arguments: str
) -> None:
    """It was a call with half its arguments; where calls are required, its beginning was the content."""
    engine.scripts = [hermes(ROME)] * 4
    body = {"tools": [WEATHER], "max_tokens": n_tokens}
    made = ask(client, **body)
    assert made["finish_reason"] == "length" and made["message"]["content"] is None
    assert "tool_calls" not in made["message"]
    assert made["incomplete_tool_call"]["name"] == name
    assert made["incomplete_tool_call"]["arguments"].startswith(arguments)
    with client.stream("POST", CHAT, json={"messages": HELLO, "stream": True, **body}) as response:
        last = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")][-1]
    assert last["choices"][0]["incomplete_tool_call"] == {"index": 0}
    reply = client.post("/v1/responses", json={"input": "Hi", "tools": [{"type": "function", **WEATHER["function"]}]})
    assert [item["status"] for item in reply.json()["output"]] == ["completed"]
    tools = [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}]
    whole = {"max_tokens": n_tokens, "messages": HELLO, "tools": tools}
    assert client.post("/v1/messages", json=whole).json()["stop_reason"] == "max_tokens"


def test_nothing_but_whole_calls_comes_where_calls_are_required(client: httpx.Client, engine: ScriptedEngine) -> None:
    for n_tokens in range(1, len(hermes(ROME)) + 1):
        engine.scripts = [hermes(ROME)]
        made = ask(client, tools=[WEATHER], tool_choice="required", max_tokens=n_tokens)
        assert not made["message"]["content"]
        for call in made["message"].get("tool_calls", ()):
            assert json.loads(call["function"]["arguments"]) == json.loads(ROME)


# ---- tool loops ---------------------------------------------------------------------------------------------


def test_a_loop_round_trips(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes(ROME), "It is warm."]
    first = ask(client, tools=[WEATHER])["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "31 degrees"}
    second = ask(client, tools=[WEATHER], messages=[*HELLO, first, result])
    assert second["message"]["content"] == "It is warm." and second["finish_reason"] == "stop"
    prompt = engine.seen[-1].text
    assert f'<tool_call>{{"arguments": {ROME}, "name": "get_weather"}}</tool_call>' in prompt or ROME in prompt
    assert f"[tool]31 degrees({first['tool_calls'][0]['id']})" in prompt


def test_sessions_remember_calls(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes(ROME), "It is warm."]
    session = {"metadata": {"session_id": "tools"}, "tools": [WEATHER]}
    call = ask(client, **session)["message"]["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "31 degrees"}
    ask(client, messages=[result], **session)
    assert call["id"] in engine.seen[-1].text and ROME in engine.seen[-1].text


def test_functions_of_the_old_kind(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes(ROME)] * 2
    made = ask(client, functions=[WEATHER["function"]])
    assert made["message"]["function_call"] == {"name": WX, "arguments": ROME}
    assert made["finish_reason"] == "function_call" and "tool_calls" not in made["message"]
    message, reason, _ = streamed(client, functions=[WEATHER["function"]])
    assert message["function_call"] == {"name": WX, "arguments": ROME} and reason == "function_call"
    history = [*HELLO, made["message"], {"role": "function", "name": WX, "content": "31 degrees"}]
    ask(client, functions=[WEATHER["function"]], messages=history)
    assert "[tool]31 degrees(call_get_weather)" in engine.seen[-1].text


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("tools", {"tools": [{"type": "function", "function": {}}]}),
        ("tools", {"tools": [NOW, NOW]}),
        ("tools", {"tools": [{"type": "retrieval"}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(2000)]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "y" * 200_000}}}]}),
        ("tools", {"tools": "all"}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "then"}}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "function", "function": {}}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": "perhaps"}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
        ("functions", {"tools": [NOW], "functions": [{"name": "f"}]}),
        ("functions", {"functions": [{"name": "f"}, {"name": "f"}]}),
        ("function_call", {"functions": [{"name": "f"}], "function_call": {"name": "g"}}),
        ("messages", {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]}),
    ],
)
def test_what_is_wrong_with_tools_is_said(client: httpx.Client, param: str, body: dict[str, Any]) -> None:
    error = refused(client, **body)
    assert error["param"] == param and len(error["message"]) < 300


def test_a_thousand_tools_that_fit_are_taken_and_more_than_fit_are_not(client: httpx.Client) -> None:
    many = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1000)]
    assert refused(client, tools=many)["code"] == "context_length_exceeded"


# ---- thinking -----------------------------------------------------------------------------------------------

THOUGHT = "<think>\nHm.\n</think>\n\nYes."


def test_reasoning_is_apart_from_content(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [THOUGHT] * 2
    response = client.post(CHAT, json={"messages": HELLO}).json()
    message = response["choices"][0]["message"]
    assert message["content"] == "Yes." and message["reasoning"] == message["reasoning_content"] == "Hm."
    assert response["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("\nHm.")
    message, reason, _ = streamed(client)
    assert (message["content"], message["reasoning"], reason) == ("Yes.", "Hm.", "stop")


def test_calls_after_and_inside_thinking(client: httpx.Client, engine: ScriptedEngine) -> None:
    for script in (THOUGHT.replace("Yes.", hermes(ROME)), "<think>\nHm." + hermes(ROME)):
        engine.scripts = [script]
        made = ask(client, tools=[WEATHER])
        assert made["message"]["reasoning"] == "Hm." and made["finish_reason"] == "tool_calls"
        assert made["message"]["tool_calls"][0]["function"]["arguments"] == ROME


@pytest.mark.parametrize(
    "body",
    [
        {"thinking": False},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
        {"thinking_budget": 0},
        {"thinking_budget": 0, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_every_spelling_switches_thinking_off(
    client: httpx.Client, engine: ScriptedEngine, body: dict[str, Any]
) -> None:
    ask(client, **body)
    assert engine.seen[-1].text.endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("body", "budget"),
    [
        ({"thinking_budget": 7}, 7),
        ({"thinking_token_budget": 7}, 7),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, 7),
        ({"reasoning": {"max_tokens": 7}}, 7),
        ({"reasoning_effort": "low"}, 1024),
        ({"reasoning": {"effort": "medium"}}, 8192),
        ({"thinking": True}, None),
    ],
)
def test_every_spelling_of_a_budget_reaches_the_engine(
    client: httpx.Client, engine: ScriptedEngine, body: dict[str, Any], budget: int | None
) -> None:
    ask(client, **body)
    assert engine.seen[-1].params.thinking_budget == budget


def test_a_block_the_prompt_opens_is_reasoning_from_the_start(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["Hm.\n</think>Yes.", "Hm. And so on"]
    assert ask(client, chat_template_kwargs={"open": 1})["message"]["reasoning"] == "Hm."
    cut = ask(client, chat_template_kwargs={"open": 1})
    assert cut["message"]["reasoning"] == "Hm. And so on" and cut["message"]["content"] == ""
    engine.scripts = ["Yes."]
    assert ask(client, chat_template_kwargs={"open": 1}, thinking_budget=0)["message"]["content"] == "Yes."
    assert engine.seen[-1].text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("thinking", {"thinking": True, "enable_thinking": False}),
        ("reasoning_effort", {"reasoning_effort": "none", "thinking": True}),
        ("reasoning_effort", {"model": "plain", "reasoning_effort": "high"}),
        ("thinking_budget", {"model": "plain", "thinking_budget": 5}),
        ("reasoning", {"reasoning": {"summary": "auto"}}),
    ],
)
def test_contradictions_and_models_that_do_not_think(client: httpx.Client, param: str, body: dict[str, Any]) -> None:
    assert refused(client, **body)["param"] == param


@pytest.mark.parametrize(
    "switch",
    [
        {"thinking": False},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_a_model_without_thinking_ignores_the_switch(client: httpx.Client, switch: dict[str, Any]) -> None:
    assert "hello" in ask(client, model="plain", **switch)["message"]["content"]


def test_a_model_without_thinking_refuses_other_variables(client: httpx.Client) -> None:
    assert refused(client, model="plain", chat_template_kwargs={"moon": 1})["param"] == "chat_template_kwargs.moon"
    wrong = refused(client, model="plain", chat_template_kwargs={"enable_thinking": "no"})
    assert wrong["param"] == "chat_template_kwargs.enable_thinking"


def test_stop_strings_are_found_in_the_text_alone(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["<think>one two</think>three two four"]
    made = ask(client, stop="two")
    assert (made["message"]["reasoning"], made["message"]["content"]) == ("one two", "three ")
    engine.scripts = ["Well, " + hermes('{"city": "two"}')]
    made = ask(client, stop=["two", "}"], tools=[WEATHER])
    assert made["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "two"}'


def test_choices_and_logprobs_with_calls(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes(ROME), THOUGHT]
    body = {"messages": HELLO, "n": 2, "logprobs": True, "tools": [WEATHER]}
    first, second = client.post(CHAT, json=body).json()["choices"]
    assert first["message"]["tool_calls"] and second["message"]["reasoning"] == "Hm."
    assert len(first["logprobs"]["content"]) >= len(hermes(ROME))


def test_rendering_routes_take_tools(client: httpx.Client) -> None:
    prompt = client.post("/apply-template", json={"messages": HELLO, "tools": [NOW]}).json()["prompt"]
    assert '"now"' in prompt
    tokens = client.post("/tokenize", json={"messages": HELLO, "tools": [NOW]}).json()["tokens"]
    assert len(tokens) == len(prompt) + 1

"""OpenAI's Responses API, against an engine that follows a script."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of
from tahr.server.state.settings import Settings
from tool_replies import CALLS, ROME, THOUGHT, TOOL_TEMPLATE, WEATHER, WX, hermes

RESPONSES = "/v1/responses"
TOOL = {"type": "function", **WEATHER["function"]}
NOW = {"type": "function", "name": "now", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "clock", "description": "Time.", "tools": [NOW]}
SUMMARY = {"summary": "auto"}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    plain = ScriptedEngine("plain", context_size=256)
    settings = Settings(port=0, log_interval_s=0, api_keys=("one", "two"), response_max_entries=50)
    headers = {"authorization": "Bearer one"}
    with client_of(engine, plain, settings=settings, headers=headers) as made:
        yield made


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(RESPONSES, json={"input": "hello", **body})
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


def refused(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(RESPONSES, json={"input": "hello", **body})
    assert response.status_code == 400, response.text
    made: dict[str, Any] = response.json()["error"]
    assert len(made["message"]) < 400
    return made


def events(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    made = []
    text = client.post(RESPONSES, json={"input": "hello", "stream": True, **body}).text
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {made[-1]['type']}"
    assert [each["sequence_number"] for each in made] == list(range(len(made)))
    return made


def bare(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without what differs between two to the same script."""
    items = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in reply["output"]]
    dropped = ("id", "created_at", "completed_at")
    return {name: value for name, value in reply.items() if name not in dropped} | {"output": items}


def grown(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output a client puts together from the deltas alone; what the events of the end say must be the same."""
    items: list[dict[str, Any]] = []
    for event in made:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            items.append({**event["item"], "text": ""})
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"] and event["output_index"] == len(items) - 1
            items[-1]["text"] += event["delta"]
        elif kind.endswith(("_text.done", "arguments.done")):
            assert event["text" if "text" in event else "arguments"] == items[-1]["text"]
        elif kind.endswith("part.done"):
            assert event["part"]["text"] == items[-1]["text"]
        elif kind == "output_item.done":
            text = items[-1]["text"]
            items[-1] = event["item"]
            parts = items[-1].get("content") or items[-1].get("summary") or [{"text": items[-1].get("arguments")}]
            assert parts[0]["text"] == text
    return items


# ---- the wire -----------------------------------------------------------------------------------------------


def test_a_response(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["Hi."]
    made = ask(client, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, max_output_tokens=9)
    assert made["id"].startswith("resp_") and made["object"] == "response" and made["status"] == "completed"
    (item,) = made["output"]
    assert item.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}
    assert item == {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    assert made["usage"] == {
        "input_tokens": len(engine.seen[-1].tokens),
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(engine.seen[-1].tokens) + 4,
    }
    assert (made["instructions"], made["metadata"], made["temperature"]) == ("Be brief.", {"a": "b"}, 0.5)
    assert made["max_output_tokens"] == 9 and made["error"] is None and made["incomplete_details"] is None
    assert engine.seen[-1].text.startswith("[system]Be brief.[user]hello[assistant]")
    assert engine.seen[-1].params.max_tokens == 9 and engine.seen[-1].params.temperature == 0.5


def test_events_in_their_order(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["<think>\nHm</think>Hi" + hermes("{}", "now")]
    names = [event["type"].removeprefix("response.") for event in events(client, tools=[NOW], reasoning=SUMMARY)]
    kept = [name for i, name in enumerate(names) if name != names[i - 1]]
    assert kept == [
        *("created", "in_progress"),
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


@pytest.mark.parametrize(
    ("script", "body"),
    [
        ("Hi, “naïve” \\ \n world", {}),
        ("", {}),
        (CALLS, {"tools": [TOOL, NOW]}),
        (CALLS, {"tools": [TOOL, NOW], "parallel_tool_calls": False}),
        (hermes("{}", "clock__now"), {"tools": [SPACE]}),
        (THOUGHT, {}),
        (THOUGHT, {"reasoning": SUMMARY}),
        (THOUGHT.replace("Yes.", CALLS), {"tools": [TOOL, NOW], "store": False}),
        ("one two three", {"max_output_tokens": 5}),
        (hermes(ROME), {"tools": [TOOL], "max_output_tokens": 50}),
        ("endless " * 1000, {"max_output_tokens": 100_000}),
    ],
)
def test_a_stream_is_the_whole(client: httpx.Client, engine: ScriptedEngine, script: str, body: dict[str, Any]) -> None:
    engine.scripts = [script] * 2
    whole, made = ask(client, **body), events(client, **body)
    assert made[0]["response"]["status"] == "in_progress" and made[0]["response"]["output"] == []
    last = made[-1]["response"]
    assert made[-1]["type"] == f"response.{last['status']}"
    assert bare(whole) == bare(last) and grown(made) == last["output"]


def test_a_response_that_was_cut(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["one two three"]
    made = ask(client, max_output_tokens=5)
    assert made["status"] == "incomplete" and made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["output"][0]["status"] == "incomplete" and made["output"][0]["content"][0]["text"] == "one t"


def test_a_failure_in_a_stream(client: httpx.Client) -> None:
    last = events(client, input="FAIL@3")[-1]
    assert last["type"] == "response.failed" and last["response"]["error"]["code"] == "server_error"
    assert client.get(f"{RESPONSES}/{last['response']['id']}").status_code == 404, "what failed is not stored"


# ---- items --------------------------------------------------------------------------------------------------


def test_a_loop_of_tools_without_a_store(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [THOUGHT.replace("Yes.", CALLS), "It is warm."]
    start: list[Any] = [{"role": "user", "content": "hello"}]
    first = ask(client, input=start, tools=[TOOL, NOW], store=False, include=["reasoning.encrypted_content"])
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call", "function_call"]
    rome, now = first["output"][2:]
    assert (rome["name"], rome["arguments"], now["name"]) == (WX, ROME, "now")
    results = [
        {"type": "function_call_output", "call_id": rome["call_id"], "output": "31 degrees"},
        {"type": "function_call_output", "call_id": now["call_id"], "output": [{"type": "input_text", "text": "noon"}]},
    ]
    second = ask(client, input=[*start, *first["output"], *results], tools=[TOOL, NOW], store=False)
    assert second["output"][0]["content"][0]["text"] == "It is warm."
    seen = engine.seen[-1].text
    assert f"[tool]31 degrees({rome['call_id']})[tool]noon({now['call_id']})[assistant]" in seen
    assert seen.count("[assistant]") == 2 and seen.count("<tool_call>{") == 2, "one turn made both calls"


def test_a_loop_of_tools_with_a_store(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [CALLS, "It is warm.", "Yes."]
    first = ask(client, tools=[TOOL, NOW], instructions="One.")
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "31 degrees"}
        for item in first["output"][1:]
    ]
    second = ask(client, input=results, previous_response_id=first["id"], tools=[TOOL, NOW])
    assert second["previous_response_id"] == first["id"]
    ask(client, input="Really?", previous_response_id=second["id"], instructions="Two.")
    seen = engine.seen[-1].text
    assert seen.startswith("[system]Two.[user]hello[assistant]Let me look.<tool_call>")
    assert "[assistant]It is warm.[user]Really?[assistant]" in seen and "One." not in seen


def test_functions_in_a_namespace(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = [hermes("{}", "clock__now"), "Noon."]
    first = ask(client, tools=[SPACE])
    (call,) = first["output"]
    assert (call["namespace"], call["name"]) == ("clock", "now")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
    ask(client, input=[{"role": "user", "content": "x"}, call, result], tools=[SPACE])
    assert '"name": "clock__now"' in engine.seen[-1].text


def test_references_to_stored_items(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.scripts = ["First."]
    (item,) = ask(client)["output"]
    reference = {"type": "item_reference", "id": item["id"]}
    ask(client, input=[{"role": "user", "content": "hello"}, reference, {"role": "user", "content": "more"}])
    assert "[user]hello[assistant]First.[user]more[assistant]" in engine.seen[-1].text
    assert refused(client, input=[{"type": "item_reference", "id": "msg_none"}])["param"] == "input"


def test_roles_and_thoughts(client: httpx.Client, engine: ScriptedEngine) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "status": None}
    items = [
        {"type": "message", "role": "developer", "content": "One."},
        {"role": "system", "content": "Two."},
        {"role": "user", "content": parts},
        thought,
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "developer", "content": "later"},
        {"role": "user", "content": "d"},
    ]
    ask(client, input=items, instructions="Zero.")
    assert "[system]Zero.\nOne.\nTwo.[user]a\nb[assistant]c[user]later\nd[assistant]" in engine.seen[-1].text


# ---- fields -------------------------------------------------------------------------------------------------


def test_the_form_of_the_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for given in ({"type": "json_schema", "name": "x", "schema": schema, "strict": True}, {"type": "json_object"}):
        made = ask(client, text={"format": given})
        assert engine.seen[-1].params.grammar is not None and made["text"]["format"]["type"] == given["type"]
    ask(client, text={"format": {"type": "text"}, "verbosity": "medium"})
    assert engine.seen[-1].params.grammar is None


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        ("required", True),
        ({"type": "function", "name": "now"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}, False),
        ("auto", False),
    ],
)
def test_tool_choices(client: httpx.Client, engine: ScriptedEngine, choice: Any, mode: bool) -> None:
    engine.scripts = [hermes("{}", "now")]
    made = ask(client, tools=[TOOL, NOW], tool_choice=choice)
    assert made["output"][0]["type"] == "function_call" and made["tool_choice"] == choice
    assert (engine.seen[-1].params.grammar is not None) == mode


def test_what_is_repeated_is_what_was_read(client: httpx.Client) -> None:
    junk = {"junk": "x" * 1000}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now", **junk}], **junk}
    space = {**SPACE, "tools": [{**NOW, "name": "then", **junk}], **junk}
    made = ask(client, tools=[{**NOW, **junk}, space], tool_choice=choice)
    assert "junk" not in json.dumps(made) and made["tool_choice"]["tools"] == [{"type": "function", "name": "now"}]
    assert made["tools"][1]["tools"][0]["name"] == "then"


def test_effort_reaches_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    ask(client, reasoning={"effort": "low"})
    assert engine.seen[-1].params.thinking_budget == 1024
    ask(client, reasoning={"effort": "none"})
    assert engine.seen[-1].text.endswith("</think>\n\n")


def test_fields_without_effect_are_taken(client: httpx.Client) -> None:
    ask(client, user="u", service_tier="auto", safety_identifier="s", prompt_cache_key="k", client_metadata={"a": 1})
    ask(client, background=False, truncation="disabled", top_logprobs=0, include=[], max_tool_calls=3)
    ask(client, stream_options={"include_obfuscation": False}, prompt_cache_retention="24h", context_management=[])


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {"input": []}),
        ("input", {"input": None}),
        ("input", {"input": [{"role": "system", "content": "x"}]}),
        ("input", {"input": [{"role": "robot", "content": "x"}]}),
        ("input", {"input": [{"role": "user"}]}),
        ("input", {"input": [{"type": "web_search_call", "id": "x"}]}),
        ("input", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
        ("input", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
        ("input", {"input": [{"type": "function_call", "call_id": "x"}]}),
        ("input", {"input": [{"type": "function_call", "call_id": "x" * 300, "name": "f"}]}),
        ("input", {"input": [{"type": "function_call_output", "call_id": "x"}]}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("temperature", {"temperature": -1}),
        ("top_p", {"top_p": 2}),
        ("tools", {"tools": [{"type": "web_search"}]}),
        ("tools", {"tools": [{"type": "custom", "name": "x"}]}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"tools": [{"type": "namespace", "name": "x"}]}),
        ("tools", {"tools": [{"type": "namespace", "name": "x", "tools": [5]}]}),
        ("tools", {"tools": [NOW, NOW]}),
        ("tools", {"tools": [{**NOW, "defer_loading": True}]}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "function", "name": "then"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "web_search"}}),
        ("tool_choice", {"tools": [NOW], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": 5}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("reasoning.effort", {"reasoning": {"effort": "heroic"}}),
        ("reasoning.effort", {"model": "plain", "reasoning": {"effort": "high"}}),
        ("reasoning.summary", {"reasoning": {"summary": "long"}}),
        ("text.format", {"text": {"format": {"type": "xml"}}}),
        ("text.format", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
        ("text.verbosity", {"text": {"verbosity": "high"}}),
        ("background", {"background": True}),
        ("truncation", {"truncation": "auto"}),
        ("include", {"include": ["message.output_text.logprobs"]}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("conversation", {"conversation": "c"}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("metadata", {"metadata": {str(i): "x" for i in range(17)}}),
        ("metadata", {"metadata": {"x": "y" * 513}}),
        ("nonsense", {"nonsense": 1}),
    ],
)
def test_what_is_wrong_is_said_by_name(client: httpx.Client, param: str, body: dict[str, Any]) -> None:
    error = refused(client, **body)
    assert error["param"].startswith(param) and param.split(".")[-1] in error["message"]


def test_counting_tokens(client: httpx.Client, engine: ScriptedEngine) -> None:
    first = ask(client)
    body = {"input": "more", "previous_response_id": first["id"], "instructions": "Be brief.", "tools": [TOOL]}
    counted = client.post(f"{RESPONSES}/input_tokens", json=body).json()
    ask(client, **body)
    assert counted == {"object": "response.input_tokens", "input_tokens": len(engine.seen[-1].tokens)}


# ---- stored responses ---------------------------------------------------------------------------------------


def test_a_stored_response_is_the_one_that_was_sent(client: httpx.Client) -> None:
    made = ask(client)
    assert client.get(f"{RESPONSES}/{made['id']}").json() == made
    streamed = events(client)[-1]["response"]
    assert client.get(f"{RESPONSES}/{streamed['id']}").json() == streamed
    assert client.get(f"{RESPONSES}/{made['id']}?stream=true").status_code == 400


def test_it_is_gone_when_it_is_deleted(client: httpx.Client) -> None:
    id = ask(client)["id"]
    assert client.delete(f"{RESPONSES}/{id}").json() == {"id": id, "deleted": True, "object": "response"}
    for response in (
        client.get(f"{RESPONSES}/{id}"),
        client.delete(f"{RESPONSES}/{id}"),
        client.get(f"{RESPONSES}/{id}/input_items"),
        client.post(f"{RESPONSES}/{id}/cancel"),
        client.post(RESPONSES, json={"input": "x", "previous_response_id": id}),
    ):
        assert response.status_code == 404 and response.json()["error"]["code"] == "response_not_found"


def test_it_belongs_to_its_key(client: httpx.Client) -> None:
    id = ask(client)["id"]
    other = {"authorization": "Bearer two"}
    assert client.get(f"{RESPONSES}/{id}", headers=other).status_code == 404
    assert client.delete(f"{RESPONSES}/{id}", headers=other).status_code == 404
    body = {"input": "x", "previous_response_id": id}
    assert client.post(RESPONSES, json=body, headers=other).status_code == 404
    assert client.get(f"{RESPONSES}/{id}").status_code == 200


def test_it_is_not_stored_if_that_is_not_wanted(client: httpx.Client) -> None:
    made = ask(client, store=False)
    assert made["store"] is False and client.get(f"{RESPONSES}/{made['id']}").status_code == 404


def test_cancelling_is_refused(client: httpx.Client) -> None:
    response = client.post(f"{RESPONSES}/{ask(client)['id']}/cancel")
    assert response.status_code == 400 and "background" in response.json()["error"]["message"]


def test_input_items_in_pages(client: httpx.Client) -> None:
    items = [{"role": "user", "content": str(i)} for i in range(5)]
    path = f"{RESPONSES}/{ask(client, input=items)['id']}/input_items"
    newest = client.get(path).json()
    assert [item["content"][0]["text"] for item in newest["data"]] == ["4", "3", "2", "1", "0"]
    assert newest["data"][0]["type"] == "message" and newest["first_id"] == newest["data"][0]["id"]
    page = client.get(path, params={"limit": 2, "order": "asc", "after": newest["data"][-1]["id"]}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["1", "2"] and page["has_more"]
    for wrong in ({"limit": "0"}, {"limit": "many"}, {"limit": "9" * 5000}, {"order": "up"}):
        assert client.get(path, params=wrong).status_code == 400
    assert client.post(path).status_code == 405 and client.post(path).headers["allow"] == "GET"


def test_stored_responses_in_pages(client: httpx.Client) -> None:
    made = [ask(client, input=str(i))["id"] for i in range(3)]
    ask(client, input="x", store=False)
    newest = client.get(RESPONSES).json()
    assert [each["id"] for each in newest["data"][:3]] == made[::-1] and newest["first_id"] == made[2]
    page = client.get(RESPONSES, params={"limit": 1, "after": made[2]}).json()
    assert [each["object"] for each in page["data"]] == ["response"] and page["last_id"] == made[1] and page["has_more"]
    assert client.get(RESPONSES, headers={"authorization": "Bearer other"}).status_code == 401
    assert client.get(RESPONSES, params={"limit": "0"}).status_code == 400


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("after=resp_none", "after"),
        ("after=", "after"),
        ("after=" + "x" * 5000, "after"),
        ("before=resp_none", "before"),
        ("limit=1&limit=2", "limit"),
        ("limit=1;limit=2", "limit"),
        ("order=", "order"),
        ("a&" * 5000, "a"),
        ("%ff" * 1000 + "=1", "\N{REPLACEMENT CHARACTER}" * 60),
    ],
)
def test_queries_that_are_refused(client: httpx.Client, query: str, param: str) -> None:
    made = ask(client)["id"]
    for path in (RESPONSES, f"{RESPONSES}/{made}/input_items"):
        got = client.get(f"{path}?{query}")
        assert got.status_code == 400 and got.json()["error"]["param"] == param
        assert len(got.json()["error"]["message"]) < 300


@pytest.mark.parametrize("query", ["include=a", "include[]=a&include[]=b", "api-version=2026-01-01"])
def test_queries_that_clients_send_and_that_change_nothing(client: httpx.Client, query: str) -> None:
    made = ask(client)["id"]
    for path in (f"{RESPONSES}/{made}", RESPONSES, f"{RESPONSES}/{made}/input_items"):
        assert client.get(f"{path}?{query}").json() == client.get(path).json()


def test_a_stored_response_is_asked_for_without_fields_that_change_nothing(client: httpx.Client) -> None:
    path = f"{RESPONSES}/{ask(client)['id']}"
    assert client.get(f"{path}?stream=false").status_code == 200
    for query, param in (("stream=true", "stream"), ("stream=1", "stream"), ("included=x", "included")):
        got = client.get(f"{path}?{query}")
        assert got.status_code == 400 and got.json()["error"]["param"] == param


def test_many_items_and_deep_ones(client: httpx.Client) -> None:
    began = time.monotonic()
    for items in (
        [{"role": "user", "content": ""}] * 30_000,
        [{"type": "function_call", "call_id": "a", "name": "f"}] * 15_000,
        [{"type": "function_call_output", "call_id": "a", "output": ""}] * 15_000,
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 40}]}] * 15_000,
    ):
        assert (
            refused(client, input=[*items, {"role": "user", "content": "x" * 5000}])["code"]
            == "context_length_exceeded"
        )
    assert time.monotonic() - began < 15
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    assert "nested" in refused(client, tools=[{**NOW, "parameters": deep}])["message"]
    assert client.post(RESPONSES, content=b'{"input": ' + b"[" * 100_000).status_code == 400


def test_a_client_that_leaves_stores_nothing(client: httpx.Client, engine: ScriptedEngine) -> None:
    with client.stream("POST", RESPONSES, json={"input": "HANG@3", "stream": True}) as response:
        first = next(response.iter_lines())
        assert first == "event: response.created"
    until = time.monotonic() + 5
    while engine.live and time.monotonic() < until:
        time.sleep(0.01)
    assert not engine.live


def test_formats_are_refused_where_tokens_are_counted_too(client: httpx.Client) -> None:
    wrong = {"input": "hi", "text": {"format": {"type": "regex"}}}
    assert client.post(RESPONSES, json=wrong).status_code == 400
    assert client.post(f"{RESPONSES}/input_tokens", json=wrong).status_code == 400

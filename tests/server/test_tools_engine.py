"""Tool calls of a real engine: whatever runs beside them, preempts them or was computed before, they are calls."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines import page_bytes
from serve_process import served
from tahr import LLM
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.sequences.stats import StatsSnapshot
from tahr.generation.outputs import Completion
from test_grammar_server import NESTED, OBJECTS

CHAT = "/v1/chat/completions"
# Only the names of two tools are shown: the context of the model is short.
TEMPLATE = (
    "{% if tools %}{% for t in tools[:2] %}{{ t.function.name }} {% endfor %}<tool_call></tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
LIGHT = tool(
    "light",
    type="object",
    properties={"on": {"type": "boolean"}, "levels": {"type": "array", "items": DIGIT, "minItems": 12, "maxItems": 12}},
    required=["on", "levels"],
    additionalProperties=False,
)
ASKED: dict[str, Any] = {"tools": [LIGHT], "tool_choice": "required", "parallel_tool_calls": False}


def is_call(function: dict[str, Any]) -> bool:
    arguments = json.loads(function["arguments"])
    return (
        function["name"] == "light"
        and arguments.keys() == {"on", "levels"}
        and isinstance(arguments["on"], bool)
        and len(arguments["levels"]) == 12
        and set(arguments["levels"]) <= set(range(10))
    )


# ---- over HTTP, beside attacks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("template") / "t.jinja"
    path.write_text(TEMPLATE)
    return str(path)


@pytest.fixture(scope="module")
def client(stories: Path, template: str) -> Iterator[httpx.Client]:
    options = ("--model", f"story={stories}", "--chat-template", template)
    with served(*options) as running, httpx.Client(base_url=running.address, timeout=60) as made:
        yield made


def said(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Once"}], "temperature": 1, "seed": 3, "max_tokens": 120, **fields}


KILLING: dict[str, dict[str, Any]] = {
    "a thousand tools": {"tools": [tool(f"t{i}", type="object") for i in range(1000)]},
    "more than there may be": {"tools": [tool(f"t{i}", type="object") for i in range(100_000)]},
    "two of a name": {"tools": [LIGHT, LIGHT]},
    "no name": {"tools": [{"type": "function", "function": {}}]},
    "deep": {"tools": [tool("t", type="object", properties={"x": NESTED}, required=["x"])]},
    "endless": {"tools": [tool("t", type="object", properties={"x": {"$ref": "#"}}, required=["x"])]},
    "contradiction": {"tools": [tool("t", type="object", properties={"x": {"enum": []}}, required=["x"])]},
    "product of choices": {"tools": [tool("t", allOf=[{"anyOf": OBJECTS} for _ in range(9)])]},
    "regex": {"tools": [tool("t", type="object", properties={"x": {"pattern": "(.*a.{30}){20}"}}, required=["x"])]},
    "a name that is markup": {"tools": [tool("</tool_call><tool_call>", type="object")]},
    "another tool": {"tools": [LIGHT], "tool_choice": {"type": "function", "function": {"name": "dark"}}},
    "cut in the arguments": {
        "tools": [tool("t", properties={"x": {"minLength": 99}}, required=["x"])],
        "max_tokens": 25,
    },
    "never a call": {"tools": [LIGHT], "tool_choice": "auto"},
}


@pytest.mark.parametrize("tools", [[], [LIGHT]], ids=["without tools", "with tools"])
def test_a_stop_string_that_the_last_token_completes_is_why_a_reply_ends(
    client: httpx.Client, tools: list[dict[str, Any]]
) -> None:
    """Where a call may follow, a line break is held back up to the end: it stops the reply all the same."""
    break_ids = client.post("/tokenize", json={"prompt": "\n", "add_special_tokens": False}).json()["tokens"]
    body = said(tools=tools, logit_bias={str(break_ids[-1]): 100}, stop="\n", max_tokens=1)
    choice = client.post(CHAT, json=body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


def test_killing_tools_hurt_nobody_else(client: httpx.Client) -> None:
    """Each beside three normal requests, which say what they say alone, while /health answers."""
    normal = [said(**ASKED), said(temperature=0, max_tokens=30), said(seed=5, max_tokens=40)]

    def post(body: dict[str, Any]) -> httpx.Response:
        return client.post(CHAT, json=body)

    def message(reply: httpx.Response) -> Any:
        choice = reply.json()["choices"][0]
        calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        return choice["message"]["content"], calls, choice["finish_reason"]

    alone = [message(post(body)) for body in normal]
    assert alone[0][2] == "tool_calls" and [is_call(call) for call in alone[0][1]] == [True]
    with ThreadPoolExecutor(6) as pool:
        for name, fields in KILLING.items():
            attack = pool.submit(post, said(**{"max_tokens": 60, "tool_choice": "required", **fields}))
            beside = [pool.submit(post, body) for body in normal]
            assert client.get("/health").status_code == 200, name
            assert [message(each.result()) for each in beside] == alone, name
            reply = attack.result()
            if reply.status_code == 200:
                assert message(reply)[2] in ("tool_calls", "stop", "length"), name
            else:
                assert reply.status_code == 400 and reply.json()["error"]["message"], (name, reply.text)


def test_calls_come_whole_in_a_stream(client: httpx.Client) -> None:
    whole = client.post(CHAT, json=said(**ASKED)).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    parts: dict[str, str] = {"name": "", "arguments": ""}
    with client.stream("POST", CHAT, json=said(stream=True, **ASKED)) as reply:
        for line in reply.iter_lines():
            choices = json.loads(line[6:])["choices"] if line.startswith("data: {") else []
            for call in [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]:
                for key in parts:
                    parts[key] += call["function"].get(key) or ""
    assert parts == whole


# ---- in the library: preemption, cached prefixes, several choices -----------------------------------------------


def calls_of(stories: Path, template: str, n: int = 1, **options: Any) -> tuple[list[Any], StatsSnapshot]:
    """The calls that some requests make together, twice over; and what the engine counted."""
    params = SamplingParams(temperature=1, seed=11, max_tokens=120, n=n)
    chats: Any = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    settings = EngineConfig(context_size=256, page_size=8, chat_template=template, **options)
    with LLM(str(stories), config=settings) as llm:
        first, again = (llm.chat(chats, params, progress=False, **ASKED) for _ in range(2))
        counted = llm.stats()
    assert told(again) == told(first)
    return told(first), counted


def told(replies: list[Completion]) -> list[tuple[str, list[dict[str, str]]]]:
    """Texts and calls of all choices, without the calls' random ids."""
    choices = [(reply.text, (reply, *reply.others)) for reply in replies]
    return [
        (text, [{"name": call.name, "arguments": call.arguments} for one in ones for call in one.tool_calls])
        for text, ones in choices
    ]


PROMPTS = ["Once upon a time there was a light", "Once upon a time there was a lamp", "Turn it on", "Turn it off", "So"]


def test_calls_are_the_same_where_memory_is_short_and_where_prefixes_are_cached(stories: Path, template: str) -> None:
    wanted, _ = calls_of(stories, template, prefix_cache=False)
    cached, roomy = calls_of(stories, template)
    tight, short = calls_of(stories, template, prefix_cache=False, kv_bytes=34 * page_bytes(stories))
    assert cached == wanted and tight == wanted
    assert roomy.prefix_tokens_reused > 0 and short.preemptions > 0
    assert all(len(calls) == 1 and is_call(calls[0]) for _, calls in wanted)


def test_every_choice_is_a_call(stories: Path, template: str) -> None:
    found, _ = calls_of(stories, template, n=3)
    assert all(len(calls) == 3 for _, calls in found)
    assert len({call["arguments"] for _, calls in found for call in calls}) > 1

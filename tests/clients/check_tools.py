"""OpenAI's Python package against a running server: required and named tool calls, streamed and whole, and a tool loop.

Arguments: the server's address, the model, and how many calls of each kind to make (5 if not given).
"""

import json
import sys
from typing import Any

import jsonschema
from openai import OpenAI

BASE, MODEL = sys.argv[1] + "/v1", sys.argv[2]
N = int(sys.argv[3]) if len(sys.argv) > 3 else 5

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
MAIL = {
    "type": "object",
    "properties": {
        "to": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 3},
        "subject": {"type": "string", "maxLength": 60},
        "urgent": {"type": "boolean"},
    },
    "required": ["to", "subject"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "send_mail": MAIL}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": f"Use it to {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
QUESTIONS = ["Is it warm in Rome?", "Tell Ann that I am late.", "Will it rain in Oslo this week?", "Hello!", "2 + 2?"]
NAMED = {"type": "function", "function": {"name": "send_mail"}}


def ask(client: OpenAI, i: int, choice: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
    options = {"temperature": 1, "seed": i, "max_tokens": 700, "tools": TOOLS, "tool_choice": choice, **more}
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def streamed(client: OpenAI, i: int, choice: Any) -> tuple[list[dict[str, str]], str]:
    """The calls of a stream put together from their deltas, and the finish reason."""
    calls: dict[int, dict[str, str]] = {}
    reason = ""
    for chunk in ask(client, i, choice, stream=True):
        part = chunk.choices[0]
        assert not part.delta.content, part
        reason = part.finish_reason or reason
        for delta in part.delta.tool_calls or ():
            call = calls.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
            call["arguments"] += delta.function.arguments
    return list(calls.values()), reason


def whole(client: OpenAI, i: int, choice: Any) -> tuple[list[dict[str, str]], str]:
    made = ask(client, i, choice).choices[0]
    assert not made.message.content, made
    calls = [
        {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for call in made.message.tool_calls or ()
    ]
    return calls, made.finish_reason


def is_valid(calls: list[dict[str, str]], reason: str, choice: Any) -> bool:
    if reason != "tool_calls" or not calls or len({call["id"] for call in calls}) < len(calls):
        return False
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
    return choice == "required" or {call["name"] for call in calls} == {"send_mail"}


def count(client: OpenAI) -> None:
    for what, choice in (("required", "required"), ("named", NAMED)):
        for way in (whole, streamed):
            n_valid = sum(is_valid(*way(client, i, choice), choice) for i in range(N))
            print(f"{what}, {way.__name__}: {n_valid}/{N} valid")
            assert n_valid == N


def loop(client: OpenAI) -> None:
    """A call, its result, and an answer that has seen both."""
    messages: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
    options = {"model": MODEL, "temperature": 0, "max_tokens": 60, "tools": TOOLS, "parallel_tool_calls": False}
    first = client.chat.completions.create(messages=messages, tool_choice="required", **options).choices[0]
    assert first.finish_reason == "tool_calls"
    messages += [first.message]
    for call in first.message.tool_calls:
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "It is 31 degrees."}]
    second = client.chat.completions.create(messages=messages, tool_choice="none", **options).choices[0]
    assert second.message.content and not second.message.tool_calls, second
    print(f"loop: {second.message.content[:80]!r}")


def main() -> None:
    client = OpenAI(base_url=BASE, api_key="none", timeout=120)
    count(client)
    loop(client)


main()

"""Anthropic's Python package against running servers: a real model, and one whose replies are scripted.

Arguments: the real server's address, its model, the scripted server's address.
"""

import sys
from typing import Any

import anthropic
from anthropic import Anthropic
from pydantic import BaseModel

REAL, MODEL, SCRIPTED = sys.argv[1:4]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
ONE = {"type": "any", "disable_parallel_tool_use": True}
THINKING = {"type": "enabled", "budget_tokens": 1024}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def dumped(message: Any) -> dict[str, Any]:
    """A message without what differs between two replies to the same request."""
    made = message.model_dump(exclude={"id", "parsed_output"})
    made["content"] = [
        {name: value for name, value in block.items() if name not in ("id", "parsed_output", "caller")}
        for block in made["content"]
    ]
    return {name: value for name, value in made.items() if value is not None}


def check_real(client: Anthropic) -> None:
    """What any model can do."""
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "messages": said("Why is the sky blue?")}
    options["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**options, system="Be brief.")
    assert whole.content[0].text and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12
    with client.messages.stream(**options, system="Be brief.") as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert last.usage.input_tokens + last.usage.cache_read_input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens or 0
    )
    counted = client.messages.count_tokens(model=MODEL, messages=said("Why is the sky blue?"), system="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    stopped = client.messages.create(**options, stop_sequences=[text.strip()[-1]])
    assert stopped.stop_reason in ("stop_sequence", "max_tokens")
    forced = client.messages.create(**(options | {"max_tokens": 100}), tools=[WEATHER], tool_choice=ONE)
    assert forced.stop_reason == "tool_use" and set(forced.content[-1].input) == {"city", "days"}, forced
    assert MODEL in [model.id for model in client.models.list()]
    card = client.models.retrieve(MODEL)
    assert card.id == card.display_name == MODEL and card.type == "model" and card.created_at.year > 2000


def both_ways(client: Anthropic, **options: Any) -> Any:
    """A message, after it was found equal to its stream."""
    options = {"model": "scripted", "max_tokens": 2000, **options}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        last = stream.get_final_message()
    assert dumped(whole) == dumped(last), (whole, last)
    return whole


def check_scripted(client: Anthropic) -> None:
    """Thinking and tools, where the model must do its part."""
    thought = both_ways(client, messages=said("THINK"), thinking=THINKING)
    assert [block.type for block in thought.content] == ["thinking", "text"] and thought.content[0].signature
    plain = both_ways(client, messages=said("THINK"))
    assert [block.type for block in plain.content] == ["text"]
    first = both_ways(client, messages=said("WEATHER"), tools=[WEATHER], thinking=THINKING)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert first.content[2].input == {"city": "Rome", "days": 3} and first.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": f"{use.input['city']}: warm"}
        for use in first.content[2:]
    ]
    history = [*said("WEATHER"), {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = both_ways(client, messages=history, tools=[WEATHER])
    assert second.content[0].text == 'The tools say: Rome: warm; Øslo \\ "x": warm', second
    once = both_ways(
        client,
        messages=said("WEATHER"),
        tools=[WEATHER],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    assert sum(block.type == "tool_use" for block in once.content) == 1


class Person(BaseModel):
    name: str
    age: int


def check_helpers(client: Anthropic) -> None:
    """Helpers of the package that are made of several requests or parse a reply."""
    calls: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather of a city.

        Args:
            city: Which.
            days: How many.
        """
        calls.append(city)
        return f"{city}: {days} warm days"

    runner = client.beta.messages.tool_runner(
        model="scripted", max_tokens=2000, tools=[get_weather], messages=said("WEATHER")
    )
    last = list(runner)[-1]
    assert calls == ["Rome", 'Øslo \\ "x"'] and "3 warm days" in last.content[0].text, last
    parsed = client.messages.parse(model="scripted", max_tokens=200, messages=said("JSON"), output_format=Person)
    assert parsed.parsed_output == Person(name="Ann", age=7), parsed


def check_errors(client: Anthropic) -> None:
    for wrong, kind in (
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"model": "absent"}, anthropic.NotFoundError),
        ({"messages": []}, anthropic.BadRequestError),
    ):
        options = {"model": "scripted", "max_tokens": 9, "messages": said("hello"), **wrong}
        for way in ({}, {"stream": True}):
            try:
                client.messages.create(**options, **way)
            except kind as error:
                assert error.body["type"] == "error" and error.body["error"]["message"] and error.request_id
            else:
                raise AssertionError(f"{wrong} was not refused")


def main() -> None:
    check_real(Anthropic(base_url=REAL, api_key="none", timeout=60, max_retries=0))
    scripted = Anthropic(base_url=SCRIPTED, api_key="none", timeout=60, max_retries=0)
    check_scripted(scripted)
    check_helpers(scripted)
    check_errors(scripted)


main()

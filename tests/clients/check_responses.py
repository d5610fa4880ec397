"""OpenAI's Python package against running servers: responses, created, streamed, parsed, continued, with functions.

Arguments: the real server's address, its model, the scripted server's address.
"""

import json
import sys
from typing import Any

import openai
from openai import OpenAI
from pydantic import BaseModel

REAL, MODEL, SCRIPTED = sys.argv[1:4]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": False,
}


class Person(BaseModel):
    name: str
    age: int


def dumped(response: Any) -> dict[str, Any]:
    """A response without what differs between two to the same request."""
    made = response.model_dump(exclude={"id", "created_at", "completed_at"})
    for item in made["output"]:
        for name in ("id", "call_id", "parsed_arguments"):
            item.pop(name, None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return made


def both_ways(client: OpenAI, **options: Any) -> Any:
    """A response, after it was found equal to its stream, and to what the events of the stream add up to."""
    whole = client.responses.create(**options)
    texts: dict[str, str] = {}
    last: Any = None
    with client.responses.stream(**options) as stream:
        for event in stream:
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                texts[event.item_id] = texts.get(event.item_id, "") + event.delta
            if event.type in ("response.completed", "response.incomplete"):  # the helper knows the first alone
                last = event.response
    assert dumped(whole) == dumped(last), (whole, last)
    assert "".join(texts[item.id] for item in last.output if item.type == "message") == whole.output_text
    return last


def check_real(client: OpenAI) -> None:
    """What any model can do."""
    options: dict[str, Any] = {"model": MODEL, "max_output_tokens": 12, "temperature": 0}
    first = both_ways(client, input="Why is the sky blue?", instructions="Be brief.", **options)
    assert first.output_text and first.status == "incomplete" and first.usage.output_tokens == 12
    second = client.responses.create(input="And at night?", previous_response_id=first.id, **options)
    assert second.usage.input_tokens > first.usage.input_tokens
    chat = [{"role": "user", "content": "Invent a person."}]
    person = client.responses.parse(input=chat, text_format=Person, **(options | {"max_output_tokens": 80}))
    assert isinstance(person.output_parsed, Person), person
    requested = options | {"max_output_tokens": 100, "parallel_tool_calls": False}
    forced = client.responses.create(input="Is it warm?", tools=[WEATHER], tool_choice="required", **requested)
    assert set(json.loads(forced.output[-1].arguments)) == {"city", "days"}, forced


def check_scripted(client: OpenAI) -> None:
    """Thinking and functions, where the model must do its part."""
    thought = both_ways(client, model="scripted", input="THINK")
    assert [item.type for item in thought.output] == ["reasoning", "message"] and thought.output[0].content[0].text
    summary = both_ways(client, model="scripted", input="THINK", reasoning={"summary": "auto"})
    assert summary.output[0].summary[0].text == thought.output[0].content[0].text
    first = both_ways(client, model="scripted", input="WEATHER", tools=[WEATHER])
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Rome", 'Øslo \\ "x"']
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"warm {i}"} for i, call in enumerate(calls)
    ]
    by_id = both_ways(client, model="scripted", input=results, previous_response_id=first.id, tools=[WEATHER])
    history = [{"role": "user", "content": "WEATHER"}, *first.output, *results]
    by_items = client.responses.create(model="scripted", input=history, tools=[WEATHER], store=False)
    assert by_id.output_text == by_items.output_text == "The tools say: warm 0; warm 1", (by_id, by_items)
    counted = client.responses.input_tokens.count(model="scripted", input=history, tools=[WEATHER])
    assert counted.input_tokens == by_items.usage.input_tokens


def check_store(client: OpenAI) -> None:
    made = client.responses.create(model="scripted", input="hello")
    assert client.responses.retrieve(made.id).output_text == made.output_text
    (item,) = list(client.responses.input_items.list(made.id))
    assert item.content[0].text == "hello", item
    client.responses.delete(made.id)
    for lost in (lambda: client.responses.retrieve(made.id), lambda: client.responses.delete(made.id)):
        try:
            lost()
        except openai.NotFoundError as error:
            assert error.code == "response_not_found"
        else:
            raise AssertionError("it is still there")
    try:
        client.responses.create(model="scripted", input="hello", background=True)
    except openai.BadRequestError as error:
        assert error.param == "background"
    else:
        raise AssertionError("background was not refused")


def main() -> None:
    check_real(OpenAI(base_url=REAL + "/v1", api_key="none", timeout=60, max_retries=0))
    scripted = OpenAI(base_url=SCRIPTED + "/v1", api_key="none", timeout=60, max_retries=0)
    check_scripted(scripted)
    check_store(scripted)


main()

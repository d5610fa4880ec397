"""openai-agents over the Responses API: functions that it runs, hand-offs, typed output, streams, continued responses.

Argument: the scripted server's address.
"""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

asked: list[tuple[str, int]] = []


class Person(BaseModel):
    name: str
    age: int


@function_tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    asked.append((city, days))
    return f"warm in {city}"


def agent(**options: object) -> Agent:
    return Agent(name="Ann", instructions="Be brief.", model="scripted", **options)  # type: ignore[arg-type]


async def check_functions() -> None:
    """Both calls of a turn are run, and their results read."""
    result = await Runner.run(agent(tools=[get_weather]), "WEATHER")
    assert asked == [("Rome", 3), ('Øslo \\ "x"', 1)], asked
    assert result.final_output == 'The tools say: warm in Rome; warm in Øslo \\ "x"', result.final_output
    assert [item.type for item in result.new_items if "tool" in item.type] == ["tool_call_item"] * 2 + [
        "tool_call_output_item"
    ] * 2
    usage = result.context_wrapper.usage
    assert usage.requests == 2 and usage.total_tokens == usage.input_tokens + usage.output_tokens > 0


async def check_streams() -> None:
    """A stream of the same is the same, deltas and all."""
    result = Runner.run_streamed(agent(tools=[get_weather]), "WEATHER")
    texts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert result.final_output.startswith("The tools say: ") and "".join(texts).endswith(result.final_output), texts
    thought = await Runner.run(agent(), "THINK")
    assert [item.type for item in thought.new_items] == ["reasoning_item", "message_output_item"], thought.new_items


async def check_hand_off() -> None:
    other = Agent(name="Bob", instructions="Be Bob.", model="scripted")
    result = await Runner.run(agent(handoffs=[other]), "HANDOFF")
    assert result.last_agent.name == "Bob" and result.final_output.startswith("The tools say: "), result.final_output


async def check_types() -> None:
    result = await Runner.run(agent(output_type=Person), "Give me JSON")
    assert result.final_output == Person(name="Ann", age=7), result.final_output


async def check_continued() -> None:
    """By the id of a response, and by all the items of a run."""
    first = await Runner.run(agent(), "hello")
    by_id = await Runner.run(agent(), "again", previous_response_id=first.last_response_id)
    by_items = await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": "again"}])
    assert by_id.final_output == by_items.final_output == "You said: again"
    counts = [run.raw_responses[-1].usage.input_tokens for run in (first, by_id, by_items)]
    assert counts[0] < counts[1] == counts[2], counts


async def main() -> None:
    client = AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", timeout=60, max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    set_tracing_disabled(True)
    for check in (check_functions, check_streams, check_hand_off, check_types, check_continued):
        await check()


asyncio.run(main())

"""langchain-anthropic and litellm against a scripted server: replies, streams, tools, by messages and by responses.

Argument: the scripted server's address.
"""

import json
import os
import sys
from typing import Any

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}  # it fetches nothing else

import litellm
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool

ADDRESS = sys.argv[1]
TOLD = 'The tools say: Rome: warm; Øslo \\ "x": warm'
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


@tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: warm"


def check_langchain() -> None:
    chat = ChatAnthropic(model="scripted", base_url=ADDRESS, api_key="none", max_tokens=2000, max_retries=0)
    assert chat.invoke("hello").content == "You said: hello"
    pieces = list(chat.stream("hello"))
    assert "".join(piece.text for piece in pieces) == "You said: hello" and len(pieces) > 3
    with_tools = chat.bind_tools([get_weather])
    messages: list[Any] = [HumanMessage("WEATHER")]
    first = with_tools.invoke(messages)
    assert [call["args"]["city"] for call in first.tool_calls] == ["Rome", 'Øslo \\ "x"'], first
    streamed: Any = None
    for piece in with_tools.stream(messages):
        streamed = piece if streamed is None else streamed + piece
    assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in first.tool_calls]
    results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in first.tool_calls]
    assert with_tools.invoke([*messages, first, *results]).text == TOLD
    thinking = ChatAnthropic(
        model="scripted",
        base_url=ADDRESS,
        api_key="none",
        max_tokens=2000,
        thinking={"type": "enabled", "budget_tokens": 1024},
    ).invoke("THINK")
    assert [block["type"] for block in thinking.content] == ["thinking", "text"], thinking
    assert first.usage_metadata["output_tokens"] > 0


def check_litellm(model: str, base: str) -> None:
    """litellm takes and gives OpenAI's chats, whichever API it speaks to the server."""
    options: dict[str, Any] = {
        "model": model,
        "api_base": base,
        "api_key": "none",
        "max_tokens": 2000,
        "num_retries": 0,
    }
    messages: list[Any] = [{"role": "user", "content": "WEATHER"}]
    first = litellm.completion(messages=messages, tools=[WEATHER], **options).choices[0].message
    calls = first.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Rome", 'Øslo \\ "x"'], first
    chunks = list(litellm.completion(messages=messages, tools=[WEATHER], stream=True, **options))
    built = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    assert [call.function.arguments for call in built.tool_calls] == [call.function.arguments for call in calls], built
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"{json.loads(call.function.arguments)['city']}: warm"}
        for call in calls
    ]
    told = litellm.completion(messages=[*messages, first.model_dump(), *results], tools=[WEATHER], **options)
    assert told.choices[0].message.content == TOLD, told


def main() -> None:
    check_langchain()
    check_litellm("anthropic/scripted", ADDRESS)
    check_litellm("openai/scripted", ADDRESS + "/v1")
    made = litellm.responses(model="openai/scripted", api_base=ADDRESS + "/v1", api_key="none", input="hello")
    assert made.output[-1].content[0].text == "You said: hello", made


main()

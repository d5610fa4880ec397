"""A server for checks of tools and thinking: words in the last message choose what its model replies."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from scripted_model import Message, ScriptedModel, call, serve_until_signal, text_of

THOUGHT = "<think>\nI weigh it, “naïvely”.\n</think>\n\n"


def name_of(tool: dict[str, Any]) -> str:
    return str(tool["function"]["name"])


def play(messages: list[Message], tools: list[dict[str, Any]]) -> str:
    last = messages[-1]
    text = text_of(last)
    if last["role"] == "tool":
        results = [text_of(each) for each in messages if each["role"] == "tool"]
        return f"The tools say: {'; '.join(results)}"
    if "WEATHER" in text and tools:
        both = call("get_weather", city="Rome", days=3) + "\n" + call("get_weather", city='Øslo \\ "x"', days=1)
        return f"{THOUGHT}Let me look.{both}"
    hand_off = next((name for tool in tools if (name := name_of(tool)).startswith("transfer_to_")), "")
    if "HANDOFF" in text and hand_off:
        return call(hand_off)
    if "JSON" in text:
        return '{"name": "Ann", "age": 7}'
    return THOUGHT + "The answer is 42, “naïvely”." if "THINK" in text else f"You said: {text}"


serve_until_signal(ScriptedModel(play), ready=lambda address: print(f"Ready on {address} ", flush=True))

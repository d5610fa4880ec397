"""A model that plays a part: what it replies is a function of the messages and tools it is shown."""

import json
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scripted_engine import ScriptedEngine, serving
from tahr.server.state.settings import Settings

Message = dict[str, Any]
Play = Callable[[list[Message], list[dict[str, Any]]], str]
# The prompt is the request itself. The marks tell how this model writes calls (Hermes' way) and thoughts.
TEMPLATE = (
    "{{ {'messages': messages, 'tools': tools} | tojson }}"
    "{% if false %}<tool_call></tool_call><think></think>{% endif %}{% if add_generation_prompt %}\n{% endif %}"
)


def call(name: str, **arguments: Any) -> str:
    """A call as this model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text_of(message: Message) -> str:
    """The text of a message, whichever shape its content has."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)


class ScriptedModel(ScriptedEngine):
    """An engine whose replies `play` gives."""

    obeys_words = False

    def __init__(self, play: Play, name: str = "scripted", context_size: int = 1_000_000):
        super().__init__(name, context_size, template=TEMPLATE)
        self._play = play
        self.sampling_defaults = replace(self.sampling_defaults, max_tokens=65_536)

    def script_for(self, prompt: str, index: int) -> str:
        text = prompt.removeprefix("<s>")
        if not text.startswith('{"messages"'):
            return "ready"  # the step a server warms up with, and plain completions
        request, end = json.JSONDecoder().raw_decode(text)
        reply = self._play(request["messages"], request["tools"] or [])
        is_thinking = "<think>" in text[end:] and "</think>" not in text[end:]  # the prompt has begun a block
        return f"</think>{reply}" if is_thinking and "</think>" not in reply else reply


def serve_until_signal(*models: ScriptedModel, ready: Callable[[str], None]) -> None:
    """Serve on a free port until SIGTERM or SIGINT."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with serving(*models, settings=Settings(port=0, log_interval_s=0)) as running:
        ready(running.address)
        over.wait()

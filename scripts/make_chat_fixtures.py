"""Renders every chat template of the tests with transformers and stores what came out, for tests/text/test_chat.py.

Run: python scripts/make_chat_fixtures.py FOLDER-OF-TEMPLATES tests/fixtures/chat/expected.json
(needs transformers and jinja2, no torch).
"""

import hashlib
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

NOW = datetime(2026, 1, 2, 3, 4, 5)
IN_FULL = (
    "Qwen-Qwen3-0.6B",
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say what the weather is <now> & here.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Größe"}}},
    },
}
USER = {"role": "user", "content": "Why is the sky blue?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Rayleigh scattering."}
THOUGHT = {"role": "assistant", "content": "<think>\nLight scatters.\n</think>\n\nRayleigh scattering."}
MORE = {"role": "user", "content": "And at dusk?\n"}


def call(index: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call with an id that suits the strictest templates."""
    return {"id": f"abcdefgh{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(index: int, name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"abcdefgh{index}", "name": name, "content": content}


ROME = call(1, "weather", {"city": 'Rom <&> "Größe"\n', "days": 3, "exact": True, "where": {"lat": 1.5, "tags": ["a"]}})
OSLO = call(2, "weather", {"city": "Oslo"})
CALLED = [USER, {"role": "assistant", "content": "", "tool_calls": [ROME]}, result(1, "weather", '{"degrees": 31}')]
TWICE = [
    USER,
    {"role": "assistant", "content": "Let me see.", "tool_calls": [ROME, OSLO]},
    result(1, "weather", "sunny"),
    result(2, "weather", "snow"),
    {"role": "assistant", "content": "Sunny and snow."},
    MORE,
]

CASES: dict[str, dict[str, Any]] = {
    "single": {"messages": [USER]},
    "turns": {"messages": [USER, ANSWER, MORE]},
    "system": {"messages": [SYSTEM, USER]},
    "tools": {"messages": [USER], "tools": [WEATHER]},
    "reasoning": {"messages": [USER, THOUGHT, MORE]},
    "call": {"messages": CALLED, "tools": [WEATHER]},
    "two calls": {"messages": TWICE, "tools": [WEATHER]},
}


def render(source: str, case: dict[str, Any]) -> str | None:
    """What transformers makes of it; None where the template raises."""
    from jinja2 import TemplateError
    from transformers.utils import chat_template_utils

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return NOW

    chat_template_utils.datetime = Clock
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[case["messages"]],
            tools=case.get("tools"),
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
    except (TemplateError, TypeError, ValueError):
        return None
    return str(texts[0])


def digest(text: str | None) -> str:
    """Enough of a digest to tell renderings apart."""
    return "raises" if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    """Write the fixture file."""
    templates, target = Path(sys.argv[1]), Path(sys.argv[2])
    digests: dict[str, dict[str, str]] = {}
    texts: dict[str, dict[str, str | None]] = {}
    for file in sorted(templates.glob("*.jinja")):
        made = {name: render(file.read_text(encoding="utf-8"), case) for name, case in CASES.items()}
        digests[file.stem] = {name: digest(text) for name, text in made.items()}
        if file.stem in IN_FULL:
            texts[file.stem] = made
    stored = {"now": NOW.isoformat(), "cases": CASES, "digests": digests, "texts": texts}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(stored, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The options of a chat as keyword arguments."""

from collections.abc import Mapping
from typing import Any

from tahr.generation.thinking import ThinkingOptions, thinking_options
from tahr.generation.tools import ToolOptions, tool_options

TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
THINKING = ("thinking", "reasoning_effort")


def split_options(given: Mapping[str, Any]) -> tuple[ToolOptions, ThinkingOptions, dict[str, Any]]:
    """Split template options into those of tools, those of thinking, and the template's own variables."""
    tools = tool_options(**{name: given[name] for name in TOOLS if name in given})
    thinking = thinking_options(**{name: given[name] for name in THINKING if name in given})
    return tools, thinking, {name: value for name, value in given.items() if name not in (*TOOLS, *THINKING)}

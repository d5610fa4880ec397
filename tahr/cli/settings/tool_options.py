"""The options of `tahr run` about tools and thinking, and the options of a chat they become."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tahr.cli.settings.grammar_options import text_of
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.text.templates.chat import ChatTemplate

CHOICES = ("auto", "none", "required")


def add_tools(parser: argparse.ArgumentParser) -> None:
    """Add the options of tools, and of how thinking is shown."""
    group = parser.add_argument_group("tools and thinking")
    group.add_argument("--tools", type=Path, metavar="FILE", help="a JSON list of functions the model may call")
    group.add_argument("--tool-choice", metavar="X", help="auto, none, required, or the name of one function")
    group.add_argument("--reasoning-effort", metavar="X", help="how much to think: none, low, medium, high, ...")
    group.add_argument("--hide-thinking", action="store_true", help="do not show what the model thinks")


def chat_options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options of a chat, checked as far as that needs no model."""
    from tahr.generation.options import split_options

    requested: dict[str, Any] = {"thinking": args.thinking, "reasoning_effort": args.reasoning_effort}
    if args.tools is not None:
        requested["tools"] = read_tools(args.tools)
    if args.tool_choice is not None:
        requested["tool_choice"] = choice_of(args.tool_choice)
    found = {name: value for name, value in requested.items() if value is not None}
    split_options(found)
    return found


def read_tools(path: Path) -> Any:
    try:
        tools = json.loads(text_of("--tools", str(path)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--tools {path} holds no JSON ({error}): write a list of functions.") from error
    if not isinstance(tools, list) or not tools:
        raise ConfigError(f"--tools {path} must hold a list of functions, each with a name and parameters.")
    return tools


def choice_of(text: str) -> Any:
    return text if text in CHOICES else {"type": "function", "function": {"name": text}}


def for_template(
    requested: dict[str, Any], template: "ChatTemplate | None", note: Callable[[str], None]
) -> dict[str, Any]:
    """The options without a switch that the model does not have; that is worth a note, not an error."""
    from tahr.generation.thinking import can_think
    from tahr.text.replies.thinking import SWITCHES

    has_switch = template is not None and (can_think(template) or any(name in template.variables for name in SWITCHES))
    if "thinking" not in requested or has_switch:
        return requested
    note("note: This model has no switch for thinking, so the thinking option changes nothing.")
    return {name: value for name, value in requested.items() if name != "thinking"}

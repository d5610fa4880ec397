"""Conversations with tools as a model's template can render them.

Most templates know tools, calls and results, and get them as they are. What a template does not know is written into
the messages: the tools into the instructions, calls in the model's own format, results as messages of the user.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tahr.text.templates.tool_calls import strict_id, wants_strict_ids, with_calls
from tahr.text.templates.tool_turns import Message, merged, names_of_calls, one_by_one
from tahr.text.templates.traits import THOUGHTS
from tahr.text.tool_calls.json_text import dumped
from tahr.text.tool_calls.written_calls import written

if TYPE_CHECKING:
    from tahr.text.templates.chat import ChatTemplate
    from tahr.text.templates.traits import TemplateTraits


EXAMPLE = ("the_tool_s_name", '{"an argument": "its value"}')

INSTRUCTIONS = """You may use tools. Each line describes one as JSON:
{tools}
To use a tool, reply with nothing but its name and its arguments in this form:
{example}
The result is given to you in the next message. If you need no tool, reply in plain text."""


def adapted(
    template: "ChatTemplate", messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Message], list[Mapping[str, Any]] | None]:
    """The messages and tools to render."""
    if any(message.get("reasoning_content") for message in messages):
        messages = [with_thought(message, template.traits) for message in messages]
    if not tools and not any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
        return list(messages), None
    traits = template.traits
    names = names_of_calls(messages)
    given = [each for message in messages for each in rewritten(message, template, names)]
    if not traits.several_calls and traits.writes_calls:
        given = one_by_one(given)
    if not traits.takes_results:
        given = merged(given)
    if tools and not traits.knows_tools:
        return instructed(given, tools, template), None
    return given, list(tools) if tools else None


def rewritten(message: Message, template: "ChatTemplate", names: Mapping[str, str]) -> Iterable[Message]:
    """A message as the template takes it."""
    if message.get("tool_calls") and message.get("content") and not template.traits.calls_with_text:
        said = {"role": message["role"], "content": message["content"]}
        return [said, with_calls({**message, "content": None}, template)]
    if message.get("tool_calls"):
        return [with_calls(message, template)]
    if message.get("role") == "tool" and not template.traits.takes_results:
        name = message.get("name") or names.get(str(message.get("tool_call_id")), "a tool")
        return [{"role": "user", "content": f"Result of {name}:\n{message.get('content') or ''}"}]
    if message.get("role") == "tool" and wants_strict_ids(template) and message.get("tool_call_id"):
        return [{**message, "tool_call_id": strict_id(str(message["tool_call_id"]))}]
    return [message]


def with_thought(message: Message, traits: "TemplateTraits") -> Message:
    """A message with what was thought before it where the template looks for that."""
    thought = message.get("reasoning_content")
    name = traits.thought_name
    if not thought or name == "reasoning_content" or (name != "content" and message.get(name)):
        return message
    if name == "content" and message.get("tool_calls") and not traits.writes_calls:  # calls become part of the text
        return message
    content = message.get("content")
    if traits.thought_or_text and message.get("tool_calls") and content and isinstance(content, str):
        return THOUGHTS[name]({**message, "content": ""}, f"{thought}\n\n{content}")
    return THOUGHTS[name](message, thought)


def instructed(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], template: "ChatTemplate"
) -> list[Message]:
    """The conversation with a description of the tools in its instructions, or before its first message."""
    lines = "\n".join(dumped(tool.get("function", tool)) for tool in tools)
    text = INSTRUCTIONS.format(tools=lines, example=written(template.call_format, [EXAMPLE]))
    role = "system" if template.traits.takes_system else "user"
    first, rest = (messages[0], messages[1:]) if messages and messages[0].get("role") == role else (None, messages)
    if first is None:
        return [{"role": role, "content": text}, *rest]
    parts = (first.get("content"), text) if role == "system" else (text, first.get("content"))
    return [{**first, "content": "\n\n".join(map(str, parts))}, *rest]

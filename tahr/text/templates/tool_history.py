"""Conversations with tools as a model's template can render them.

Most templates know tools, calls and results, and get them as they are. What a template does not know is written into
the messages: the tools into the instructions, calls in the model's own format, results as messages of the user.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tahr.text.templates.traits import THOUGHTS
from tahr.text.tool_calls.delta_buffer import nine_characters
from tahr.text.tool_calls.json_text import INVALID, dumped, loaded
from tahr.text.tool_calls.written_calls import written

if TYPE_CHECKING:
    from tahr.text.templates.chat import ChatTemplate
    from tahr.text.templates.traits import TemplateTraits

Message = Mapping[str, Any]

STRICT_ID = re.compile(r"[A-Za-z0-9]{9}")
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


def with_calls(message: Message, template: "ChatTemplate") -> Message:
    content = message.get("content") or ""
    calls = [normal_call(call, template) for call in message["tool_calls"]]
    if template.traits.writes_calls:
        return {**message, "content": content or template.traits.empty_content, "tool_calls": calls}
    pairs = [(call["function"]["name"], argument_text(call["function"]["arguments"])) for call in calls]
    text = written(template.call_format, pairs)
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def normal_call(call: Mapping[str, Any], template: "ChatTemplate") -> dict[str, Any]:
    """A call with its arguments in the form the template wants."""
    function = call["function"]
    arguments = function.get("arguments")
    if template.traits.text_arguments:
        arguments = argument_text(arguments)
    elif isinstance(arguments, str):
        value = loaded(arguments) if arguments.strip() else {}
        arguments = arguments if value is INVALID or not isinstance(value, dict) else value
    call_id = str(call.get("id") or "")
    if wants_strict_ids(template):
        call_id = strict_id(call_id)
    return {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def argument_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else dumped(arguments if arguments is not None else {})


def wants_strict_ids(template: "ChatTemplate") -> bool:
    return template.call_format.make_id is nine_characters


def strict_id(call_id: str) -> str:
    """An id of nine letters and digits: itself, or one that follows from it."""
    if STRICT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def names_of_calls(messages: Iterable[Message]) -> dict[str, str]:
    """Which tool each call was of, by its id."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {str(call["id"]): call["function"]["name"] for call in calls if call.get("id")}


def one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Calls made at once as calls made one after the other, each with its result."""
    made: list[Message] = []
    moved: set[int] = set()
    for at, message in enumerate(messages):
        if id(message) in moved:
            continue
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            made.append(message)
            continue
        no_words = {name: value for name, value in message.items() if name not in THOUGHTS} | {"content": ""}
        results = results_after(messages, at)
        for i, call in enumerate(calls):
            made.append({**(message if i == 0 else no_words), "tool_calls": [call]})
            result = results.get(str(call.get("id")))
            if result is not None and id(result) not in moved:
                moved.add(id(result))
                made.append(result)
    return made


def results_after(messages: Sequence[Message], at: int) -> dict[str, Message]:
    """The results between a message and the next calls, by the ids of their calls; later ones may have the same ids."""
    following = (messages[i] for i in range(at + 1, len(messages)))  # a slice would copy all that follow
    until_calls = takewhile(lambda each: not each.get("tool_calls"), following)
    return {str(each.get("tool_call_id")): each for each in until_calls if each.get("role") == "tool"}


def merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours by the user as one message: templates that know no results want turns to alternate."""
    made: list[Message] = []
    for message in messages:
        last = made[-1] if made else None
        if last is not None and last.get("role") == message.get("role") == "user":
            made[-1] = {**last, "content": f"{last.get('content')}\n\n{message.get('content')}"}
        else:
            made.append(message)
    return made


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

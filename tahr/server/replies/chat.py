"""Conversations of all APIs: their prompts, their turns in sessions, and the options beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tahr.errors import ConfigError
from tahr.generation.request import ChatPrompt
from tahr.generation.thinking import ThinkingOptions, thinking_options
from tahr.generation.tools import ToolOptions, tool_options
from tahr.server.bodies.messages import Message, conversation, text_of
from tahr.server.conversations.sessions import Caller, Turn, session_of
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.models.registry import ServedModel
from tahr.server.replies.prompts import check_variables, template_of
from tahr.server.state.state import ServerState

NAMED = (
    *("tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"),
    *("reasoning_effort", "thinking_budget", "thinking"),
)


class ChatOptions(Struct, frozen=True):
    """Options of a chat beside its messages and its sampling."""

    tools: ToolOptions
    thinking: ThinkingOptions


def chat_options(
    tools: Any = None,
    choice: Any = None,
    parallel: bool = True,
    thinking: bool | None = None,
    effort: str | None = None,
    legacy: bool = False,
) -> ChatOptions:
    """Checked; an error names the field its sentence begins with."""
    try:
        return ChatOptions(tool_options(tools, choice, parallel), thinking_options(thinking, effort))
    except ConfigError as error:
        raise field_error(str(error), legacy) from error


def field_error(message: str, legacy: bool = False) -> HttpError:
    """A 400 that names the field its sentence begins with."""
    if legacy:
        message = message.replace("tool_choice", "function_call").replace("tools", "functions")
    param = next((name for name in NAMED if message.startswith(name)), None)
    return HttpError(400, message, param=param)


def without_begun(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """A last message of the assistant is the beginning of the reply: the messages before it, and its text."""
    if not messages or messages[-1].role != "assistant":
        return messages, ""
    begun = text_of(messages[-1], f"messages[{len(messages) - 1}]")
    if messages[-1].tool_calls or not begun:
        wrong = "it has calls of tools" if begun else "it has no text"
        raise bad_field("messages", f"messages ends with the assistant's to be continued, but {wrong}: leave it out.")
    if len(messages) == 1:
        raise bad_field("messages", "messages holds only the beginning of a reply: send what it replies to.")
    return messages[:-1], begun


def prompt_of(
    model: ServedModel,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None = None,
    generate: bool = True,
    turn: Turn | None = None,
    begun: str = "",
) -> ChatPrompt:
    """The prompt of a chat, or of the whole session that it goes on with. Refuses what no template could render."""
    template = template_of(model.engine)
    if turn and begun:
        turn.deltas.append(begun)
    given = conversation(messages if turn is None else turn.messages)
    if variables:
        check_variables(template, variables)
    shorten = None if turn is None else lambda: conversation(turn.messages) if turn.shorten() else None
    return ChatPrompt(given, variables or {}, generate, begun, shorten)


def turn_of(
    state: ServerState, caller: Caller, model: ServedModel, messages: Sequence[Message], metadata: Any, n: int = 1
) -> Turn | None:
    """The turn of the session a request names, if it names one."""
    session = session_of(caller, metadata) if state.settings.has_sessions else ""
    if not session:
        return None
    if n > 1:
        raise bad_field("n", "n is more than 1, but a session can go on from one choice only: leave n out.")
    return state.sessions.begin((caller.key, session), messages, model.engine)

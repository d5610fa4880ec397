"""The fields of a chat about tools and thinking, in all their spellings, as the options of a chat."""

from collections.abc import Mapping
from typing import Any

from tahr.server.http.errors import bad_field
from tahr.server.openai.bodies import ChatBody
from tahr.server.replies.chat import ChatOptions, chat_options
from tahr.text.replies.thinking import SWITCHES


def options_of(body: ChatBody) -> ChatOptions:
    """Options of a chat beside its messages and its sampling."""
    if body.functions and body.tools:
        raise bad_field("functions", "functions is the old name of tools: send one of the two.")
    legacy = bool(body.functions) or (body.function_call is not None and not body.tools)
    tools, choice = legacy_tools(body) if legacy else (body.tools, body.tool_choice)
    parallel = body.parallel_tool_calls is not False and not legacy
    return chat_options(tools, choice, parallel, thinking_of(body), effort_of(body), legacy)


def legacy_tools(body: ChatBody) -> tuple[Any, Any]:
    """`functions` and `function_call` as tools and a tool choice."""
    call = body.function_call
    if call is None or isinstance(call, str):
        if call not in (None, "auto", "none"):
            raise bad_field("function_call", "function_call must be auto, none, or an object with a name.")
        return body.functions, call
    return body.functions, {"type": "function", "function": call}


# ---- thinking -----------------------------------------------------------------------------------------------


def thinking_of(body: ChatBody) -> bool | None:
    """Whether the model is to think. All spellings are one setting, so they must agree."""
    given: dict[str, bool] = {}
    for name in ("thinking", "enable_thinking"):
        value = getattr(body, name)
        if value is not None:
            given[name] = switch(name, value)
    if isinstance(body.reasoning, Mapping) and isinstance(body.reasoning.get("enabled"), bool):
        given["reasoning.enabled"] = body.reasoning["enabled"]
    for name in SWITCHES:
        value = (body.chat_template_kwargs or {}).get(name)
        if isinstance(value, bool):
            given[f"chat_template_kwargs.{name}"] = value
    if len(set(given.values())) > 1:
        raise bad_field(next(iter(given)), f"{' and '.join(given)} contradict each other: send one of them.")
    return next(iter(given.values()), None)


def switch(name: str, value: Any) -> bool:
    """true, false, or an object with a type, as Anthropic's clients write it."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, bool):
        return value
    if kind not in ("enabled", "disabled", "adaptive"):
        raise bad_field(name, f"{name} must be true or false.")
    return bool(kind != "disabled")


def effort_of(body: ChatBody) -> str | None:
    reasoning = checked_reasoning(body.reasoning)
    inner = reasoning.get("effort")
    if inner is not None and body.reasoning_effort is not None and inner != body.reasoning_effort:
        raise bad_field("reasoning", "reasoning.effort and reasoning_effort contradict each other: send one of them.")
    if inner is not None and not isinstance(inner, str):
        raise bad_field("reasoning", "reasoning.effort must be a text.")
    return body.reasoning_effort or inner


def checked_reasoning(given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    known = {"effort", "enabled", "max_tokens"}
    if not isinstance(given, dict) or not given.keys() <= known or not given:
        raise bad_field("reasoning", f"reasoning must be an object with one of {', '.join(sorted(known))}.")
    if not isinstance(given.get("enabled", True), bool):
        raise bad_field("reasoning", "reasoning.enabled must be true or false.")
    return given


def budget_of(body: ChatBody) -> int | None:
    """Tokens of thinking, where they are not given by a field of their own."""
    value = body.thinking.get("budget_tokens") if isinstance(body.thinking, dict) else None
    if value is None:
        value = checked_reasoning(body.reasoning).get("max_tokens")
    if value is not None and (type(value) is not int or value < 0):
        raise bad_field("thinking", "The budget of thinking must be a number of tokens.")
    return value

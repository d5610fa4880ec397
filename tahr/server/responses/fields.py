"""The fields of a body beside its input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tahr.grammar.spec import schema_kind
from tahr.server.http.errors import bad_field
from tahr.server.replies.chat import ChatOptions, chat_options
from tahr.server.replies.grammars import FieldGrammar, made
from tahr.server.responses.bodies import SUMMARIES, InputTokensBody, ResponsesBody, TextFormat
from tahr.server.responses.items import flat_name

SENT_NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}
# of metadata, which is kept with the response
MAX_PAIRS = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512

# Fields that are fine where they ask for nothing; everything else is refused.
HARMLESS: Mapping[str, Callable[[Any], bool]] = {
    "background": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "truncation": lambda value: value == "disabled",
    "include": lambda value: all(each == "reasoning.encrypted_content" for each in value),
    "context_management": lambda value: value == [],
    "conversation": lambda value: False,
    "moderation": lambda value: False,
    "personality": lambda value: False,
    "prompt": lambda value: False,
}


@dataclass(frozen=True, slots=True)
class FunctionNames:
    """Names of functions in namespaces: the model's and the client's."""

    by_flat: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def split(self, flat: str) -> tuple[str | None, str]:
        return self.by_flat.get(flat, (None, flat))


def check_harmless(body: InputTokensBody) -> None:
    for name, is_fine in HARMLESS.items():
        value = getattr(body, name, None)
        if value is not None and not is_fine(value):
            raise bad_field(name, f"{name} asks for what this server cannot do: leave it out.", "unsupported")
    if body.text and body.text.verbosity not in (None, "medium"):
        raise bad_field("text.verbosity", "text.verbosity is not supported by this server: leave it out.")


def check_metadata(metadata: dict[str, str] | None) -> None:
    pairs = (metadata or {}).items()
    if len(pairs) > MAX_PAIRS or any(len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS for key, value in pairs):
        limits = f"{MAX_PAIRS} pairs of up to {MAX_KEY_CHARS} and {MAX_VALUE_CHARS} characters"
        raise bad_field("metadata", f"metadata is larger than {limits}: shorten it.")


def options_of(body: InputTokensBody, functions: list[dict[str, Any]]) -> ChatOptions:
    """Tools and thinking."""
    parallel = body.parallel_tool_calls is not False
    return chat_options(functions or None, choice_of(body.tool_choice), parallel, effort=effort_of(body))


def sampling_of(body: ResponsesBody) -> dict[str, Any]:
    """The sampling settings by our names."""
    check_metadata(body.metadata)
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise bad_field("max_output_tokens", "max_output_tokens must be at least 1.")
    return {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}


# ---- tools --------------------------------------------------------------------------------------------------


def functions_of(tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], FunctionNames]:
    """Functions, those of namespaces with both names in one."""
    made: list[dict[str, Any]] = []
    by_flat: dict[str, tuple[str, str]] = {}
    for i, tool in enumerate(tools):
        if tool.get("type") != "namespace":
            made.append(function_of(tool, f"tools[{i}]"))
            continue
        space = tool.get("name")
        inner = tool.get("tools")
        if not isinstance(space, str) or not isinstance(inner, list):
            raise bad_field("tools", f"tools[{i}] is a namespace, which needs a name and a list of tools.")
        for j, each in enumerate(inner):
            function = function_of(each, f"tools[{i}].tools[{j}]")
            flat = flat_name(space, function["name"])
            by_flat[flat] = (space, function["name"])
            made.append({**function, "name": flat})
    return made, FunctionNames(by_flat)


def function_of(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise bad_field(
            "tools", f"{where}.type is {str(kind)[:64]!r}, but this server runs no tools: offer functions of your own."
        )
    if tool.get("defer_loading") or (tool.get("allowed_callers") or ["direct"]) != ["direct"]:
        raise bad_field("tools", f"{where} is not for the model to call at once: offer it directly, or leave it out.")
    if not isinstance(tool.get("name"), str):
        raise bad_field("tools", f"{where}.name is missing: a tool needs a name.")
    return {name: tool.get(name) for name in ("name", "description", "parameters", "strict")}


def choice_of(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A tool choice as chats write it: there, what belongs to a type stands in a field of its name."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        listed = choice.get("tools")
        tools = [named(each) for each in listed] if isinstance(listed, list) else listed
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return named(choice)


def named(choice: Any) -> dict[str, Any]:
    """A function by its name."""
    if not isinstance(choice, dict) or choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise bad_field("tool_choice", "tool_choice must be auto, none, required, a function's name or allowed_tools.")
    return {"type": "function", "function": {"name": flat_name(choice.get("namespace"), choice["name"])}}


FUNCTION_FIELDS = ("type", "name", "description", "parameters", "strict")


def shown_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as a reply repeats them: what was read, and nothing else that a client may have sent along."""
    return [
        {**fields_of(tool, FUNCTION_FIELDS), "tools": shown_tools(tool["tools"])}
        if tool.get("type") == "namespace"
        else {"parameters": None, "strict": None, **fields_of(tool, FUNCTION_FIELDS)}
        for tool in tools
    ]


def shown_choice(choice: str | dict[str, Any] | None) -> Any:
    """A tool choice as a reply repeats it."""
    if not isinstance(choice, dict):
        return choice
    made = fields_of(choice, ("type", "name", "namespace", "mode"))
    if isinstance(choice.get("tools"), list):
        made["tools"] = [fields_of(each, ("type", "name", "namespace")) for each in choice["tools"]]
    return made


def fields_of(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}


# ---- thinking and the form of the output --------------------------------------------------------------------


def effort_of(body: InputTokensBody) -> str | None:
    config = body.reasoning
    if config is None:
        return None
    if not {config.summary, config.generate_summary} <= {None, *SUMMARIES}:
        raise bad_field("reasoning.summary", "reasoning.summary must be auto, concise, detailed or none.")
    return config.effort


def wants_summary(body: InputTokensBody) -> bool:
    """Whether thoughts are to come as a summary."""
    config = body.reasoning
    return config is not None and (config.summary or config.generate_summary) not in (None, "none")


def grammar_of(body: InputTokensBody) -> FieldGrammar | None:
    """The grammar of the text."""
    given: TextFormat | None = body.text.format if body.text else None
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return made("text.format", "json_object")
    if given.type != "json_schema" or not isinstance(given.schema, dict):
        raise bad_field("text.format", "text.format must be text, json_object, or json_schema with a schema.")
    return made("text.format.schema", schema_kind(given.strict), given.schema)

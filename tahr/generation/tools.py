"""The tools of a request: which may be called, which must be, and the grammar that makes sure of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tahr.errors import ConfigError
from tahr.grammar import Grammar
from tahr.grammar.call_grammar import CallGrammar, call_grammar
from tahr.grammar.source import parsed
from tahr.grammar.spec import OF_JSON
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tool_calls.tools import Tool, tools_of


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may be called, must be, or must not, and which."""

    mode: str = "auto"  # auto, none or required
    names: frozenset[str] | None = None  # tools that may be called; None: all
    once: bool = False  # limit of one call: the caller named the function


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The functions a request offers, checked."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True  # several calls at once are allowed

    @property
    def is_required(self) -> bool:
        """Whether the reply must be calls."""
        return self.choice.mode == "required"

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools the model gets to see."""
        names = self.choice.names
        if not self.tools or self.choice.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if names is None or tool.name in names)

    def described(self) -> list[dict[str, Any]] | None:
        """The tools as templates read them."""
        return [tool.as_openai() for tool in self.callable] or None


NO_TOOLS = ToolOptions()

# ---- checks -------------------------------------------------------------------------------------------------


def tool_options(tools: Any = None, tool_choice: Any = None, parallel_tool_calls: bool = True) -> ToolOptions:
    """Tools as a caller writes them; what is wrong is said in a sentence."""
    if not tools and tool_choice is None and parallel_tool_calls is True:
        return NO_TOOLS
    offered = tools_of(tools) if tools else ()
    if not isinstance(parallel_tool_calls, bool):
        raise ConfigError("parallel_tool_calls must be true or false.")
    return ToolOptions(offered, tool_choice_of(tool_choice, offered), parallel_tool_calls)


def tool_choice_of(given: Any, tools: Sequence[Tool]) -> ToolChoice:
    """auto, none, required, one function, or a selection of them."""
    names = frozenset(tool.name for tool in tools)
    if given is None or given in ("auto", "none"):
        return ToolChoice(given or "auto")
    if not tools:
        raise ConfigError("tool_choice asks for a call, but there are no tools: offer some, or leave tool_choice out.")
    if given in ("required", "any"):
        return ToolChoice("required")
    if not isinstance(given, Mapping) or given.get("type") not in ("function", "allowed_tools"):
        raise ConfigError(
            f"tool_choice is {short(given)}, but it must be auto, none, required, a function by its name, or "
            "allowed_tools."
        )
    if given["type"] == "function":
        return ToolChoice("required", frozenset({declared(given, names)}), once=True)
    return allowed_tools(given.get("allowed_tools"), names)


def allowed_tools(given: Any, names: frozenset[str]) -> ToolChoice:
    mode = given.get("mode") if isinstance(given, Mapping) else None
    listed = given.get("tools") if isinstance(given, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise ConfigError("tool_choice.allowed_tools needs a mode (auto or required) and a list of tools.")
    return ToolChoice(mode, frozenset(declared(each, names) for each in listed))


def declared(given: Any, names: frozenset[str]) -> str:
    """The name of a function that was offered."""
    function = given.get("function", given) if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError('tool_choice names no function: write {"type": "function", "function": {"name": "..."}}.')
    if name not in names:
        raise ConfigError(
            f"tool_choice names {short(name)}, which is not among the tools: offer it, or choose another."
        )
    return name


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---- the grammar of calls -----------------------------------------------------------------------------------


def calls_of(template: ChatTemplate, given: Grammar | None, options: ToolOptions) -> Grammar | None:
    """The grammar of a reply with calls, where they are required, strict, or an alternative to JSON.

    Otherwise the grammar that was given.
    """
    tools = options.callable
    required = options.is_required
    content = schema_of(given) if tools and given and not required else None
    if not tools or not (required or (given is None and any(tool.strict for tool in tools)) or content is not None):
        return given
    parallel = options.parallel and template.traits.several_calls and not options.choice.once
    is_loose = given is not None and given.kind == "loose_json_schema"
    return call_grammar(CallGrammar(template.call_format, tools, parallel, required, content, is_loose))


def schema_of(grammar: Grammar) -> Any:
    """The schema of a grammar that asks for JSON; None for another grammar."""
    if grammar.kind == "json_object":
        return {"type": "object"}
    return parsed(grammar.kind, grammar.source) if grammar.kind in OF_JSON else None

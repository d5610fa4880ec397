"""The fields of Anthropic's bodies beside the messages."""

from collections.abc import Callable, Mapping
from typing import Any

from tahr.generation.thinking import can_think
from tahr.server.anthropic.bodies import (
    AnthropicTool,
    AnthropicToolChoice,
    CountTokensBody,
    MessagesBody,
    OutputFormat,
    ThinkingConfig,
)
from tahr.server.http.errors import bad_field
from tahr.server.replies.chat import ChatOptions, chat_options
from tahr.server.replies.grammars import FieldGrammar, made
from tahr.text.replies.thinking import EFFORTS
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tool_calls.json_text import dumped

SENT_NAMES = {"stop": "stop_sequences"}
DISPLAYS = (None, "summarized", "omitted")


def no_edits(value: Any) -> bool:
    """Whether context management leaves the conversation as it is."""
    edits = value.get("edits") or [] if isinstance(value, dict) else None
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and str(edit.get("type")).startswith("clear_thinking") and edit.get("keep") == "all"
        for edit in edits
    )


# Fields that are fine where they ask for nothing; everything else is refused.
HARMLESS: Mapping[str, Callable[[Any], bool]] = {
    "context_management": no_edits,
    "mcp_servers": lambda value: value == [],
    "speed": lambda value: value == "standard",
    "container": lambda value: False,
    "inference_geo": lambda value: False,
    "compaction": lambda value: False,
    "fallbacks": lambda value: value == [],
    "thread": lambda value: False,
}
CODES = {"thread": "thread_unsupported_request"}  # Anthropic's clients send the whole conversation after this code


def check_harmless(body: CountTokensBody) -> None:
    for name, is_fine in HARMLESS.items():
        value = getattr(body, name, None)
        if value is not None and not is_fine(value):
            code = CODES.get(name, "unsupported")
            raise bad_field(name, f"{name} asks for what this server cannot do: leave it out.", code)


def options_of(body: CountTokensBody, template: ChatTemplate | None) -> ChatOptions:
    """Tools and thinking; the template says whether and how its model thinks."""
    parallel = not (body.tool_choice and body.tool_choice.disable_parallel_tool_use)
    thinking = thinking_fields(body, template)
    return chat_options(
        functions_of(body.tools),
        choice_of(body.tool_choice),
        parallel,
        thinking.get("thinking"),
        thinking.get("reasoning_effort"),
    )


def sampling_of(body: MessagesBody, template: ChatTemplate | None) -> dict[str, Any]:
    """The sampling settings by our names."""
    check_lengths(body)
    return {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
        "thinking_budget": thinking_fields(body, template).get("thinking_budget"),
    }


def check_lengths(body: MessagesBody) -> None:
    if body.max_tokens < 1:
        raise bad_field("max_tokens", f"max_tokens is {body.max_tokens}, but it must be at least 1.")
    budget = body.thinking.budget_tokens if body.thinking else None
    if budget is not None and budget >= body.max_tokens:
        raise bad_field(
            "thinking.budget_tokens",
            f"thinking.budget_tokens is {budget}, but it must be less than max_tokens, which is {body.max_tokens}.",
        )


# ---- tools --------------------------------------------------------------------------------------------------


def functions_of(tools: list[AnthropicTool] | None) -> list[dict[str, Any]] | None:
    return [function_of(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())] or None


def function_of(tool: AnthropicTool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom", "function"):
        raise bad_field(
            "tools", f"{where}.type is {tool.type[:64]!r}, but this server runs no tools: offer tools of your own."
        )
    if tool.defer_loading or (tool.allowed_callers or ["direct"]) != ["direct"]:
        raise bad_field("tools", f"{where} is not for the model to call at once: offer it directly, or leave it out.")
    if tool.input_schema is None:
        raise bad_field("tools", f"{where}.input_schema is missing: a tool needs it.")
    examples = [f"Example of its input: {dumped(example)}" for example in tool.input_examples or ()]
    return {
        "name": tool.name,
        "description": "\n".join([tool.description or "", *examples]),
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }


def choice_of(choice: AnthropicToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        raise bad_field("tool_choice", "tool_choice.name belongs to the type tool: give both, or neither.")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    modes = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type not in modes:
        raise bad_field(
            "tool_choice", f"tool_choice.type is {choice.type[:64]!r}, but it must be auto, any, tool or none."
        )
    return modes[choice.type]


# ---- thinking and the form of the output --------------------------------------------------------------------


def thinks(config: ThinkingConfig | None) -> bool:
    """Whether thinking is asked for: without a word, Anthropic's models do not think."""
    return config is not None and config.type != "disabled"


def thinking_fields(body: CountTokensBody, template: ChatTemplate | None) -> dict[str, Any]:
    """A budget is an upper bound, and an effort one of thinking: a model that does not think keeps to both."""
    config = body.thinking
    effort = body.output_config.effort if body.output_config else None
    check_thinking(config, effort)
    if template is None or not can_think(template):
        return {}
    if not thinks(config):
        # A model that cannot be kept from thinking thinks as little as it is told to.
        return {"thinking": False} if template.thinking else {"reasoning_effort": effort}
    assert config
    return {"thinking": True, "thinking_budget": config.budget_tokens, "reasoning_effort": effort}


def check_thinking(config: ThinkingConfig | None, effort: str | None) -> None:
    if effort is not None and (effort not in EFFORTS or effort == "none"):
        names = ", ".join(EFFORTS[1:])
        raise bad_field(
            "output_config.effort", f"output_config.effort is {effort[:64]!r}, but it must be one of {names}."
        )
    if config is None:
        return
    if config.type not in ("enabled", "disabled", "adaptive"):
        raise bad_field("thinking.type", "thinking.type must be enabled, disabled or adaptive.")
    if (config.type == "enabled") != (config.budget_tokens is not None):
        raise bad_field("thinking.budget_tokens", "thinking.budget_tokens belongs to the type enabled: give both.")
    if config.budget_tokens is not None and config.budget_tokens < 1:
        raise bad_field("thinking.budget_tokens", "thinking.budget_tokens must be at least 1.")
    if config.display not in DISPLAYS:
        raise bad_field("thinking.display", "thinking.display must be summarized or omitted.")


def grammar_of(body: CountTokensBody) -> FieldGrammar | None:
    """The grammar of the reply's text."""
    inner = body.output_config.format if body.output_config else None
    if inner and body.output_format:
        raise bad_field("output_format", "output_format is the old place of output_config.format: send one of the two.")
    given: OutputFormat | None = inner or body.output_format
    if given is None:
        return None
    if given.type != "json_schema" or given.schema is None:
        raise bad_field("output_config.format", "output_config.format must be of type json_schema and have a schema.")
    return made("output_config.format.schema", "json_schema", given.schema)

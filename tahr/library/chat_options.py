"""What a chat asks for beside its messages: tools, which of them must be called, and how much to think."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tahr.config import SamplingParams
from tahr.engine.detokenize import ThinkingBudget
from tahr.errors import ConfigError
from tahr.grammar import Grammar
from tahr.grammar.call_grammar import FINAL, CallGrammar, call_grammar, is_call_grammar
from tahr.grammar.source import parsed
from tahr.text.chat import ChatTemplate
from tahr.text.prompt import encode_chat, render_chat
from tahr.text.thinking import EFFORT, EFFORT_BUDGETS, EFFORTS, SWITCHES, is_closed, is_open
from tahr.text.tokenizer import Tokenizer
from tahr.text.tool_calls.harmony import TO_FINAL
from tahr.text.tool_calls.parser import ReplyFormat
from tahr.text.tool_calls.tools import Tool, tools_of

N_TAIL_TOKENS = 16  # of a prompt, among which a block of thinking is opened if it is


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may be called, must be, or must not, and which."""

    mode: str = "auto"  # auto, none or required
    names: frozenset[str] | None = None  # only these; None: all
    once: bool = False  # one call: the caller named the function


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The checked options of a chat."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True  # more than one call may be made at once
    thinking: bool | None = None  # None: as the template has it
    effort: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools the model gets to see."""
        names = self.choice.names
        if not self.tools or self.choice.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if names is None or tool.name in names)

    @property
    def thinks(self) -> bool | None:
        """Whether thinking is asked for; None if nothing is said."""
        if self.thinking is None and self.effort is not None:
            return self.effort != "none"
        return self.thinking


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A prompt as the engine takes it."""

    tokens: list[int]
    params: SamplingParams
    reply_format: ReplyFormat | None = None  # None: it continues a text
    n_before: int = 0  # sequences of the same request that come before its own


OPTIONS = ("tools", "tool_choice", "parallel_tool_calls", "thinking", "reasoning_effort")


def split_options(given: Mapping[str, Any]) -> ChatOptions:
    """Keyword arguments of a chat: its options by their names, and variables of the template."""
    named = {name: value for name, value in given.items() if name in OPTIONS}
    return chat_options(**named, variables={name: value for name, value in given.items() if name not in OPTIONS})


# ---- checks -------------------------------------------------------------------------------------------------


def chat_options(
    tools: Any = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool = True,
    thinking: bool | None = None,
    reasoning_effort: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> ChatOptions:
    """Options as a caller writes them; what is wrong is said in a sentence."""
    offered = tools_of(tools) if tools else ()
    if not isinstance(thinking, bool | None):
        raise ConfigError("thinking must be true or false.")
    if not isinstance(parallel_tool_calls, bool):
        raise ConfigError("parallel_tool_calls must be true or false.")
    if reasoning_effort is not None and reasoning_effort not in EFFORTS:
        raise ConfigError(f"reasoning_effort is {short(reasoning_effort)}, but it must be one of {', '.join(EFFORTS)}.")
    if thinking is not None and reasoning_effort is not None and thinking == (reasoning_effort == "none"):
        raise ConfigError("reasoning_effort and thinking contradict each other: give one of the two.")
    choice = tool_choice_of(tool_choice, offered)
    return ChatOptions(offered, choice, parallel_tool_calls, thinking, reasoning_effort, dict(variables or {}))


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


# ---- the template -------------------------------------------------------------------------------------------


def template_variables(options: ChatOptions, template: ChatTemplate) -> dict[str, Any]:
    """The variables of the template, with its own switches for thinking set as the options say."""
    if options.thinks is None:
        return dict(options.variables)
    known = template.variables
    switches: dict[str, Any] = {name: options.thinks for name in SWITCHES if name in known}
    if options.thinks and options.effort and EFFORT in known:
        switches[EFFORT] = effort_word(options.effort, template)
    return {**switches, **options.variables}


def effort_word(effort: str, template: ChatTemplate) -> str:
    """The nearest effort the template knows."""
    if effort in template.source:
        return effort
    return "low" if effort == "minimal" else "high"


def can_think(template: ChatTemplate) -> bool:
    return template.thinking is not None or ReplyFormat(template.call_format).is_harmony


def check_thinking(options: ChatOptions, params: SamplingParams, template: ChatTemplate) -> None:
    """Refuse what the model cannot do. Asking a model that does not think to think changes nothing."""
    if options.thinks is None and params.thinking_budget is None:
        return
    thinks = can_think(template)
    if options.effort not in (None, "none") and not thinks and EFFORT not in template.variables:
        raise ConfigError("reasoning_effort is given, but this model does not think: leave it out.")
    if params.thinking_budget is not None and not thinks:
        raise ConfigError("thinking_budget is given, but this model does not think: leave it out.")
    if options.thinks is False and template.thinking is None and thinks:
        raise ConfigError("This model cannot answer without thinking: ask for reasoning_effort low instead.")


# ---- together -----------------------------------------------------------------------------------------------


def encode_messages(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions,
    **variables: Any,
) -> list[int]:
    """The prompt of a chat; `variables` are more of those that the options hold."""
    tools = [tool.as_openai() for tool in options.callable] or None
    return encode_chat(tokenizer, template, messages, tools, **variables, **template_variables(options, template))


def render_messages(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], options: ChatOptions, **variables: Any
) -> str:
    """The same as text."""
    tools = [tool.as_openai() for tool in options.callable] or None
    return render_chat(template, messages, tools, **variables, **template_variables(options, template))


def prepare(
    tokenizer: Tokenizer, template: ChatTemplate, tokens: list[int], params: SamplingParams, options: ChatOptions
) -> PreparedRequest:
    """A chat from its prompt: how the reply is read, and what it must keep to."""
    check_thinking(options, params, template)
    tail = tokenizer.decode(tokens[-N_TAIL_TOKENS:], skip_special=False) if template.thinking else ""
    reply_format = ReplyFormat(
        template.call_format,
        {tool.name: tool for tool in options.callable},
        template.thinking,
        in_thinking=is_open(tail, template.thinking),
        parallel=options.parallel,
    )
    if template.thinking and (options.thinks is False or params.thinking_budget == 0):
        tokens, params, reply_format = without_thinking(tokenizer, tokens, params, reply_format)
    elif params.thinking_budget is None and options.thinks and EFFORT not in template.variables:
        params = replace(params, thinking_budget=EFFORT_BUDGETS.get(options.effort or ""))
    prepared = PreparedRequest(tokens, with_call_grammar(tokenizer, template, params, options), reply_format)
    if prepared.params.grammar is None:
        return prepared
    thinks = template.thinks_by_default if options.thinks is None else options.thinks
    return after_thinking(tokenizer, prepared, bool(thinks) and not is_closed(tail, template.thinking))


def with_call_grammar(
    tokenizer: Tokenizer, template: ChatTemplate, params: SamplingParams, options: ChatOptions
) -> SamplingParams:
    """The parameters with a grammar of calls, where calls are required, strict, or an alternative to JSON."""
    tools, required, given = options.callable, options.choice.mode == "required", params.grammar
    content = schema_of(given) if tools and given and not required else None
    if not tools or not (required or (given is None and any(tool.strict for tool in tools)) or content is not None):
        return params
    parallel = options.parallel and template.traits.several_calls and not options.choice.once
    asked = CallGrammar(template.call_format, tools, parallel, required, content)
    return replace(params, grammar=call_grammar(asked, tokenizer.split_special))


def schema_of(grammar: Grammar) -> Any:
    """The schema of a grammar that asks for JSON; None for another grammar."""
    if grammar.kind == "json_object":
        return {"type": "object"}
    return parsed(grammar.kind, grammar.source) if grammar.kind == "json_schema" else None


def after_thinking(tokenizer: Tokenizer, prepared: PreparedRequest, thinks: bool) -> PreparedRequest:
    """Let the grammar begin after the thinking. A block that the model would open itself is opened for it."""
    form, tokens, params = prepared.reply_format, prepared.tokens, prepared.params
    assert form
    if form.is_harmony and not is_call_grammar(params.grammar):
        return replace(prepared, params=replace(params, grammar_after=encoded(tokenizer, FINAL)))
    if form.thinking is None or not (form.in_thinking or thinks):
        return prepared
    if not form.in_thinking:
        tokens = [*tokens, *encoded(tokenizer, f"{form.thinking.open}\n")]
    params = replace(params, grammar_after=mark_tokens(tokenizer, form.thinking.close))
    return PreparedRequest(tokens, params, replace(form, in_thinking=True))


def mark_tokens(tokenizer: Tokenizer, mark: str) -> tuple[int, ...]:
    """The tokens of a mark after a line break. Nearly always it is one; where it is text, a model may split it else."""
    tokens = encoded(tokenizer, f"\n{mark}")
    ends = (tokens[i:] for i in range(len(tokens)))
    return next((end for end in ends if b"".join(map(tokenizer.token_bytes, end)) == mark.encode()), tokens)


def encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special=False))


def without_thinking(
    tokenizer: Tokenizer, tokens: list[int], params: SamplingParams, reply_format: ReplyFormat
) -> tuple[list[int], SamplingParams, ReplyFormat]:
    """A block that the prompt has opened is closed, and another one cannot be opened."""
    marks = reply_format.thinking
    assert marks
    if reply_format.in_thinking:
        tokens = [*tokens, *tokenizer.encode(f"\n{marks.close}\n\n", add_special=False)]
    opening = tokenizer.encode(marks.open, add_special=False)
    banned = (*params.banned_tokens, *opening) if len(opening) == 1 else params.banned_tokens
    params = replace(params, banned_tokens=banned, thinking_budget=None)
    return tokens, params, replace(reply_format, in_thinking=False)


def thinking_budget(
    tokenizer: Tokenizer, params: SamplingParams, reply_format: ReplyFormat | None
) -> ThinkingBudget | None:
    """How much a reply may think, and how its thinking is ended then. What a grammar begins after comes last."""
    if params.thinking_budget is None or reply_format is None:
        return None
    if reply_format.is_harmony:
        close = TO_FINAL
    elif reply_format.thinking:
        close = f"\n{reply_format.thinking.close}" + ("" if params.grammar else "\n\n")
    else:
        return None
    return ThinkingBudget(params.thinking_budget, tuple(tokenizer.encode(close, add_special=False)))

"""A caller's request becomes the engine's: the only place that merges, fits and checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tahr.config import UNLIMITED_TOKENS, SamplingParams
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.writer import Writer
from tahr.errors import ConfigError, ContextExceeded
from tahr.generation.kept_images import KeptImages
from tahr.generation.pictures import PictureReader, Pictures, until, without_images
from tahr.generation.request import ChatPrompt, GenerationRequest, Message
from tahr.generation.thinking import (
    ThinkingOptions,
    check_thinking,
    template_variables,
    thinking_budget,
    wanted_thinking,
)
from tahr.generation.tools import calls_of
from tahr.generation.writers import DeferredTextWriter, ReplyWriter, TextWriter, has_text, line_limits
from tahr.grammar.call_grammar import FINAL, is_call_grammar
from tahr.text.replies.thinking import EFFORT, EFFORT_BUDGETS, is_closed, is_open
from tahr.text.templates.chat import ChatTemplate
from tahr.text.templates.prompt import encode_chat, render_chat
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tool_calls.parser import ReplyFormat

N_TAIL_TOKENS = 16  # the end of a prompt, where an open block of thinking shows


class RequestInputs(Protocol):
    """A model's readers of what is no text."""

    @property
    def pictures(self) -> PictureReader | None:
        """The reader of images; None: conversations have none."""


class RequestModel(Protocol):
    """A model as `RequestFacts` are taken from it."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    context_size: int
    sampling_defaults: SamplingParams

    @property
    def inputs(self) -> RequestInputs: ...


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts about a model that its requests depend on."""

    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: it takes no conversations
    context_size: int
    defaults: SamplingParams  # complete
    pictures: PictureReader | None = None  # None: it reads texts alone

    @staticmethod
    def of(model: RequestModel, defaults: SamplingParams | None = None) -> "RequestFacts":
        """The facts of a loaded model, maybe with other defaults than its own."""
        complete = model.sampling_defaults if defaults is None else defaults
        return RequestFacts(model.tokenizer, model.template, model.context_size, complete, model.inputs.pictures)


@dataclass(frozen=True, slots=True)
class Limits:
    """A server's limits on a request."""

    max_tokens: int | None = None  # limit on a reply
    max_images: int | None = None  # limit on the images of a prompt
    kept_images: KeptImages | None = None  # the memory that images of all requests share


NO_LIMITS = Limits()


@dataclass(slots=True)
class Resolution:
    """A request so far."""

    tokens: list[int]
    changes: dict[str, Any] = field(default_factory=dict)  # parameters that become other than they were asked for
    reply_format: ReplyFormat | None = None
    continues: bool = False  # the reply goes on from text of its own
    rows: PromptRows = NO_ROWS


def resolve(request: GenerationRequest, model: RequestFacts, limits: Limits = NO_LIMITS) -> ResolvedRequest:
    """All that can be known before an engine sees the request."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        made = replied(request, prompt, model, limits)
    else:
        tokens = model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        made = Resolution(tokens, rows=request.rows)
        refuse_placeholders(made, model)
    if request.rows and isinstance(prompt, ChatPrompt | str):
        raise ConfigError("Rows belong to placeholders among tokens: give the prompt as tokens, not as text.")
    fit_length(made, request, model, limits)
    if request.salt:
        made.changes["cache_salt"] = f"{request.salt}/{effective(request, model, 'cache_salt')}"
    params = request.params.completed(model.defaults, made.changes)
    writer = writers_of(model.tokenizer, made, params)
    return ResolvedRequest(made.tokens, params, writer, made.reply_format, made.rows)


def refuse_placeholders(made: Resolution, model: RequestFacts) -> None:
    """A token that stands for an image belongs to one: only chat templates write it."""
    if model.pictures and not made.rows and model.pictures.placeholder in made.tokens:
        raise ConfigError(
            "The prompt has the token that stands for an image, but no image: send images in a chat, or leave it out."
        )


def effective(request: GenerationRequest, model: RequestFacts, name: str) -> Any:
    """A parameter as it was asked for, or by default."""
    return getattr(request.params if request.params.asks_for(name) else model.defaults, name)


def writers_of(tokenizer: Tokenizer, made: Resolution, params: SamplingParams) -> Callable[[], Writer]:
    """Makes a writer for each choice. The first space of a text is dropped, unless it continues another."""
    stops = params.stop
    form = made.reply_format
    limits = line_limits(params)
    is_grammars = params.grammar is not None and not params.grammar_after  # the grammar speaks of that space
    continuing = is_grammars or made.continues or (form is None and has_text(tokenizer, made.tokens))
    if form is not None and not form.is_plain:
        budget = thinking_budget(tokenizer, params, form)
        return lambda: ReplyWriter(tokenizer, stops, form, continuing, budget, line_limits(params))
    if stops or limits is not None:
        return lambda: TextWriter(tokenizer, stops, continuing, line_limits(params))
    return lambda: DeferredTextWriter(tokenizer, continuing)


# ---- lengths ------------------------------------------------------------------------------------------------


def fit_length(made: Resolution, request: GenerationRequest, model: RequestFacts, limits: Limits) -> None:
    """How long the reply may be. What was asked for is refused where it does not fit, or cut; a default is cut."""
    params = request.params
    defaults = model.defaults
    n_prompt = len(made.tokens)
    left = model.context_size - n_prompt
    if left < 1:
        raise ContextExceeded(n_prompt, model.context_size)
    given = None if params.max_tokens == UNLIMITED_TOKENS else params.max_tokens
    if given is not None and not request.cuts_length:
        check_length(given, n_prompt, model, limits)
    # A default gives way to a least length, where lengths are not refused.
    least = params.min_tokens if request.cuts_length else 0
    wanted = params.max_tokens or max(defaults.max_tokens or left, least)
    most = min(wanted, left, limits.max_tokens or left)
    made.changes["max_tokens"] = most
    if request.cuts_length or not params.asks_for("min_tokens"):
        made.changes["min_tokens"] = min(effective(request, model, "min_tokens"), most)


def check_length(given: int, n_prompt: int, model: RequestFacts, limits: Limits) -> None:
    if limits.max_tokens is not None and given > limits.max_tokens:
        raise ConfigError(f"max_tokens is {given}, but this server gives {limits.max_tokens} at most.")
    if n_prompt + given > model.context_size:
        raise ContextExceeded(n_prompt, model.context_size, given)


# ---- conversations ------------------------------------------------------------------------------------------


def rendered(request: GenerationRequest, model: RequestFacts) -> str:
    """The prompt of a conversation as text."""
    prompt = request.prompt
    template = model.template
    assert isinstance(prompt, ChatPrompt) and template
    messages, _ = without_images(prompt.messages)
    text = render_chat(template, messages, request.tools.described(), **variables_of(request, prompt, template))
    return text + prompt.begun


def variables_of(request: GenerationRequest, prompt: ChatPrompt, template: ChatTemplate) -> Mapping[str, Any]:
    switches = template_variables(
        wanted_thinking(request.thinking, request.params, template), prompt.variables, template
    )
    return {"add_generation_prompt": prompt.add_generation_prompt, **switches}


def encoded_chat(request: GenerationRequest, model: RequestFacts) -> list[int]:
    """The tokens of a conversation, see `chat_prompt`."""
    return chat_prompt(request, model)[0]


def chat_prompt(
    request: GenerationRequest, model: RequestFacts, limits: Limits = NO_LIMITS
) -> tuple[list[int], PromptRows]:
    """The tokens of a conversation and the rows of its images; one that can be shortened is, until its reply fits."""
    prompt = request.prompt
    template = model.template
    assert isinstance(prompt, ChatPrompt) and template
    tools = request.tools.described()
    variables = variables_of(request, prompt, template)

    n_most = None if prompt.shorten else model.context_size
    pictures = Pictures(model.pictures, limits.max_images, n_most, limits.kept_images)

    def encoded_as(messages: Sequence[Message]) -> tuple[list[int], PromptRows]:
        messages, images = without_images(messages)
        pictures.check(images)
        reworded = model.pictures.reworded if model.pictures and images else {}
        return pictures.placed(encode_chat(model.tokenizer, template, messages, tools, reworded, **variables), images)

    n_most = request.params.max_tokens
    n_reply = 1 if n_most in (None, UNLIMITED_TOKENS) else n_most or 1
    tokens, rows = encoded_as(prompt.messages)
    while prompt.shorten and len(tokens) + n_reply > model.context_size and (fewer := prompt.shorten()):
        tokens, rows = encoded_as(fewer)
    return tokens, rows


def n_prompt_tokens(request: GenerationRequest, model: RequestFacts, limits: Limits) -> int:
    """How long the prompt of a conversation is; it may be longer than the context."""
    assert isinstance(request.prompt, ChatPrompt)
    return len(replied(request, request.prompt, model, limits).tokens)


def replied(request: GenerationRequest, prompt: ChatPrompt, model: RequestFacts, limits: Limits) -> Resolution:
    """A conversation's prompt, how the reply is read, and what it must keep to."""
    tokenizer = model.tokenizer
    template = model.template
    assert template
    if prompt.begun:
        request = past_thinking(request, template)
    params = request.params
    tools = request.tools
    tokens, rows = chat_prompt(request, model, limits)
    made = Resolution(tokens, rows=rows)
    check_thinking(request.thinking, params, template)
    tail = tokenizer.decode(made.tokens[-N_TAIL_TOKENS:], skip_special=False) if template.thinking else ""
    made.reply_format = ReplyFormat(
        template.call_format,
        {tool.name: tool for tool in tools.callable},
        template.thinking,
        in_thinking=is_open(tail, template.thinking),
        parallel=tools.parallel,
    )
    limit_thinking(made, request, model)
    if prompt.begun:
        go_on(made, prompt.begun, tokenizer)
    grammar = calls_of(template, params.grammar, tools)
    made.reply_format = replace(made.reply_format, calls_only=is_call_grammar(grammar) and tools.is_required)
    if grammar is not None:
        wanted = wanted_thinking(request.thinking, params, template)
        thinks = template.thinks_by_default if wanted.thinks is None else wanted.thinks
        made.changes["grammar"] = grammar
        begin_after_thinking(made, tokenizer, bool(thinks) and not is_closed(tail, template.thinking))
    made.rows = until(made.rows, len(made.tokens))
    return made


def past_thinking(request: GenerationRequest, template: ChatTemplate) -> GenerationRequest:
    """A reply that has begun thinks no more."""
    if request.thinking.thinks:
        raise ConfigError("thinking is on, but the reply has begun already: switch it off, or leave the beginning out.")
    if template.thinking is None:
        return request
    return replace(request, thinking=ThinkingOptions(False))


def go_on(made: Resolution, begun: str, tokenizer: Tokenizer) -> None:
    """Put the beginning of the reply behind the prompt, as text that names no special tokens."""
    assert made.reply_format
    if made.reply_format.is_harmony:
        made.tokens += encoded(tokenizer, FINAL)
    made.tokens += tokenizer.encode(begun, add_special=False, parse_special=False)
    made.continues = True


def limit_thinking(made: Resolution, request: GenerationRequest, model: RequestFacts) -> None:
    """Thinking that is not wanted is prevented; an effort is a budget where the template knows no efforts."""
    options = request.thinking
    budget = request.params.thinking_budget
    template = model.template
    assert template
    if template.thinking and (options.thinks is False or budget == 0):
        prevent_thinking(made, model.tokenizer, effective(request, model, "banned_tokens"))
    elif budget is None and options.thinks and EFFORT not in template.variables:
        made.changes |= {"thinking_budget": EFFORT_BUDGETS[options.effort]} if options.effort else {}


def prevent_thinking(made: Resolution, tokenizer: Tokenizer, banned: tuple[int, ...]) -> None:
    """A block that the prompt has opened is closed, and another one cannot be opened."""
    form = made.reply_format
    assert form and form.thinking
    if form.in_thinking:
        made.tokens += tokenizer.encode(f"\n{form.thinking.close}\n\n", add_special=False)
    opening = tokenizer.encode(form.thinking.open, add_special=False)
    if len(opening) == 1:
        made.changes["banned_tokens"] = (*banned, *opening)
    made.changes["thinking_budget"] = None
    made.reply_format = replace(form, in_thinking=False)


def begin_after_thinking(made: Resolution, tokenizer: Tokenizer, thinks: bool) -> None:
    """Let the grammar begin after the thinking. A block that the model would open itself is opened for it."""
    form = made.reply_format
    assert form
    if form.is_harmony and not is_call_grammar(made.changes["grammar"]):
        made.changes["grammar_after"] = encoded(tokenizer, FINAL)
    elif form.thinking is not None and (form.in_thinking or thinks):
        if not form.in_thinking:
            made.tokens += encoded(tokenizer, f"{form.thinking.open}\n")
        made.changes["grammar_after"] = mark_tokens(tokenizer, form.thinking.close)
        made.reply_format = replace(form, in_thinking=True)


def mark_tokens(tokenizer: Tokenizer, mark: str) -> tuple[int, ...]:
    """The tokens of a mark after a line break. Nearly always it is one; where it is text, a model may split it else."""
    tokens = encoded(tokenizer, f"\n{mark}")
    ends = (tokens[i:] for i in range(len(tokens)))
    return next((end for end in ends if b"".join(map(tokenizer.token_bytes, end)) == mark.encode()), tokens)


def encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special=False))

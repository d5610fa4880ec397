"""A request that its API has read becomes one that only has to be submitted."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from tahr.config import SamplingParams
from tahr.errors import ConfigError, ContextExceeded, GrammarError, TahrError
from tahr.generation.pictures import TooManyImages
from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import Limits, RequestFacts, resolve
from tahr.grammar.call_grammar import is_call_grammar
from tahr.images.errors import ImageTooLarge
from tahr.server.conversations.sessions import Caller, Turn
from tahr.server.http.errors import HttpError, bad_field, http_error
from tahr.server.http.guard import presented_key, salt_of
from tahr.server.http.request import HttpRequest
from tahr.server.models.registry import ServedModel
from tahr.server.replies.chat import field_error
from tahr.server.replies.formatter import FormatterMaker, ReplyOptions
from tahr.server.replies.generation import PreparedReply, generate
from tahr.server.replies.params import NO_NAMES
from tahr.server.state.state import ServerState

MAX_LOGPROB_ENTRIES = 2**18  # limit on prompts of one response: tokens times alternatives times repetitions
# limit on choices: tokens they may have, times alternatives, which the engine keeps to the end
MAX_OUTPUT_ENTRIES = 2**20


class ServedRequest(Struct, frozen=True):
    """An API's reading of a body: what to generate with which model, and how the reply is written."""

    model: ServedModel
    requests: list[GenerationRequest]  # one request for each prompt
    formatter: FormatterMaker
    model_name: str | None = None  # the name the client used
    names: Mapping[str, str] = NO_NAMES  # the client's names of our settings
    prompt_field: str = "messages"
    logprobs_field: str = "top_logprobs"
    grammar_field: str = ""  # field that the grammar came from, if there is one
    buffered: bool = False  # nothing is sent before the reply is whole
    stream: bool = False
    return_progress: bool = False
    include_usage: bool = False
    prompt_logprobs: bool = False  # the prompt's own are shown
    echoes: bool = False  # the prompt is repeated before each choice
    legacy_calls: bool = False
    prefill_only: bool = False  # nothing is to be generated
    turn: Turn | None = None  # turn in a session


Read = Callable[[bytes, Caller], ServedRequest]


async def reply_to(
    request: HttpRequest, state: ServerState, read: Read, names: Mapping[str, str] = NO_NAMES, n_more_bytes: int = 0
) -> None:
    """Reply to a request that `read` makes of the bytes of the body, on the text pool.

    `names` are what the API calls fields that errors name; `n_more_bytes` is what is read besides the body.
    """
    data = await request.body()
    caller = caller_of(request, state)
    limits = limits_of(state)

    def work() -> PreparedReply:
        try:
            return prepare(read(data, caller), limits)
        except HttpError as error:
            raise error.renamed(names) from error

    await generate(request, state, await state.text_pool.run_for(request, work, len(data) + n_more_bytes))


def limits_of(state: ServerState) -> Limits:
    """The limits on a request of this server."""
    return Limits(state.settings.max_tokens_cap, state.settings.max_images, state.kept_images)


def caller_of(request: HttpRequest, state: ServerState) -> Caller:
    """Who asks. Clients with different keys share no prefix cache, or its hits would tell them of others' prompts."""
    salt = "" if state.settings.shared_prefix_cache else salt_of(request, state.keys)
    return Caller(presented_key(request), request.header("x-tahr-session"), salt)


def prepare(served: ServedRequest, limits: Limits) -> PreparedReply:
    """Everything that can be wrong with a request is found here, before it costs the engine anything."""
    facts = RequestFacts.of(served.model.engine, served.model.defaults)
    try:
        resolved = [resolve(request, facts, limits) for request in served.requests]
    except TahrError as error:
        raise refused(error, served) from error
    params = max((each.params for each in resolved), key=lambda each: each.max_tokens or 0)
    n_tokens = sum(len(each.tokens) for each in resolved)
    check_prompt_logprobs(served, n_tokens, params)
    check_output_logprobs(served.logprobs_field, params, len(resolved))
    options = reply_options(served, params, len(resolved), n_tokens)
    return PreparedReply(
        model=served.model,
        resolved=resolved,
        formatter=served.formatter(served.model.engine.tokenizer, options),
        stream=served.stream,
        return_progress=served.return_progress,
        turn=served.turn,
        prefill_only=served.prefill_only,
        buffered=served.buffered,
        grammar_field="tools" if is_call_grammar(params.grammar) else served.grammar_field,
    )


def reply_options(served: ServedRequest, params: SamplingParams, n_prompts: int, n_tokens: int) -> ReplyOptions:
    return ReplyOptions(
        model=served.model_name or served.model.name,
        fingerprint=served.model.fingerprint,
        n_choices=n_prompts * params.n,
        n_per_prompt=params.n,
        n_prompt_tokens=n_tokens,
        context_size=served.model.engine.context_size,
        logprobs=params.logprobs is not None,
        prompt_logprobs=served.prompt_logprobs,
        include_usage=served.include_usage,
        legacy_calls=served.legacy_calls,
    )


# ---- refused ------------------------------------------------------------------------------------------------


def refused(error: TahrError, served: ServedRequest) -> HttpError:
    """An error of resolving, as this client is to see it."""
    if isinstance(error, ContextExceeded):
        return too_long(error, served)
    if isinstance(error, GrammarError):
        return bad_field("tools", str(error))
    if isinstance(error, TooManyImages):
        return bad_field(served.prompt_field, str(error), "too_many_images")
    if isinstance(error, ImageTooLarge):
        return HttpError(413, str(error), param=served.prompt_field)
    if isinstance(error, ConfigError) and str(error).startswith(served.prompt_field):
        return bad_field(served.prompt_field, str(error))
    made = field_error(str(error)) if isinstance(error, ConfigError) else None
    return made if made and made.param else http_error(error, served.names)


def too_long(error: ContextExceeded, served: ServedRequest) -> HttpError:
    field = served.prompt_field
    what = f"the prompt has {error.n_prompt} tokens"
    if error.max_tokens is not None:
        field = served.names.get("max_tokens", "max_tokens")
        n_all = error.n_prompt + error.max_tokens
        what = f"you asked for {n_all} tokens: {error.n_prompt} of the prompt and {error.max_tokens} as {field}"
    limit = f"This model's maximum context length is {error.context_size} tokens, but {what}"
    return bad_field(field, f"{limit}: shorten the prompt or ask for less.", "context_length_exceeded")


def check_prompt_logprobs(served: ServedRequest, n_tokens: int, params: SamplingParams) -> None:
    """Refuse log-probabilities of prompts that would make a response of any size from a short request."""
    field, n_repeated = (served.logprobs_field, params.n) if served.echoes else ("prompt_logprobs", 1)
    n_top = params.prompt_logprobs
    n_entries = 0 if n_top is None else n_tokens * (n_top + 1) * n_repeated
    if n_entries > MAX_LOGPROB_ENTRIES:
        what = f"{field} asks for {n_entries} log-probabilities of prompt tokens"
        most = f"one response holds {MAX_LOGPROB_ENTRIES} at most"
        raise bad_field(field, f"{what}, but {most}: ask for fewer alternatives or choices, or send shorter prompts.")


def check_output_logprobs(field: str, params: SamplingParams, n_prompts: int) -> None:
    """Refuse more log-probabilities of choices than are worth the memory."""
    n_tokens = n_prompts * params.n * (params.max_tokens or 0)
    n_entries = 0 if params.logprobs is None else n_tokens * (params.logprobs + 1)
    if n_entries > MAX_OUTPUT_ENTRIES:
        what = f"{field} asks for up to {n_entries} log-probabilities"
        message = f"{what}, but one response holds {MAX_OUTPUT_ENTRIES} at most: lower it, n or max_tokens."
        raise bad_field(field, message)

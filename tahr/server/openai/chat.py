"""Chats: /v1/chat/completions, what other APIs make of theirs, and the prompt a template makes of a conversation."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import msgspec
from msgspec import Struct

from tahr.config import SamplingParams
from tahr.errors import ConfigError, GrammarError
from tahr.grammar.call_grammar import is_call_grammar
from tahr.library.chat_options import ChatOptions, PreparedRequest
from tahr.library.chat_options import prepare as prepare_request
from tahr.server.adapters import chosen_model
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.guard import presented_key, tenant_of
from tahr.server.http.request import HttpRequest
from tahr.server.models import ModelRegistry, ServedModel
from tahr.server.openai.bodies import ChatBody, GenerationBody, Message, TemplateBody, check_limited, decode, lora_of
from tahr.server.openai.chat_fields import field_error, options_of, rendering_options
from tahr.server.openai.chat_settings import ChatSettings, settings_of
from tahr.server.openai.formatters import ChatFormatter, FormatterMaker, ReplyOptions
from tahr.server.openai.generation import EngineInput, GenerationRequest, generate
from tahr.server.openai.grammars import grammar_of
from tahr.server.openai.prompts import check_chat_size, conversation_of, template_of
from tahr.server.openai.replies import TemplateReply
from tahr.server.openai.sampling import Asked, Room, check_output_logprobs, check_prompt_logprobs, fit
from tahr.server.sessions import Caller, Turn, session_of
from tahr.server.state import ServerState

BODY = msgspec.json.Decoder(ChatBody)
TEMPLATE_BODY = msgspec.json.Decoder(TemplateBody)
NOTHING_ASKED = Asked(SamplingParams())


class ChatRequest(Struct, frozen=True):
    """A chat of any API: the body that all of them become, and how the reply is written."""

    body: ChatBody
    formatter: FormatterMaker = ChatFormatter
    cuts_length: bool = False  # a max_tokens beyond the room is cut to it, not refused
    sent_names: Mapping[str, str] = {}  # what the API calls fields of the body


async def chat(request: HttpRequest, state: ServerState) -> None:
    """Reply to a conversation."""
    await reply_to_chat(request, state, lambda data: ChatRequest(decode(BODY, data)))


async def reply_to_chat(
    request: HttpRequest, state: ServerState, read: Callable[[bytes], ChatRequest], n_more_bytes: int = 0
) -> None:
    """Reply to a conversation; `read` makes a chat of the bytes of the body, and of so many more, on the text pool."""
    data = await request.body()
    caller = Caller(presented_key(request), request.header("x-tahr-session"))
    salt = salt_of(request, state)

    def work() -> GenerationRequest:
        asked_chat = read(data)
        try:
            return prepare(state, asked_chat, caller, salt)
        except HttpError as error:
            raise error.renamed(asked_chat.sent_names) from error

    await generate(request, state, await state.text_pool.run_for(request, work, len(data) + n_more_bytes))


def salt_of(request: HttpRequest, state: ServerState) -> str:
    """Clients with different keys do not share a prefix cache, or its hits would tell them of each other's prompts."""
    return "" if state.settings.shared_prefix_cache else tenant_of(request, state.settings.api_keys)


def prepare(state: ServerState, asked_chat: ChatRequest, caller: Caller, salt: str) -> GenerationRequest:
    """Everything that can be wrong with a request is found here, before it costs the engine anything."""
    body = asked_chat.body
    model, lora = chosen_model(state.models, body.model, lora_of(body))
    check_limited(body)
    check_stream(body)
    check_chat_size(model.engine, body.messages, body.tools or body.functions)
    settings = settings_of(body)
    asked, options = settings.asked, settings.options
    constraint = grammar_of(body)
    turn = turn_of(state, body, caller, model)
    tokens = ChatPrompt(model, body, settings).encode(turn)
    prepared = prepared_chat(model, tokens, constraint.over(asked.params) if constraint else asked.params, options)
    tokens, grammar, params = prepared.tokens, prepared.params.grammar, prepared.params
    if grammar:
        params = replace(params, grammar=None, grammar_after=())
    if params is not asked.params:  # making parameters checks them all: most requests go without
        asked = replace(asked, params=params)
    check_prompt_logprobs("prompt_logprobs", len(tokens), asked.params.prompt_logprobs, 1)
    space = room(state, model, tokens, "messages", asked_chat.cuts_length)
    params = fit(asked, model.defaults, space, salt)
    check_output_logprobs("top_logprobs", params, 1)
    params = replace(params, grammar=grammar, grammar_after=prepared.params.grammar_after) if grammar else params
    params = replace(params, lora=lora) if lora else params
    shown = reply_options(body, model, 1, params, len(tokens))
    grammar_field = "tools" if is_call_grammar(grammar) else constraint.field if constraint else ""
    return GenerationRequest(
        model=model,
        inputs=[EngineInput(tokens, params)],
        formatter=asked_chat.formatter(model.engine.tokenizer, shown),
        is_reply=True,
        reply_format=prepared.reply_format,
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        turn=turn,
        grammar_field=asked_chat.sent_names.get(grammar_field, grammar_field),
    )


def prepared_chat(
    model: ServedModel, tokens: list[int], params: SamplingParams, options: ChatOptions
) -> PreparedRequest:
    """How the reply is read, what it must keep to, and what thinking does to prompt and parameters."""
    engine = model.engine
    try:
        return prepare_request(engine.tokenizer, template_of(engine), tokens, params, options)
    except GrammarError as error:
        raise bad_field("tools", str(error)) from error
    except ConfigError as error:
        raise field_error(str(error)) from error


class ChatPrompt(Struct, frozen=True):
    """The prompt of a chat: its own messages, or those of its session and its own."""

    model: ServedModel
    body: ChatBody
    settings: ChatSettings

    def encode(self, turn: Turn | None) -> list[int]:
        """Its tokens; of a session so much is left out that the reply has room."""
        if turn is None:
            return self._tokens(self.body.messages)
        n_reply = self.settings.asked.params.max_tokens or 1
        tokens = self._tokens(turn.messages)
        while len(tokens) + n_reply > self.model.engine.context_size and turn.shorten():
            tokens = self._tokens(turn.messages)
        return tokens

    def _tokens(self, messages: list[Message]) -> list[int]:
        generate = self.body.add_generation_prompt is not False
        return conversation_of(self.model.engine, messages, generate, self.settings.options).encode()


def n_prompt_tokens(state: ServerState, body: ChatBody) -> int:
    """How long the prompt of a chat is; it may be longer than the model's context."""
    model, _ = chosen_model(state.models, body.model, lora_of(body))
    check_chat_size(model.engine, body.messages, body.tools)
    settings = ChatSettings(NOTHING_ASKED, options_of(body))
    tokens = ChatPrompt(model, body, settings).encode(None)
    return len(prepared_chat(model, tokens, NOTHING_ASKED.params, settings.options).tokens)


def turn_of(state: ServerState, body: ChatBody, caller: Caller, model: ServedModel) -> Turn | None:
    """The turn of the session a request names, if it names one."""
    session = session_of(caller, body.metadata) if state.settings.has_sessions else ""
    if not session:
        return None
    if (body.n or 1) > 1:
        raise bad_field("n", "n is more than 1, but a session can go on from one choice only: leave n out.")
    return state.sessions.begin((caller.key, session), body.messages, model.engine)


def room(state: ServerState, model: ServedModel, tokens: list[int], field: str, cuts: bool = False) -> Room:
    return Room(len(tokens), model.engine.context_size, state.settings.max_tokens_cap, field, cuts)


def reply_options(
    body: GenerationBody, model: ServedModel, n_prompts: int, params: SamplingParams, n_prompt_tokens: int
) -> ReplyOptions:
    return ReplyOptions(
        model=body.model or model.name,  # the name the client used for it
        fingerprint=model.fingerprint,
        n_choices=n_prompts * params.n,
        n_per_prompt=params.n,
        n_prompt_tokens=n_prompt_tokens,
        context_size=model.engine.context_size,
        logprobs=params.logprobs is not None,
        prompt_logprobs=body.prompt_logprobs is not None,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        legacy_calls=isinstance(body, ChatBody) and bool(body.functions),
    )


def check_stream(body: GenerationBody) -> None:
    """Fields that mean something only with a stream, or only without."""
    if not body.stream:
        for name in ("stream_options", "return_progress"):
            if getattr(body, name):
                raise bad_field(name, f"{name} needs stream to be true: set it, or leave {name} out.")
    elif body.prompt_logprobs is not None:
        raise bad_field("prompt_logprobs", "prompt_logprobs cannot be streamed: leave it out, or set stream to false.")


async def apply_template(request: HttpRequest, state: ServerState) -> None:
    """The prompt a conversation becomes."""
    data = await request.body()
    work = partial(rendered, state.models, data)
    await request.respond_json(TemplateReply(await state.text_pool.run_for(request, work, len(data))))


def rendered(models: ModelRegistry, data: bytes) -> str:
    body = decode(TEMPLATE_BODY, data)
    engine = models.find_adapted(body.model)[0].engine
    check_limited(body)
    check_chat_size(engine, body.messages, body.tools)
    options = rendering_options(body.tools, body.chat_template_kwargs)
    return conversation_of(engine, body.messages, body.add_generation_prompt, options).render()

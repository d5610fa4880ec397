"""/api/chat and /api/generate."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from tahr.generation.chat_options import can_think
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.inputs import Prompts
from tahr.server.bodies.messages import Message
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.fill_in import fill_in_prompt
from tahr.server.models.registry import ServedModel
from tahr.server.ollama.bodies import KeepAlive, OllamaBody, OllamaChatBody, OllamaGenerateBody
from tahr.server.ollama.fields import (
    SENT_NAMES,
    check_keep_alive,
    find_model,
    generation_fields,
    keep_alive_s,
    messages_of,
    served_name,
    think_fields,
)
from tahr.server.ollama.formatter import LineFormatter, LineOptions
from tahr.server.ollama.replies import OllamaChatReply, OllamaGenerateReply, OllamaReplyMessage, timestamp
from tahr.server.openai.bodies import ChatBody, CompletionBody
from tahr.server.openai.chat import ChatRequest, reply_to_chat
from tahr.server.openai.completions import TextRequest, continue_texts
from tahr.server.state.state import ServerState

CHAT = msgspec.json.Decoder(OllamaChatBody)
GENERATE = msgspec.json.Decoder(OllamaGenerateBody)


async def chat(request: HttpRequest, state: ServerState) -> None:
    """Reply to a conversation, as Ollama does; without messages, load or unload the model."""
    data = await request.body()
    body = await state.text_pool.run(partial(decode, CHAT, data), len(data))
    model = find_model(state.models, body.model)
    if not body.messages:
        return await load_only(request, state, body, model)
    async with kept_alive(request, state, model, body.keep_alive):
        return await reply_to_chat(request, state, lambda _: chat_request(request, state, body))


async def generate(request: HttpRequest, state: ServerState) -> None:
    """Reply to a prompt, as Ollama does: as a message, raw, or between two texts."""
    data = await request.body()
    body = await state.text_pool.run(partial(decode, GENERATE, data), len(data))
    model = find_model(state.models, body.model)
    check_generate(body)
    if not body.prompt and not body.suffix:
        return await load_only(request, state, body, model)
    async with kept_alive(request, state, model, body.keep_alive):
        if body.raw or body.suffix or is_base(model, body):
            return await continue_texts(request, state, lambda _: text_request(request, state, body))
        return await reply_to_chat(request, state, lambda _: generate_request(request, state, body))


def is_base(model: ServedModel, body: OllamaGenerateBody) -> bool:
    """Whether a prompt is continued because the model has no template that would make a message of it."""
    return model.engine.template is None and not body.system and not body.think


def check_generate(body: OllamaGenerateBody) -> None:
    refused = {
        "images": "this server reads text only",
        "template": "the model's own template is used; raw takes a prompt as it is",
        "context": "conversations go on at /api/chat",
    }
    for name, why in refused.items():
        if getattr(body, name):
            raise bad_field(name, f"{name} is not supported, because {why}: leave it out.")
    plain = "raw" if body.raw else "suffix" if body.suffix else ""
    for name in ("system", "think") if plain else ():
        if getattr(body, name):
            raise bad_field(name, f"{name} needs the model's template, which {plain} leaves out: send one of both.")


# ---- requests -----------------------------------------------------------------------------------------------


def chat_request(request: HttpRequest, state: ServerState, body: OllamaChatBody) -> ChatRequest:
    return conversation(request, state, body, messages_of(body.messages or ()), body.tools, is_chat=True)


def generate_request(request: HttpRequest, state: ServerState, body: OllamaGenerateBody) -> ChatRequest:
    """A prompt is a message of the user."""
    system = [Message(role="system", content=body.system)] if body.system else []
    messages = [*system, Message(role="user", content=body.prompt)]
    return conversation(request, state, body, messages, None, is_chat=False)


def conversation(
    request: HttpRequest,
    state: ServerState,
    body: OllamaBody,
    messages: list[Message],
    tools: list[object] | None,
    is_chat: bool,
) -> ChatRequest:
    engine = find_model(state.models, body.model).engine
    if body.think and engine.template and not can_think(engine.template):
        raise bad_field("think", f"The model {body.model} does not think: leave think out.")
    made = ChatBody(
        model=served_name(state.models, body.model),
        messages=messages,
        tools=tools or None,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        **generation_fields(body, engine.context_size),
        **think_fields(body),
    )
    formatter = partial(LineFormatter, LineOptions(body.model, request, is_chat))
    return ChatRequest(made, formatter, cuts_length=True, sent_names=SENT_NAMES)


def text_request(request: HttpRequest, state: ServerState, body: OllamaGenerateBody) -> TextRequest:
    """A prompt that is continued as it is, up to a suffix if there is one."""
    engine = find_model(state.models, body.model).engine
    prompt: Prompts = body.prompt or ""
    if body.suffix:
        prompt = list(fill_in_prompt(engine, body.prompt or "", body.suffix, ("prompt", "suffix")))
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_field("top_logprobs", "top_logprobs needs logprobs to be true: set it, or leave both out.")
    made = CompletionBody(
        model=served_name(state.models, body.model),
        prompt=prompt,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **generation_fields(body, engine.context_size),
    )
    formatter = partial(LineFormatter, LineOptions(body.model, request, False))
    return TextRequest(made, formatter, cuts_length=True, sent_names=SENT_NAMES)


# ---- models -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def kept_alive(
    request: HttpRequest, state: ServerState, model: ServedModel, value: KeepAlive
) -> AsyncIterator[None]:
    """While inside, the model is held if the request says how long it is to stay afterwards."""
    if value is None:
        yield
        return
    seconds = keep_alive_s(value)
    check_keep_alive(request, state, seconds)
    with state.admission.place(request):
        async with state.pool.loaded(request, model):
            state.pool.keep(model, None if seconds == math.inf else seconds)
            yield


async def load_only(request: HttpRequest, state: ServerState, body: OllamaBody, model: ServedModel) -> None:
    """Nothing is to be generated: the model is loaded, or with a `keep_alive` of 0 unloaded."""
    seconds = None if body.keep_alive is None else keep_alive_s(body.keep_alive)
    if seconds == 0:
        check_keep_alive(request, state, seconds)
        state.pool.keep(model, seconds)
    else:
        with state.admission.place(request):
            async with state.pool.loaded(request, model), kept_alive(request, state, model, body.keep_alive):
                pass
    reason = "unload" if seconds == 0 else "load"
    facts: dict[str, Any] = {"model": body.model, "created_at": timestamp(), "done_reason": reason}
    if isinstance(body, OllamaChatBody):
        await request.respond_json(OllamaChatReply(message=OllamaReplyMessage("assistant", ""), **facts))
    else:
        await request.respond_json(OllamaGenerateReply(response="", **facts))

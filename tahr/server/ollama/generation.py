"""/api/chat and /api/generate."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from tahr.config import LoraChoice
from tahr.generation.request import GenerationRequest, Prompt
from tahr.generation.thinking import can_think
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.messages import Message
from tahr.server.conversations.sessions import Caller
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.fill_in import fill_in_prompt
from tahr.server.models.chosen import chosen_model
from tahr.server.models.registry import ServedModel
from tahr.server.ollama.bodies import KeepAlive, OllamaBody, OllamaChatBody, OllamaGenerateBody
from tahr.server.ollama.fields import (
    SENT_NAMES,
    check_keep_alive,
    content_of,
    find_model,
    grammar_of,
    keep_alive_s,
    messages_of,
    sampling_of,
    served_name,
    thinking_of,
)
from tahr.server.ollama.formatter import LineFormatter, LineOptions
from tahr.server.ollama.replies import OllamaChatReply, OllamaGenerateReply, OllamaReplyMessage, timestamp
from tahr.server.replies.chat import ChatOptions, chat_options, prompt_of, turn_of, without_begun
from tahr.server.replies.params import params_of
from tahr.server.replies.prompts import check_chat_size, check_generates, encode_inputs
from tahr.server.replies.served import ServedRequest, reply_to
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
        return await reply_to(request, state, lambda _, caller: chat_request(request, state, body, caller), SENT_NAMES)


async def generate(request: HttpRequest, state: ServerState) -> None:
    """Reply to a prompt, as Ollama does: as a message, raw, or between two texts."""
    data = await request.body()
    body = await state.text_pool.run(partial(decode, GENERATE, data), len(data))
    model = find_model(state.models, body.model)
    check_generate(body)
    if not body.prompt and not body.suffix and not body.images:
        return await load_only(request, state, body, model)
    async with kept_alive(request, state, model, body.keep_alive):
        make = text_request if body.raw or body.suffix or is_base(model, body) else prompt_request
        return await reply_to(request, state, lambda _, caller: make(request, state, body, caller), SENT_NAMES)


def is_base(model: ServedModel, body: OllamaGenerateBody) -> bool:
    """Whether a prompt is continued because the model has no template that would make a message of it."""
    return model.engine.template is None and not body.system and not body.think and not body.images


def check_generate(body: OllamaGenerateBody) -> None:
    refused = {
        "template": "the model's own template is used; raw takes a prompt as it is",
        "context": "conversations go on at /api/chat",
    }
    for name, why in refused.items():
        if getattr(body, name):
            raise bad_field(name, f"{name} is not supported, because {why}: leave it out.")
    if body.images and (body.raw or body.suffix):
        raise bad_field("images", "images needs the model's template, which raw and suffix leave out: send one.")
    plain = "raw" if body.raw else "suffix" if body.suffix else ""
    for name in ("system", "think") if plain else ():
        if getattr(body, name):
            raise bad_field(name, f"{name} needs the model's template, which {plain} leaves out: send one of both.")


# ---- requests -----------------------------------------------------------------------------------------------


def chat_request(request: HttpRequest, state: ServerState, body: OllamaChatBody, caller: Caller) -> ServedRequest:
    line = LineOptions(body.model, request, is_chat=True)
    return conversation(state, body, messages_of(body.messages or ()), body.tools, line, caller)


def prompt_request(request: HttpRequest, state: ServerState, body: OllamaGenerateBody, caller: Caller) -> ServedRequest:
    """A prompt is a message of the user."""
    system = [Message(role="system", content=body.system)] if body.system else []
    messages = [*system, Message(role="user", content=content_of(body.prompt, "user", body.images, "images"))]
    return conversation(state, body, messages, None, LineOptions(body.model, request, is_chat=False), caller)


def conversation(
    state: ServerState,
    body: OllamaBody,
    messages: Sequence[Message],
    tools: list[object] | None,
    line: LineOptions,
    caller: Caller,
) -> ServedRequest:
    name = served_name(state.models, body.model)
    model, lora = chosen_model(state.models, name, None)
    if body.think and model.engine.template and not can_think(model.engine.template):
        raise bad_field("think", f"The model {body.model} does not think: leave think out.")
    check_chat_size(model.engine, messages, tools)
    thinking, effort = thinking_of(body)
    options = chat_options(tools or None, thinking=thinking, effort=effort)
    messages, begun = without_begun(messages)
    turn = turn_of(state, caller, model, messages, None)
    prompt = prompt_of(model, messages, turn=turn, begun=begun)
    made = served(body, model, prompt, lora, caller, line, options)
    return msgspec.structs.replace(made, model_name=name, turn=turn)


def text_request(request: HttpRequest, state: ServerState, body: OllamaGenerateBody, caller: Caller) -> ServedRequest:
    """A prompt that is continued as it is, up to a suffix if there is one."""
    name = served_name(state.models, body.model)
    model, lora = chosen_model(state.models, name, None)
    engine = model.engine
    prompt = body.prompt or ""
    check_generates(engine)
    if body.suffix:
        tokens = fill_in_prompt(engine, prompt, body.suffix, ("prompt", "suffix"))
    else:
        (tokens,) = encode_inputs(engine, prompt, "prompt")
    made = served(body, model, tokens, lora, caller, LineOptions(body.model, request, False), chat_options())
    return msgspec.structs.replace(made, model_name=name, prompt_field="prompt", logprobs_field="logprobs")


def served(
    body: OllamaBody,
    model: ServedModel,
    prompt: Prompt,
    lora: tuple[LoraChoice, ...],
    caller: Caller,
    line: LineOptions,
    options: ChatOptions,
) -> ServedRequest:
    constraint = grammar_of(body)
    grammar = constraint.grammar if constraint else None
    given = sampling_of(body, model.engine.context_size)
    params = params_of({**given, "grammar": grammar, "lora": lora or None}, SENT_NAMES)
    return ServedRequest(
        model=model,
        requests=[GenerationRequest(prompt, params, options.tools, options.thinking, True, caller.salt)],
        formatter=partial(LineFormatter, line),
        names=SENT_NAMES,
        grammar_field=constraint.field if constraint else "",
        stream=body.stream is not False,
    )


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
    with state.admission.place(request, model):
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
        with state.admission.place(request, model):
            async with state.pool.loaded(request, model), kept_alive(request, state, model, body.keep_alive):
                pass
    reason = "unload" if seconds == 0 else "load"
    facts: dict[str, Any] = {"model": body.model, "created_at": timestamp(), "done_reason": reason}
    if isinstance(body, OllamaChatBody):
        await request.respond_json(OllamaChatReply(message=OllamaReplyMessage("assistant", ""), **facts))
    else:
        await request.respond_json(OllamaGenerateReply(response="", **facts))

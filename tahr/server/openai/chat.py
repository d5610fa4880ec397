"""/v1/chat/completions and /apply-template."""

from collections.abc import Sequence
from functools import partial

import msgspec

from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import RequestFacts, rendered
from tahr.server.bodies.decoding import check_limited, decode
from tahr.server.bodies.messages import Message
from tahr.server.bodies.sampling_fields import lora_of
from tahr.server.conversations.sessions import Caller
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.models.chosen import chosen_model
from tahr.server.models.registry import ModelRegistry
from tahr.server.openai.bodies import ChatBody, GenerationBody, TemplateBody
from tahr.server.openai.chat_fields import budget_of, options_of
from tahr.server.openai.formatters import ChatFormatter
from tahr.server.openai.grammars import grammar_of, is_buffered
from tahr.server.openai.replies import TemplateReply
from tahr.server.openai.sampling import collect
from tahr.server.replies.chat import chat_options, prompt_of, turn_of, without_begun
from tahr.server.replies.params import params_of
from tahr.server.replies.prompts import check_chat_size
from tahr.server.replies.served import ServedRequest, reply_to
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(ChatBody)
TEMPLATE_BODY = msgspec.json.Decoder(TemplateBody)


async def chat(request: HttpRequest, state: ServerState) -> None:
    """Reply to a conversation."""
    await reply_to(request, state, partial(read, state))


def read(state: ServerState, data: bytes, caller: Caller) -> ServedRequest:
    body = decode(BODY, data)
    model, lora = chosen_model(state.models, body.model, lora_of(body.lora))
    check_limited(body)
    check_stream(body)
    check_chat_size(model.engine, body.messages, body.tools or body.functions)
    given, names = collect(body)
    given.setdefault("thinking_budget", budget_of(body))
    constraint = grammar_of(body)
    grammar = constraint.grammar if constraint else None
    field = constraint.field if constraint else ""
    params = params_of({**given, "grammar": grammar, "lora": lora or None}, names)
    options = options_of(body)
    messages, begun = conversation_of(body)
    turn = turn_of(state, caller, model, messages, body.metadata, body.n or 1)
    generates = bool(begun) or body.add_generation_prompt is not False
    prompt = prompt_of(model, messages, body.chat_template_kwargs, generates, turn, begun)
    return ServedRequest(
        model=model,
        requests=[GenerationRequest(prompt, params, options.tools, options.thinking, salt=caller.salt)],
        formatter=ChatFormatter,
        model_name=body.model,
        names=names,
        grammar_field=field,
        buffered=is_buffered(body, field),
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        include_usage=includes_usage(body),
        prompt_logprobs=body.prompt_logprobs is not None,
        legacy_calls=bool(body.functions),
        turn=turn,
    )


def conversation_of(body: ChatBody) -> tuple[Sequence[Message], str]:
    """The messages to reply to, and the beginning of the reply if it is to be continued."""
    messages = body.messages
    if [message.role for message in messages[-2:]] == ["assistant", "assistant"]:
        raise bad_field("messages", "messages ends with two messages of the assistant: make one of them.")
    if not body.continue_final_message:
        return messages, ""
    if body.add_generation_prompt:
        wrong = "continue_final_message and add_generation_prompt contradict each other: send one of them."
        raise bad_field("continue_final_message", wrong)
    if not messages or messages[-1].role != "assistant":
        wrong = "continue_final_message is true, but the last message is not the assistant's: leave it out."
        raise bad_field("continue_final_message", wrong)
    return without_begun(messages)


def includes_usage(body: GenerationBody) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


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
    work = partial(templated, state.models, data)
    await request.respond_json(TemplateReply(await state.text_pool.run_for(request, work, len(data))))


def templated(models: ModelRegistry, data: bytes) -> str:
    body = decode(TEMPLATE_BODY, data)
    model = models.find_adapted(body.model)[0]
    check_limited(body)
    check_chat_size(model.engine, body.messages, body.tools)
    options = chat_options(body.tools)
    prompt = prompt_of(model, body.messages, body.chat_template_kwargs, body.add_generation_prompt)
    return rendered(GenerationRequest(prompt, tools=options.tools), RequestFacts.of(model.engine))

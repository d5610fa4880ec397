"""/v1/messages, and how many tokens a message would be."""

from collections.abc import Sequence
from functools import partial

import msgspec

from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import RequestFacts, n_prompt_tokens
from tahr.server.anthropic.bodies import CountTokensBody, MessagesBody
from tahr.server.anthropic.cache_marks import cache_page_size, has_marks
from tahr.server.anthropic.conversation import chat_messages
from tahr.server.anthropic.fields import (
    SENT_NAMES,
    check_harmless,
    functions_of,
    grammar_of,
    options_of,
    sampling_of,
    thinks,
)
from tahr.server.anthropic.formatter import MessageFormatter, MessageOptions
from tahr.server.anthropic.replies import CountTokensReply
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.messages import Message
from tahr.server.conversations.sessions import Caller
from tahr.server.http.request import HttpRequest
from tahr.server.models.chosen import chosen_model
from tahr.server.replies.chat import prompt_of, turn_of, without_begun
from tahr.server.replies.params import params_of
from tahr.server.replies.prompts import check_chat_size
from tahr.server.replies.served import ServedRequest, limits_of, reply_to
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(MessagesBody)
COUNT_BODY = msgspec.json.Decoder(CountTokensBody)


async def create_message(request: HttpRequest, state: ServerState) -> None:
    """Reply to a conversation, as Anthropic's API does."""
    await reply_to(request, state, partial(read, state), SENT_NAMES)


async def count_tokens(request: HttpRequest, state: ServerState) -> None:
    """How many tokens the prompt of a message would have."""
    data = await request.body()
    made = await state.text_pool.run_for(request, lambda: CountTokensReply(counted(state, data)), len(data))
    await request.respond_json(made)


def read(state: ServerState, data: bytes, caller: Caller) -> ServedRequest:
    body = decode(BODY, data)
    model, lora = chosen_model(state.models, body.model, None)
    check_harmless(body)
    messages: Sequence[Message] = chat_messages(body)
    template = model.engine.template
    constraint = grammar_of(body)
    options = options_of(body, template)
    check_chat_size(model.engine, messages, functions_of(body.tools))
    grammar = constraint.grammar if constraint else None
    params = params_of({**sampling_of(body, template), "grammar": grammar, "lora": lora or None}, SENT_NAMES)
    messages, begun = without_begun(messages)
    turn = turn_of(state, caller, model, messages, body.metadata)
    prompt = prompt_of(model, messages, turn=turn, begun=begun)
    omits = body.thinking is not None and body.thinking.display == "omitted"
    page_size = cache_page_size(model.engine) if has_marks(body) else 0
    shown = MessageOptions(body.max_tokens, thinks(body.thinking), omits, page_size)
    return ServedRequest(
        model=model,
        requests=[GenerationRequest(prompt, params, options.tools, options.thinking, True, caller.salt)],
        formatter=partial(MessageFormatter, shown),
        model_name=body.model,
        names=SENT_NAMES,
        grammar_field=constraint.field if constraint else "",
        stream=bool(body.stream),
        turn=turn,
    )


def counted(state: ServerState, data: bytes) -> int:
    body = decode(COUNT_BODY, data)
    model, _ = chosen_model(state.models, body.model, None)
    check_harmless(body)
    has_marks(body)
    messages: Sequence[Message] = chat_messages(body)
    grammar_of(body)  # refused as it would be in a message
    options = options_of(body, model.engine.template)
    check_chat_size(model.engine, messages, functions_of(body.tools))
    messages, begun = without_begun(messages)
    prompt = prompt_of(model, messages, begun=begun)
    request = GenerationRequest(prompt, tools=options.tools, thinking=options.thinking)
    return n_prompt_tokens(request, RequestFacts.of(model.engine, model.defaults), limits_of(state))

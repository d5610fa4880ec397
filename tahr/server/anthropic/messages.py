"""/v1/messages, and how many tokens a message would be."""

from functools import partial

import msgspec

from tahr.server.anthropic.bodies import CountTokensBody, MessagesBody
from tahr.server.anthropic.fields import SENT_NAMES, chat_body, thinks
from tahr.server.anthropic.formatter import MessageFormatter, MessageOptions
from tahr.server.anthropic.replies import CountTokensReply
from tahr.server.http.request import HttpRequest
from tahr.server.openai.bodies import decode
from tahr.server.openai.chat import ChatRequest, n_prompt_tokens, reply_to_chat
from tahr.server.state import ServerState

BODY = msgspec.json.Decoder(MessagesBody)
COUNT_BODY = msgspec.json.Decoder(CountTokensBody)


async def create_message(request: HttpRequest, state: ServerState) -> None:
    """Reply to a conversation, as Anthropic's API does."""
    await reply_to_chat(request, state, partial(read, state))


async def count_tokens(request: HttpRequest, state: ServerState) -> None:
    """How many tokens the prompt of a message would have."""
    data = await request.body()
    made = await state.text_pool.run_for(request, lambda: CountTokensReply(counted(state, data)), len(data))
    await request.respond_json(made)


def read(state: ServerState, data: bytes) -> ChatRequest:
    body = decode(BODY, data)
    template = state.models.find_adapted(body.model)[0].engine.template
    omits = body.thinking is not None and body.thinking.display == "omitted"
    asked = MessageOptions(body.max_tokens, has_thinking=thinks(body.thinking), omits_thinking=omits)
    chat = chat_body(body, template)
    return ChatRequest(chat, partial(MessageFormatter, asked), cuts_length=True, sent_names=SENT_NAMES)


def counted(state: ServerState, data: bytes) -> int:
    body = decode(COUNT_BODY, data)
    return n_prompt_tokens(state, chat_body(body, state.models.find_adapted(body.model)[0].engine.template))

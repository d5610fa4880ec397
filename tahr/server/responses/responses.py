"""/v1/responses: to create one, to see it again, and to forget it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import RequestFacts, n_prompt_tokens
from tahr.server.bodies.decoding import decode
from tahr.server.conversations.sessions import Caller
from tahr.server.conversations.store import ResponseStore, StoredItem, StoredItems, StoredResponse
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.guard import owner_of
from tahr.server.http.query import page_of, query_of
from tahr.server.http.request import HttpRequest
from tahr.server.models.chosen import chosen_model
from tahr.server.models.text_pool import SHORT_BYTES
from tahr.server.replies.chat import prompt_of, turn_of
from tahr.server.replies.params import params_of
from tahr.server.replies.prompts import check_chat_size
from tahr.server.replies.served import ServedRequest, limits_of, reply_to
from tahr.server.responses.bodies import InputItem, InputPart, InputTokensBody, ResponsesBody, SocketBody
from tahr.server.responses.fields import (
    SENT_NAMES,
    check_harmless,
    functions_of,
    grammar_of,
    options_of,
    sampling_of,
    shown_choice,
    shown_tools,
    wants_summary,
)
from tahr.server.responses.formatter import ResponseFormatter, ResponseOptions, new_id
from tahr.server.responses.items import as_items, chat_messages
from tahr.server.responses.replies import DeletedResponse, InputTokensReply, ItemList, ResponseReply
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(ResponsesBody)
SOCKET_BODY = msgspec.json.Decoder(SocketBody)
COUNT_BODY = msgspec.json.Decoder(InputTokensBody)
ITEM = msgspec.json.Decoder(InputItem)
BELOW = "/v1/responses/"
NO_ITEMS = StoredItems(())
encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose conversations a request may continue."""

    owner: str
    socket: int | None = None  # number of its WebSocket, which has a last response of its own
    stores: bool = True

    @classmethod
    def of(cls, request: HttpRequest) -> "Asker":
        return cls(owner_of(request), request.socket, stores=request.on_behalf is None)


@dataclass(frozen=True, slots=True)
class Continued:
    """A conversation, and a request's addition to it."""

    state: ServerState
    asker: Asker
    parent: StoredResponse | None
    new: list[InputItem]

    def items(self) -> list[InputItem]:
        """The whole conversation."""
        before = [ITEM.decode(item) for item in self.parent.conversation()] if self.parent else []
        return [*before, *self.new]

    def keeper(self, stores: bool) -> Callable[[ResponseReply], None] | None:
        """Keeps what becomes of it, if anybody does."""
        if stores:
            return self._storer()
        return None if self.asker.socket is None else self._recent_keeper(self.asker.socket)

    def _storer(self) -> Callable[[ResponseReply], None]:
        """Stores what becomes of it. What grows with the request is made here, because replies end on the loop."""
        shown = [shown_input(item) for item in self.new]
        inputs = StoredItems(StoredItem(item["id"], encode(item)) for item in shown)

        def keep(reply: ResponseReply) -> None:
            outputs = StoredItems(StoredItem(item.id, encode(item)) for item in reply.output)
            stored = StoredResponse(reply.id, encode(reply), inputs, outputs, self.parent)
            self.state.responses.add(self.asker.owner, stored)

        return keep

    def _recent_keeper(self, socket: int) -> Callable[[ResponseReply], None]:
        """Likewise, but for the WebSocket alone, and without a parent, which others may forget."""
        before = self.parent.conversation() if self.parent else []
        inputs = [*before, *(encode(shown_input(item)) for item in self.new)]

        def keep(reply: ResponseReply) -> None:
            items = StoredItems(StoredItem("", item) for item in [*inputs, *map(encode, reply.output)])
            self.state.recent.put(socket, StoredResponse(reply.id, b"", items, NO_ITEMS))

        return keep


# ---- creating -----------------------------------------------------------------------------------------------


async def create_response(request: HttpRequest, state: ServerState) -> None:
    """Reply to a conversation, as OpenAI's Responses API does."""
    store = state.responses  # a conversation may be as long as all it holds
    await reply_to(
        request,
        state,
        partial(read, state, Asker.of(request)),
        SENT_NAMES,
        stored_bytes(store),
    )


def read(state: ServerState, asker: Asker, data: bytes, caller: Caller) -> ServedRequest:
    body = decode(BODY, data) if asker.socket is None else as_body(decode(SOCKET_BODY, data))
    is_ahead = isinstance(body, SocketBody) and body.generate is False
    continued = conversation_of(state, asker, body)
    check_harmless(body)
    functions, names = functions_of(body.tools or [])
    messages = chat_messages(body.instructions, continued.items(), needs_turn=not is_ahead)
    model, lora = chosen_model(state.models, body.model, None)
    check_chat_size(model.engine, messages, functions)
    constraint = grammar_of(body)
    grammar = constraint.grammar if constraint else None
    options = options_of(body, functions)
    sampling = sampling_of(body) | ({"max_tokens": 1} if is_ahead else {})
    params = params_of({**sampling, "grammar": grammar, "lora": lora or None}, SENT_NAMES)
    turn = None if is_ahead else turn_of(state, caller, model, messages, None)
    prompt = prompt_of(model, messages, generate=not is_ahead, turn=turn)
    if not asker.stores or is_ahead:  # thousands of a batch would take the place of all others
        body.store = False
    keep = continued.keeper(body.store is not False)
    shown = ResponseOptions(repeated(body), names, wants_summary(body), keep, is_ahead)
    return ServedRequest(
        model=model,
        requests=[GenerationRequest(prompt, params, options.tools, options.thinking, True, caller.salt)],
        formatter=partial(ResponseFormatter, shown),
        model_name=body.model,
        names=SENT_NAMES,
        grammar_field=constraint.field if constraint else "",
        stream=bool(body.stream),
        turn=turn,
        prefill_only=is_ahead,
    )


def as_body(body: SocketBody) -> SocketBody:
    """A message as the body of a request that is streamed."""
    if body.type != "response.create":
        raise bad_field("type", "The type of a message must be response.create.")
    body.stream = True
    return body


def conversation_of(state: ServerState, asker: Asker, body: InputTokensBody) -> Continued:
    parent = parent_of(state, asker, body.previous_response_id) if body.previous_response_id else None
    given = as_items(body.input)
    named = [item.id for item in given if item.type == "item_reference"]
    if len(named) != len(set(named)):  # a short request could repeat a name to any size
        raise bad_field("input", "input refers to one item several times: refer to it once.")
    new = [resolved(state.responses, asker.owner, item, i) for i, item in enumerate(given)]
    return Continued(state, asker, parent, new)


def parent_of(state: ServerState, asker: Asker, id: str) -> StoredResponse:
    """The response that a request goes on from: the last one of its WebSocket, or a stored one."""
    recent = None if asker.socket is None else state.recent.get(asker.socket, id)
    return recent or state.responses.get(asker.owner, id)


def resolved(store: ResponseStore, owner: str, item: InputItem, i: int) -> InputItem:
    """An item, or the one of a stored response that it refers to."""
    if item.type != "item_reference":
        return item
    found = store.item(owner, item.id or "")
    if found is None:
        raise bad_field("input", f"input[{i}] refers to {(item.id or '')[:80]!r}, which is not stored: send the item.")
    return ITEM.decode(found)


def repeated(body: ResponsesBody) -> dict[str, Any]:
    """The fields of the reply that repeat the request."""
    config = body.reasoning
    text = body.text
    given = {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "parallel_tool_calls": body.parallel_tool_calls,
        "tool_choice": shown_choice(body.tool_choice),
        "tools": shown_tools(body.tools or []),
        "metadata": body.metadata,
        "store": body.store,
    }
    format = text.format if text and text.format else {"type": "text"}
    return {name: value for name, value in given.items() if value is not None} | {
        "reasoning": {"effort": config.effort if config else None, "summary": config.summary if config else None},
        "text": {"format": format, "verbosity": "medium"},
    }


def shown_input(item: InputItem) -> dict[str, Any]:
    """An input item as it is listed: with an id, and a message's text as a part."""
    content = item.content
    if item.type == "message" and isinstance(content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = [InputPart(kind, content)]
    id = item.id or new_id("msg" if item.type == "message" else "item")
    return {"type": item.type, **msgspec.to_builtins(msgspec.structs.replace(item, id=id, content=content))}


async def count_input_tokens(request: HttpRequest, state: ServerState) -> None:
    """How many tokens the prompt of a response would have."""
    data = await request.body()
    asker = Asker.of(request)

    def work() -> InputTokensReply:
        return InputTokensReply(counted(state, asker, decode(COUNT_BODY, data)))

    n_bytes = len(data) + stored_bytes(state.responses)
    await request.respond_json(await state.text_pool.run_for(request, work, n_bytes))


def counted(state: ServerState, asker: Asker, body: InputTokensBody) -> int:
    check_harmless(body)
    functions, _ = functions_of(body.tools or [])
    messages = chat_messages(body.instructions, conversation_of(state, asker, body).items())
    model, _ = chosen_model(state.models, body.model, None)
    check_chat_size(model.engine, messages, functions)
    grammar_of(body)  # refused as it would be in a response
    options = options_of(body, functions)
    request = GenerationRequest(prompt_of(model, messages), tools=options.tools, thinking=options.thinking)
    return n_prompt_tokens(request, RequestFacts.of(model.engine, model.defaults), limits_of(state))


def stored_bytes(store: ResponseStore) -> int:
    """Enough to keep a request off the event loop if anything is stored that it may go on from."""
    return min(store.n_bytes, SHORT_BYTES)


# ---- stored responses ---------------------------------------------------------------------------------------


def id_of(request: HttpRequest, suffix: str = "") -> str:
    return request.path.removeprefix(BELOW).removesuffix(suffix)


async def get_response(request: HttpRequest, state: ServerState) -> None:
    """A stored response."""
    found = state.responses.get(owner_of(request), id_of(request))
    if query_of(request, ("stream",)).get("stream", "false") != "false":
        raise bad_field("stream", "A stored response cannot be streamed again: leave stream out.")
    await request.respond(found.reply)


async def delete_response(request: HttpRequest, state: ServerState) -> None:
    """Forget a stored response."""
    id = id_of(request)
    state.responses.remove(owner_of(request), id)
    await request.respond_json(DeletedResponse(id))


async def cancel_response(request: HttpRequest, state: ServerState) -> None:
    """Refused: only a response in the background can be cancelled, and this server has none."""
    state.responses.get(owner_of(request), id_of(request, "/cancel"))
    message = "Only responses in the background can be cancelled: close the connection of one that is streamed."
    raise HttpError(400, message, code="not_in_background")


async def list_responses(request: HttpRequest, state: ServerState) -> None:
    """All stored responses of a key, a page of them as of input items."""
    stored = [StoredItem(each.id, each.reply) for each in state.responses.all_of(owner_of(request))]
    await request.respond_json(items_page(request, stored))


async def list_input_items(request: HttpRequest, state: ServerState) -> None:
    """The input items of a stored response, the newest first unless `order` is asc; `limit` (20) after `after`."""
    found = state.responses.get(owner_of(request), id_of(request, "/input_items"))
    await request.respond_json(items_page(request, found.inputs.items))


def items_page(request: HttpRequest, oldest_first: Sequence[StoredItem]) -> ItemList:
    """The part of a list that a query asks for."""
    ids = [item.id for item in oldest_first]
    page = page_of(query_of(request, ("limit", "order", "after")), ids)
    shown = [oldest_first[place] for place in page.places]
    first, last = (shown[0].id, shown[-1].id) if shown else ("", "")
    return ItemList([msgspec.Raw(item.data) for item in shown], first, last, page.has_more)

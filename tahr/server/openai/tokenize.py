"""/tokenize and /detokenize."""

from functools import partial

import msgspec
from msgspec import UNSET

from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import RequestFacts, encoded_chat
from tahr.server.bodies.decoding import check_limited, decode
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.openai.bodies import DetokenizeBody, TokenizeBody
from tahr.server.openai.replies import DetokenizeReply, TokenizeReply, TokenPiece
from tahr.server.replies.chat import chat_options, prompt_of
from tahr.server.replies.prompts import check_chat_size, check_text_size, decode_tokens, encode_text
from tahr.server.state.state import ServerState

TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


async def tokenize(request: HttpRequest, state: ServerState) -> None:
    """The tokens of a text or of a rendered conversation."""
    data = await request.body()
    await request.respond(await state.text_pool.run_for(request, partial(tokenized, state.models, data), len(data)))


def tokenized(models: ModelRegistry, data: bytes) -> bytes:
    body = decode(TOKENIZE, data)
    model = models.find_adapted(body.model)[0]
    engine = model.engine
    check_limited(body)
    tokens = tokens_of(model, body)
    strings = [engine.tokenizer.piece(token) for token in tokens] if body.return_token_strs else UNSET
    shown = [piece_of(engine, token) if body.with_pieces else token for token in tokens]
    return encode(TokenizeReply(shown, len(tokens), engine.context_size, strings))


def tokens_of(model: ServedModel, body: TokenizeBody) -> list[int]:
    engine = model.engine
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise bad_field(given[-1] if given else "prompt", "Give exactly one of prompt, content and messages.")
    if body.messages is not None:
        check_chat_size(engine, body.messages, body.tools)
        options = chat_options(body.tools)
        prompt = prompt_of(model, body.messages, body.chat_template_kwargs, body.add_generation_prompt)
        return encoded_chat(GenerationRequest(prompt, tools=options.tools), RequestFacts.of(engine))
    if body.tools:
        raise bad_field("tools", "tools belong to messages: send messages, or leave tools out.")
    text = body.prompt if body.prompt is not None else body.content or ""
    check_text_size(engine, text, given[0])
    requested = [value for value in (body.add_special_tokens, body.add_special) if value is not None]
    adds_special = (
        requested[0] if requested else body.content is None
    )  # llama.cpp's clients ask for them, vLLM's get them
    return encode_text(engine, text, given[0], adds_special, body.parse_special)


def piece_of(engine: ServedEngine, token: int) -> TokenPiece:
    """A token with its text, or with its bytes if they are no text by themselves."""
    data = engine.tokenizer.token_bytes(token)
    try:
        return TokenPiece(token, data.decode())
    except UnicodeDecodeError:
        return TokenPiece(token, list(data))


async def detokenize(request: HttpRequest, state: ServerState) -> None:
    """The text of tokens."""
    data = await request.body()
    await request.respond(await state.text_pool.run_for(request, partial(detokenized, state.models, data), len(data)))


def detokenized(models: ModelRegistry, data: bytes) -> bytes:
    body = decode(DETOKENIZE, data)
    text = decode_tokens(models.find_adapted(body.model)[0].engine, body.tokens, body.skip_special)
    return encode(DetokenizeReply(text, text))

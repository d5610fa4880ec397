"""/tokenize and /detokenize."""

from functools import partial

import msgspec
from msgspec import UNSET

from tahr.server.engine_port import ServedEngine
from tahr.server.http.errors import bad_field
from tahr.server.http.request import Call
from tahr.server.openai.bodies import DetokenizeBody, TokenizeBody, decode
from tahr.server.openai.prompts import conversation_of, decode_tokens
from tahr.server.openai.replies import DetokenizeReply, TokenizeReply

TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


async def tokenize(call: Call) -> None:
    """The tokens of a text or of a rendered conversation."""
    body = decode(TOKENIZE, await call.body())
    engine = call.front.find(body.model).engine
    tokens = await call.front.beside(partial(tokens_of, engine, body))
    pieces = [engine.tokenizer.piece(token) for token in tokens] if body.return_token_strs else UNSET
    await call.json(TokenizeReply(tokens, len(tokens), engine.context_size, pieces))


def tokens_of(engine: ServedEngine, body: TokenizeBody) -> list[int]:
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise bad_field(given[-1] if given else "prompt", "Give exactly one of prompt, content and messages.")
    if body.messages is not None:
        return conversation_of(engine, body.messages, body.add_generation_prompt, body.chat_template_kwargs).encode()
    text = body.prompt if body.prompt is not None else body.content or ""
    return engine.tokenizer.encode(text, add_special=body.add_special_tokens, parse_special=body.parse_special)


async def detokenize(call: Call) -> None:
    """The text of tokens."""
    body = decode(DETOKENIZE, await call.body())
    engine = call.front.find(body.model).engine
    text = await call.front.beside(partial(decode_tokens, engine, body.tokens, body.skip_special))
    await call.json(DetokenizeReply(text, text))

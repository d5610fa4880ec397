"""/api/embed, and the older /api/embeddings."""

from functools import partial
from time import perf_counter

import msgspec

from tahr.server.engine_port import ServedEngine
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models import ServedModel
from tahr.server.ollama.bodies import OllamaEmbedBody, OllamaEmbeddingsBody, OllamaOptions
from tahr.server.ollama.fields import check_options, find_model
from tahr.server.ollama.formatter import NANOSECONDS
from tahr.server.ollama.generation import kept_alive
from tahr.server.ollama.replies import OllamaEmbeddingsReply, OllamaEmbedReply
from tahr.server.openai.bodies import decode
from tahr.server.openai.embeddings import Vectors, shortened
from tahr.server.openai.prompts import MAX_PROMPTS, check_text_size
from tahr.server.state import ServerState

EMBED = msgspec.json.Decoder(OllamaEmbedBody)
EMBEDDINGS = msgspec.json.Decoder(OllamaEmbeddingsBody)
POOLING = "last"


async def embed(request: HttpRequest, state: ServerState) -> None:
    """Texts as vectors of length 1; what is longer than the context is cut, unless `truncate` is false."""
    data = await request.body()
    body = await state.text_pool.run(partial(decode, EMBED, data), len(data))
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    model = find_model(state.models, body.model)
    async with kept_alive(request, state, model, body.keep_alive):
        vectors, n_tokens = await vectors_of(request, state, model, texts, body)
    await request.respond(await state.text_pool.run(partial(embed_reply, request, body, vectors, n_tokens)))


async def embeddings(request: HttpRequest, state: ServerState) -> None:
    """A text as a vector, as older clients ask for it."""
    data = await request.body()
    old = await state.text_pool.run(partial(decode, EMBEDDINGS, data), len(data))
    body = OllamaEmbedBody(model=old.model, options=old.options, keep_alive=old.keep_alive)
    model = find_model(state.models, body.model)
    async with kept_alive(request, state, model, body.keep_alive):
        vectors, _ = await vectors_of(request, state, model, [old.prompt] if old.prompt else [], body)
    row = vectors[0].tolist() if vectors is not None else []
    await request.respond_json(OllamaEmbeddingsReply(row))


async def vectors_of(
    request: HttpRequest, state: ServerState, model: ServedModel, texts: list[str], body: OllamaEmbedBody
) -> tuple[Vectors | None, int]:
    """The vectors, and how many tokens they took; without texts there are none, and the model is only loaded."""
    tokens = await state.text_pool.run(partial(encoded, model.engine, texts, body))
    if not tokens:
        return None, 0
    with state.admission.admitted(request, model):
        async with request.cancellable():
            vectors = await model.engine.embed(tokens, POOLING, ())
    return shortened(vectors, body.dimensions), sum(map(len, tokens))


def encoded(engine: ServedEngine, texts: list[str], body: OllamaEmbedBody) -> list[list[int]]:
    check_options(body.options or OllamaOptions(), engine.context_size)
    if len(texts) > MAX_PROMPTS:
        raise bad_field("input", f"input has {len(texts)} entries, but this server takes {MAX_PROMPTS} at most.")
    for text in texts:
        check_text_size(engine, text, "input")
    tokens, most = [engine.tokenizer.encode(text) for text in texts], engine.context_size
    if not all(tokens):
        raise bad_field("input", "input holds an empty text: give at least one token.")
    longest = max(map(len, tokens), default=0)
    if longest > most and body.truncate is False:
        limit = f"This model's maximum context length is {most} tokens"
        raise bad_field("input", f"{limit}, but a text has {longest}: shorten it, or leave out truncate.")
    return [each[:most] for each in tokens]


def embed_reply(request: HttpRequest, body: OllamaEmbedBody, vectors: Vectors | None, n_tokens: int) -> bytes:
    rows = [] if vectors is None else vectors.tolist()
    total = int((perf_counter() - request.record.began) * NANOSECONDS)
    return encode(OllamaEmbedReply(body.model, rows, total, int(request.load_s * NANOSECONDS), n_tokens))

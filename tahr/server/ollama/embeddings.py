"""/api/embed, and the older /api/embeddings."""

from functools import partial
from time import perf_counter
from typing import cast

import msgspec

from tahr.library.embeddings import EmbeddingOptions, check_dimensions
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.inputs import Inputs
from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ServedModel
from tahr.server.ollama.bodies import OllamaEmbedBody, OllamaEmbeddingsBody, OllamaOptions
from tahr.server.ollama.fields import check_options, find_model
from tahr.server.ollama.formatter import NANOSECONDS
from tahr.server.ollama.generation import kept_alive
from tahr.server.ollama.replies import OllamaEmbeddingsReply, OllamaEmbedReply
from tahr.server.openai.bodies import EmbeddingBody
from tahr.server.openai.embeddings import Vectors, encode_texts, field_errors
from tahr.server.replies.prompts import texts_of
from tahr.server.state.state import ServerState

EMBED = msgspec.json.Decoder(OllamaEmbedBody)
EMBEDDINGS = msgspec.json.Decoder(OllamaEmbeddingsBody)


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
    check_options(body.options or OllamaOptions(), model.engine.context_size)
    if not texts:
        return None, 0
    tokens = await state.text_pool.run_for(request, partial(encoded, model.engine, texts, body), sum(map(len, texts)))
    n_tokens = sum(map(len, tokens))
    with state.admission.computing(request, model, n_tokens):
        vectors = await model.engine.embed(tokens, EmbeddingOptions(dimensions=body.dimensions), ())
    return vectors, n_tokens


def encoded(engine: ServedEngine, texts: list[str], body: OllamaEmbedBody) -> list[list[int]]:
    with field_errors("dimensions"):
        check_dimensions(body.dimensions, engine.inputs.vector_width)
    n_kept = None if body.truncate is False else engine.context_size
    requested = EmbeddingBody(truncate_prompt_tokens=n_kept)
    try:
        return encode_texts(engine, texts_of(cast(Inputs, texts), "input"), requested)
    except HttpError as error:
        message = error.message.replace("send truncate_prompt_tokens", "leave out truncate")
        raise HttpError(error.status, message, param=error.param, code=error.code) from error


def embed_reply(request: HttpRequest, body: OllamaEmbedBody, vectors: Vectors | None, n_tokens: int) -> bytes:
    rows = [] if vectors is None else vectors.tolist()
    total = int((perf_counter() - request.record.began) * NANOSECONDS)
    return encode(OllamaEmbedReply(body.model, rows, total, int(request.load_s * NANOSECONDS), n_tokens))

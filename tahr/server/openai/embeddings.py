"""/v1/embeddings."""

import base64
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from tahr.config import LoraChoice
from tahr.server.adapters import chosen_model
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models import ModelRegistry, ServedModel
from tahr.server.openai.bodies import EmbeddingBody, decode, lora_of
from tahr.server.openai.prompts import encode_inputs
from tahr.server.openai.replies import Embedding, EmbeddingReply, EmbeddingUsage
from tahr.server.state import ServerState

BODY = msgspec.json.Decoder(EmbeddingBody)
POOLINGS = ("last", "mean", "max", "cls")
FORMS = ("float", "base64")

Vectors = NDArray[np.float32]  # [n_texts, width]


async def embed(request: HttpRequest, state: ServerState) -> None:
    """Texts as vectors of length 1."""
    body, model, texts, lora = await state.text_pool.run(partial(prepare, state.models, await request.body()))
    with state.admission.admitted(request, model):
        async with request.cancellable():
            vectors = await model.engine.embed(texts, body.pooling or "last", lora)
            work = partial(written, vectors, body, body.model or model.name, sum(map(len, texts)))
            data = await state.text_pool.run(work)
    await request.respond(data)


def prepare(
    models: ModelRegistry, data: bytes
) -> tuple[EmbeddingBody, ServedModel, list[list[int]], tuple[LoraChoice, ...]]:
    """The request, checked, its texts as tokens, and its adapters."""
    body = decode(BODY, data)
    model, lora = chosen_model(models, body.model, lora_of(body))
    for name, allowed in (("encoding_format", FORMS), ("pooling", POOLINGS)):
        value = getattr(body, name)
        if value is not None and value not in allowed:
            raise bad_field(name, f"{name} is {value!r}, but it must be one of {', '.join(allowed)}.")
    texts = encode_inputs(model.engine, body.input, "input")
    longest, context_size = max(map(len, texts)), model.engine.context_size
    if longest > context_size:
        limit = f"This model's maximum context length is {context_size} tokens"
        raise bad_field("input", f"{limit}, but a text has {longest}: shorten it.", "context_length_exceeded")
    return body, model, texts, lora


def written(vectors: Vectors, body: EmbeddingBody, model: str, n_tokens: int) -> bytes:
    """The response. Lists of numbers are long, so this does not run on the event loop."""
    rows = shortened(vectors, body.dimensions)
    if body.encoding_format == "base64":
        data = [Embedding(i, base64.b64encode(row.astype("<f4").tobytes()).decode()) for i, row in enumerate(rows)]
    else:
        data = [Embedding(i, row.tolist()) for i, row in enumerate(rows)]
    return encode(EmbeddingReply(model, data, EmbeddingUsage(n_tokens, n_tokens)))


def shortened(vectors: Vectors, dimensions: int | None) -> Vectors:
    """The first `dimensions` numbers of each, scaled to length 1 again."""
    width = vectors.shape[1]
    if dimensions is None:
        return vectors
    if not 1 <= dimensions <= width:
        raise bad_field("dimensions", f"dimensions is {dimensions}, but this model's vectors have {width} numbers.")
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.asarray(cut / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)

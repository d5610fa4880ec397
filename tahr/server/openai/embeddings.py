"""/v1/embeddings."""

import base64
from functools import partial

import msgspec
import numpy as np

from tahr.server.http.errors import bad_field
from tahr.server.http.request import Call
from tahr.server.openai.bodies import EmbeddingBody, decode
from tahr.server.openai.prompts import encode_inputs
from tahr.server.openai.replies import Embedding, EmbeddingReply, EmbeddingUsage

BODY = msgspec.json.Decoder(EmbeddingBody)
POOLINGS = ("last", "mean", "max", "cls")
FORMS = ("float", "base64")


async def embed(call: Call) -> None:
    """Texts as vectors of length 1."""
    body = decode(BODY, await call.body())
    served = call.front.find(body.model)
    check(body)
    texts = await call.front.beside(partial(encode_inputs, served.engine, body.input, "input"))
    longest = max(map(len, texts))
    if longest > served.engine.context_size:
        message = f"A text has {longest} tokens, but the context length is {served.engine.context_size}: shorten it."
        raise bad_field("input", message, "context_length_exceeded")
    with call.front.admitted(call):
        async with call.interruptible():
            vectors = await served.engine.embed(texts, body.pooling or "last")
    data = [Embedding(i, written(each, body)) for i, each in enumerate(shortened(vectors, body.dimensions))]
    n_tokens = sum(map(len, texts))
    await call.json(EmbeddingReply(served.name, data, EmbeddingUsage(n_tokens, n_tokens)))


def check(body: EmbeddingBody) -> None:
    for name, allowed in (("encoding_format", FORMS), ("pooling", POOLINGS)):
        value = getattr(body, name)
        if value is not None and value not in allowed:
            raise bad_field(name, f"{name} is {value!r}, but it must be one of {', '.join(allowed)}.")


def shortened(vectors: "np.typing.NDArray[np.float32]", dimensions: int | None) -> "np.typing.NDArray[np.float32]":
    """The first `dimensions` numbers of each, scaled to length 1 again."""
    width = vectors.shape[1]
    if dimensions is None:
        return vectors
    if not 1 <= dimensions <= width:
        raise bad_field("dimensions", f"dimensions is {dimensions}, but this model's vectors have {width} numbers.")
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.asarray(cut / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)


def written(vector: "np.typing.NDArray[np.float32]", body: EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(number) for number in vector]

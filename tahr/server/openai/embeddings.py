"""/v1/embeddings."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from tahr.config import LoraChoice
from tahr.errors import ConfigError
from tahr.library.embeddings import EmbeddingOptions, check_dimensions
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.sampling_fields import lora_of
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.chosen import chosen_model
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.openai.bodies import EmbeddingBody
from tahr.server.openai.replies import Embedding, EmbeddingReply, EmbeddingUsage
from tahr.server.replies.prompts import check_text_size, check_tokens, texts_of
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(EmbeddingBody)
POOLINGS = ("last", "mean", "max", "cls")
FORMS = ("float", "base64")

Vectors = NDArray[np.float32]  # [n_texts, width]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request, checked, with its texts as tokens."""

    body: EmbeddingBody
    model: ServedModel
    texts: list[list[int]]
    options: EmbeddingOptions
    lora: tuple[LoraChoice, ...]


async def embed(request: HttpRequest, state: ServerState) -> None:
    """Texts as vectors of length 1."""
    sent = await request.body()
    requested = await state.text_pool.run_for(request, partial(prepare, state.models, sent), len(sent))
    with state.admission.admitted(request, requested.model), request.cancellable():
        vectors = await requested.model.engine.embed(requested.texts, requested.options, requested.lora)
        data = await state.text_pool.run(partial(written, vectors, requested))
    await request.respond(data)


def prepare(models: ModelRegistry, data: bytes) -> EmbeddingRequest:
    """Check a request, and turn its texts into tokens."""
    body = decode(BODY, data)
    model, lora = chosen_model(models, body.model, lora_of(body.lora))
    for name, allowed in (("encoding_format", FORMS), ("pooling", POOLINGS)):
        value = getattr(body, name)
        if value is not None and value not in allowed:
            raise bad_field(name, f"{name} is {value!r}, but it must be one of {', '.join(allowed)}.")
    with field_errors("dimensions"):
        check_dimensions(body.dimensions, model.engine.inputs.vector_width)
    options = EmbeddingOptions(body.pooling, body.normalize is not False, body.dimensions)
    return EmbeddingRequest(body, model, encode_texts(model.engine, body), options, lora)


def encode_texts(engine: ServedEngine, body: EmbeddingBody) -> list[list[int]]:
    """The tokens of all texts, with the prompt that is asked for; too long a text is cut only if that is."""
    refuse_scorer(engine)
    texts = texts_of(body.input, "input")
    prompt = prompt_of(engine, body)
    for text in texts:
        if not isinstance(text, str):
            check_tokens(engine, text, "input")
        elif body.truncate_prompt_tokens is None:
            check_text_size(engine, text, "input")
    with field_errors("truncate_prompt_tokens"):
        tokens = [engine.inputs.encode(text, prompt, body.truncate_prompt_tokens) for text in texts]
    check_lengths(engine, tokens, "input")
    return tokens


def refuse_scorer(engine: ServedEngine) -> None:
    if engine.inputs.scores_pairs:
        raise bad_field("model", f"The model {engine.name} scores pairs of texts and embeds none: use /v1/rerank.")


def prompt_of(engine: ServedEngine, body: EmbeddingBody) -> str:
    """The text before each input."""
    if body.prompt_name is not None and body.input_type is not None:
        raise bad_field("prompt_name", "prompt_name and input_type both choose a prompt: send one of them.")
    if body.input_type is not None:
        with field_errors("input_type"):
            return engine.inputs.prompt_for(body.input_type)
    with field_errors("prompt_name"):
        return engine.inputs.prompt(body.prompt_name)


def check_lengths(engine: ServedEngine, texts: list[list[int]], field: str) -> None:
    longest = max(map(len, texts))
    context_size = engine.context_size
    if longest > context_size:
        limit = f"This model's maximum context length is {context_size} tokens"
        what = "shorten it, or send truncate_prompt_tokens."
        raise bad_field(field, f"{limit}, but a text has {longest}: {what}", "context_length_exceeded")


@contextmanager
def field_errors(field: str) -> Iterator[None]:
    """Inside, what is wrong is that field's fault."""
    try:
        yield
    except ConfigError as error:
        raise bad_field(field, str(error)) from error


def written(vectors: Vectors, requested: EmbeddingRequest) -> bytes:
    """The response. Lists of numbers are long, so this does not run on the event loop."""
    if requested.body.encoding_format == "base64":
        data = [Embedding(i, base64.b64encode(row.astype("<f4").tobytes()).decode()) for i, row in enumerate(vectors)]
    else:
        data = [Embedding(i, row.tolist()) for i, row in enumerate(vectors)]
    n_tokens = sum(map(len, requested.texts))
    return encode(
        EmbeddingReply(requested.body.model or requested.model.name, data, EmbeddingUsage(n_tokens, n_tokens))
    )

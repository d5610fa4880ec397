"""/v1/embeddings."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from tahr.config import LoraChoice
from tahr.errors import ConfigError
from tahr.library.embeddings import EmbeddingOptions, Item, check_dimensions, check_for_images
from tahr.library.inputs.image_inputs import ImageRows
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.sampling_fields import lora_of
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.chosen import chosen_model
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ServedModel
from tahr.server.openai.bodies import EmbeddingBody
from tahr.server.openai.embedding_items import SentImage, check_images, read_image, sent_items
from tahr.server.openai.replies import Embedding, EmbeddingReply, EmbeddingUsage
from tahr.server.replies.generation import check_images_of_batch
from tahr.server.replies.prompts import check_text_size, check_tokens
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(EmbeddingBody)
POOLINGS = ("last", "mean", "max", "cls")
FORMS = ("float", "base64")

Vectors = NDArray[np.float32]  # [n_texts, width]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request, checked, with its texts as tokens and its images as rows."""

    body: EmbeddingBody
    model: ServedModel
    items: list[Item]
    options: EmbeddingOptions
    lora: tuple[LoraChoice, ...]


async def embed(request: HttpRequest, state: ServerState) -> None:
    """Texts and images as vectors of length 1."""
    sent = await request.body()
    requested = await state.text_pool.run_for(request, partial(prepare, state, sent), len(sent))
    n_tokens = n_tokens_of(requested)
    with state.admission.computing(request, requested.model, n_tokens):
        background = request.on_behalf is not None
        check_images_of_batch(background and any(isinstance(item, ImageRows) for item in requested.items))
        vectors = await requested.model.engine.embed(requested.items, requested.options, requested.lora, background)
        data = await state.text_pool.run(partial(written, vectors, requested))
    await request.respond(data)


def prepare(state: ServerState, data: bytes) -> EmbeddingRequest:
    """Check a request, turn its texts into tokens, and read its images."""
    body = decode(BODY, data)
    model, lora = chosen_model(state.models, body.model, lora_of(body.lora))
    for name, allowed in (("encoding_format", FORMS), ("pooling", POOLINGS)):
        value = getattr(body, name)
        if value is not None and value not in allowed:
            raise bad_field(name, f"{name} is {value!r}, but it must be one of {', '.join(allowed)}.")
    with field_errors("dimensions"):
        check_dimensions(body.dimensions, model.engine.inputs.vector_width)
    options = EmbeddingOptions(body.pooling, body.normalize is not False, body.dimensions)
    items = read_items(model.engine, body, options, lora, state)
    return EmbeddingRequest(body, model, items, options, lora)


def read_items(
    engine: ServedEngine,
    body: EmbeddingBody,
    options: EmbeddingOptions,
    lora: tuple[LoraChoice, ...],
    state: ServerState,
) -> list[Item]:
    """The tokens of all texts and the rows of all images, in their order."""
    sent = sent_items(body)
    images = [item for item in sent if isinstance(item, SentImage)]
    if images:
        check_images(engine, images, state.settings.max_images)
        with field_errors("pooling" if options.pooling else "lora"):
            check_for_images(options, lora)
    tokens = iter(encode_texts(engine, [item for item in sent if not isinstance(item, SentImage)], body))
    n_bytes = 0
    items: list[Item] = []
    for item in sent:
        if isinstance(item, SentImage):
            items.append(image := read_image(engine, item))
            n_bytes += state.kept_images.keep(image.source, n_bytes)
        else:
            items.append(next(tokens))
    return items


def encode_texts(engine: ServedEngine, texts: Sequence[str | list[int]], body: EmbeddingBody) -> list[list[int]]:
    """The tokens of all texts, with the prompt that is asked for; too long a text is cut only if that is."""
    refuse_scorer(engine)
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
    longest = max(map(len, texts), default=0)
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


def n_tokens_of(requested: EmbeddingRequest) -> int:
    """Tokens of the texts, and patches of the images."""
    return sum(item.n_patches if isinstance(item, ImageRows) else len(item) for item in requested.items)


def written(vectors: Vectors, requested: EmbeddingRequest) -> bytes:
    """The response. Lists of numbers are long, so this does not run on the event loop."""
    if requested.body.encoding_format == "base64":
        data = [Embedding(i, base64.b64encode(row.astype("<f4").tobytes()).decode()) for i, row in enumerate(vectors)]
    else:
        data = [Embedding(i, row.tolist()) for i, row in enumerate(vectors)]
    n_tokens = n_tokens_of(requested)
    return encode(
        EmbeddingReply(requested.body.model or requested.model.name, data, EmbeddingUsage(n_tokens, n_tokens))
    )

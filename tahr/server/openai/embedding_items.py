"""Items that a client wants embedded: texts, tokens and images, in the forms of several programs."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from tahr.errors import ConfigError
from tahr.images.data_uri import data_of
from tahr.images.errors import ImageTooLarge
from tahr.library.inputs.image_inputs import ImageRows
from tahr.server.bodies.inputs import EmbeddingItem, EmbeddingMessage, EmbeddingPart, Prompts
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.models.engine_port import ServedEngine
from tahr.server.openai.bodies import EmbeddingBody
from tahr.server.replies.prompts import texts_of

MODALITIES = ("text", "image")


class SentImage(NamedTuple):
    """An image as a data URI, and its place in the body."""

    data: str
    field: str
    place: str


Sent = str | list[int] | SentImage


def sent_items(body: EmbeddingBody) -> list[Sent]:
    """One entry per vector."""
    if (body.input is None) == (body.messages is None):
        raise bad_field("input", "One of input and messages says what to embed: send just one of them.")
    if body.modality is not None and body.modality not in MODALITIES:
        raise bad_field("modality", f"modality is {body.modality!r}, but it must be one of {', '.join(MODALITIES)}.")
    if body.messages is not None:
        return [message_item(body.messages)]
    entries = cast("list[str | list[int] | EmbeddingItem]", texts_of(cast(Prompts, body.input), "input"))
    several = isinstance(body.input, list)
    return [item_of(entry, f"input[{i}]" if several else "input", body.modality) for i, entry in enumerate(entries)]


def item_of(entry: str | list[int] | EmbeddingItem, place: str, modality: str | None) -> Sent:
    if isinstance(entry, str):
        return SentImage(entry, "input", place) if modality == "image" else entry
    if isinstance(entry, list):
        if modality == "image":
            raise bad_field("modality", f"{place} is a list of token ids, but modality says it is an image.")
        return entry
    parts = [*(entry.content or ())]
    if entry.text is not None:
        parts.append(EmbeddingPart("text", text=entry.text))
    if entry.image is not None:
        parts.append(EmbeddingPart("image_url", image_url=entry.image))
    return only_part(parts, "input", place)


def message_item(messages: Sequence[EmbeddingMessage]) -> Sent:
    """A conversation of one message."""
    if len(messages) != 1 or messages[0].role != "user":
        raise bad_field("messages", "messages must be one message of the user, which is embedded: send others apart.")
    content = messages[0].content
    parts = [EmbeddingPart("text", text=content)] if isinstance(content, str) else content
    return only_part(parts, "messages", "messages[0]")


def only_part(parts: Sequence[EmbeddingPart], field: str, place: str) -> Sent:
    """The text or the image of an item: no model here makes one vector of both."""
    if len(parts) != 1:
        raise bad_field(
            field, f"{place} has {len(parts)} texts and images, but one vector is made of one: send an item for each."
        )
    part = parts[0]
    if part.type == "text" and part.text and part.image_url is None:
        return part.text
    if part.type == "image_url" and part.image_url and part.text is None:
        url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
        return SentImage(url, field, place)
    raise bad_field(field, f"{place} must have a text that is not empty, or an image as a data URI.")


def check_images(engine: ServedEngine, images: Sequence[SentImage], most: int) -> None:
    first = images[0]
    if engine.inputs.images is None:
        message = f"{first.place} is an image, but the model {engine.name} reads texts alone: leave images out."
        raise bad_field(first.field, message)
    if len(images) > most:
        message = f"{first.field} has {len(images)} images, but this server takes {most} at most: send them apart."
        raise bad_field(first.field, message)


def read_image(engine: ServedEngine, image: SentImage) -> ImageRows:
    """The rows of an image that was sent."""
    inputs = engine.inputs.images
    assert inputs, "images are checked before they are read"
    try:
        return inputs.read(data_of(image.data, inputs.reader.limits.max_image_bytes))
    except ImageTooLarge as error:
        raise HttpError(413, f"{image.place}: {error}", param=image.field) from error
    except ConfigError as error:
        raise bad_field(image.field, f"{image.place}: {error}") from error

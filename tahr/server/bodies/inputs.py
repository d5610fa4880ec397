"""Texts and tokens as clients send them."""

from msgspec import Struct


class TextItem(Struct, forbid_unknown_fields=True):
    """A text among others, as some clients of embeddings send it."""

    text: str


Prompts = str | list[str | int | list[int]]  # a text, texts, tokens, or lists of tokens
Inputs = str | TextItem | list[str | int | list[int] | TextItem]  # the same, and texts as objects


class ImageUrl(Struct, forbid_unknown_fields=True):
    """A data URI, as parts of messages hold it."""

    url: str
    detail: str | None = None


class EmbeddingPart(Struct, forbid_unknown_fields=True):
    """A text or an image, as parts of messages are."""

    type: str
    text: str | None = None
    image_url: str | ImageUrl | None = None


class EmbeddingItem(Struct, forbid_unknown_fields=True):
    """A text or an image among others, in one of the forms that clients send."""

    text: str | None = None
    image: str | None = None
    content: list[EmbeddingPart] | None = None


class EmbeddingMessage(Struct, forbid_unknown_fields=True):
    """The message that vLLM's clients embed."""

    role: str
    content: str | list[EmbeddingPart]


EmbeddingInput = str | EmbeddingItem | list[str | int | list[int] | EmbeddingItem]

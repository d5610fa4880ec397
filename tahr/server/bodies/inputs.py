"""Texts and tokens as clients send them."""

from msgspec import Struct


class TextItem(Struct, forbid_unknown_fields=True):
    """A text among others, as some clients of embeddings send it."""

    text: str


Prompts = str | list[str | int | list[int]]  # a text, texts, tokens, or lists of tokens
Inputs = str | TextItem | list[str | int | list[int] | TextItem]  # the same, and texts as objects

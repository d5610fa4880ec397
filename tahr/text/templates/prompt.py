"""A conversation as tokens. Only what the template itself writes can be a special token; messages are plain text.

Text that names none is encoded together with the template, so that ids are what the model was trained on. Where some
does, each such name is swapped for a mark before rendering; afterwards the special tokens that are left are the
template's own: they go on under aliases, and the names come back as plain text around which words merge as always.
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tahr.errors import TemplateError
from tahr.text.templates.chat import ChatTemplate
from tahr.text.templates.tool_history import adapted
from tahr.text.tokens.tokenizer import Tokenizer

NOTHING: Mapping[str, str] = MappingProxyType({})


class Marks:
    """Stand-ins for the names of special tokens in messages: words no text holds and no template touches."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._secret = ""  # drawn when it is first needed, because most texts name no special token
        self._found: dict[int, str] = {}  # keys are tokens

    def __len__(self) -> int:
        return len(self._found)

    def put(self, value: Any) -> Any:
        """A copy of the value with every text in it marked."""
        if isinstance(value, str):
            return self._tokenizer.swap_special(value, self._mark)
        if isinstance(value, list | tuple):
            return [self.put(inner) for inner in value]
        if isinstance(value, (dict, Mapping)):  # asking for a mapping takes longer
            return {self.put(key): self.put(inner) for key, inner in value.items()}
        return value

    def take_back(self, text: str) -> str:
        """A rendered text with the names where their marks are."""
        for token, mark in self._found.items():
            text = text.replace(mark, self._tokenizer.piece(token))
        return text

    def _mark(self, token: int) -> str:
        self._secret = self._secret or os.urandom(12).hex()
        return self._found.setdefault(token, f"{self._secret}n{token}z")


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    reworded: Mapping[str, str] = NOTHING,
    **variables: Any,
) -> list[int]:
    """The tokens of a rendered conversation. A template that opens the text itself does not get a second opening; what
    closes a text is left out, because the model is to go on. `reworded` has texts that a template writes, and what
    takes the place of each."""
    marks = Marks(tokenizer)
    messages, tools = adapted(template, messages, tools)
    try:
        given = marks.put(messages)
        named = {name: marks.put(value) for name, value in variables.items()}
        tools = marks.put(tools) if tools else None
    except RecursionError as error:
        raise TemplateError("The messages or template variables nest without end: flatten them.") from error
    text = template.render(given, tools=tools, **named)
    for written, other in reworded.items():
        text = text.replace(written, other)
    opening = () if is_opened(tokenizer, text) else tokenizer.prefix
    if marks:
        plain = marks.take_back(tokenizer.disguise(text))
        return [*opening, *tokenizer.encode(plain, add_special=False, parse_special=False)]
    return [*opening, *tokenizer.encode(text, add_special=False)]


def is_opened(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text begins with BOS or, where a model has other tokens in its place, with the first of these."""
    firsts = (tokenizer.bos_id, *tokenizer.prefix[:1])
    pieces = [tokenizer.piece(token) for token in firsts if token is not None]
    return any(piece and text.startswith(piece) for piece in pieces)


def render_chat(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The prompt a conversation becomes, as text."""
    messages, tools = adapted(template, messages, tools)
    return template.render(messages, tools=tools, **variables)

"""Images of a conversation: taken out of its messages, and put behind what its chat template writes for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows, RowSource, run_of, spans_of
from tahr.errors import ConfigError, ContextExceeded, TemplateError
from tahr.generation.kept_images import KeptImages

Message = Mapping[str, Any]
N_AXES = 3
NO_TOWER = "this model reads texts alone: leave images out, or choose a model that reads them"


class ImageText(NamedTuple):
    """An image as text that a client sent: a data URI, or base64 alone. It is never a path."""

    text: str


class MessageImage(NamedTuple):
    """An image of a message, in any form that a model's reader takes, and its place for errors."""

    data: Any
    place: str
    n_most: int | None = None  # limit on its tokens; None: the model's


@dataclass(frozen=True, slots=True, eq=False)
class PromptImage:
    """An image as a tower reads it, and the rows that it becomes: lines from the top on."""

    source: RowSource
    digest: bytes
    n_high: int
    n_wide: int
    line_end: int | None = None  # token behind each line but the last; None: lines follow each other

    @property
    def n_rows(self) -> int:
        return self.n_high * self.n_wide


class ImageRun(NamedTuple):
    """Some rows of an image, one after the other."""

    image: PromptImage
    first: int
    n_rows: int


# An image in a prompt: its rows; of one that was split those of each tile, or runs of them, and the tokens around them.
Picture = Sequence["PromptImage | ImageRun | list[int]"]


class TooManyImages(ConfigError):
    """A request has more images than the server takes."""


class PictureReader(Protocol):
    """A model's way with images."""

    @property
    def placeholder(self) -> int:
        """The token that the model's template writes for an image."""

    @property
    def reworded(self) -> Mapping[str, str]:
        """Texts that the template writes for images, and what takes their place."""

    @property
    def has_axes(self) -> bool:
        """Whether rope turns rows of images by their lines and columns."""

    def read(self, sent: MessageImage) -> Picture:
        """An image; an error names its place."""


@dataclass(slots=True)
class Pictures:
    """The images of one request, each read once."""

    reader: PictureReader | None
    n_most: int | None = None  # images of a request
    context_size: int | None = None  # limit on the rows of all; None: the request is shortened until it fits
    memory: KeptImages | None = None  # None: no limit
    n_rows: int = 0
    n_bytes: int = 0
    # Keys are what was sent, by identity, and its limit.
    read: dict[tuple[int, int | None], Picture] = field(default_factory=dict)

    def of(self, sent: MessageImage) -> Picture:
        """An image, read. Images beyond the context are refused before more of them take memory."""
        assert self.reader, "checked"
        key = id(sent.data), sent.n_most
        if key not in self.read:
            self.read[key] = self.reader.read(sent)
            self._count(self.read[key])
            if self.context_size is not None and self.n_rows > self.context_size:
                raise ContextExceeded(self.n_rows, self.context_size)
        return self.read[key]

    def _count(self, picture: Picture) -> None:
        pieces = [piece for piece in picture if not isinstance(piece, list)]
        self.n_rows += sum(piece.n_rows for piece in pieces)
        sources = {id(source): source for source in map(source_of, pieces) if not source.is_made}
        if self.memory:
            for source in sources.values():
                self.n_bytes += self.memory.keep(source, self.n_bytes)

    def check(self, sent: Sequence[MessageImage]) -> None:
        """Refuse images that the model or the server does not take, before a template meets them."""
        if sent and self.reader is None:
            raise ConfigError(f"{sent[0].place} is an image, but {NO_TOWER}.")
        if self.n_most is not None and len(sent) > self.n_most:
            raise TooManyImages(
                f"{sent[self.n_most].place} is image {self.n_most + 1} of {len(sent)}, but a request may have "
                f"{self.n_most}: leave some out."
            )

    def placed(self, tokens: list[int], sent: Sequence[MessageImage]) -> tuple[list[int], PromptRows]:
        """A prompt in which every placeholder stands for an image's rows, one each; they were checked."""
        if not sent:
            return tokens, NO_ROWS
        images = [self.of(each) for each in sent]
        assert self.reader, "images are read by a reader"
        n = tokens.count(self.reader.placeholder)
        if n != len(images):
            raise TemplateError(
                f"The conversation has {len(images)} images, but the model's chat template wrote placeholders for {n}: "
                "send images in messages of the user, or choose a template that takes them where they are."
            )
        return with_spans(tokens, images, self.reader)


def source_of(piece: PromptImage | ImageRun) -> RowSource:
    """Input that rows of a piece are computed from."""
    return piece.image.source if isinstance(piece, ImageRun) else piece.source


def with_spans(tokens: list[int], pictures: Sequence[Picture], reader: PictureReader) -> tuple[list[int], PromptRows]:
    """Every placeholder repeated for each row of its image."""
    made: list[int] = []
    begins: list[int] = []
    images: list[PromptImage] = []
    spans: list[Any] = []
    sources: dict[bytes, RowSource] = {}
    left = iter(pictures)
    for token in tokens:
        if token != reader.placeholder:
            made.append(token)
            continue
        for piece in next(left):
            if isinstance(piece, list):
                made += piece
                continue
            if isinstance(piece, ImageRun):
                image = piece.image
                spans.append(run_of(len(made), piece.n_rows, image.digest, piece.first, image.n_rows))
                sources[image.digest] = image.source
                made += [token] * piece.n_rows
                continue
            begins.append(len(made))
            images.append(piece)
            sources[piece.digest] = piece.source
            n_line = 0 if piece.line_end is None else piece.n_wide
            spans += spans_of(len(made), piece.digest, piece.n_rows, n_line)
            made += placeholders(piece, token)
    positions = turned(len(made), begins, images) if reader.has_axes else None
    return made, PromptRows(tuple(spans), sources, positions)


def placeholders(image: PromptImage, token: int) -> list[int]:
    """A token for each row of an image, and the ends of its lines."""
    if image.line_end is None:
        return [token] * image.n_rows
    line = [*[token] * image.n_wide, image.line_end]
    return (line * image.n_high)[:-1]


def turned(n_tokens: int, begins: Sequence[int], images: Sequence[PromptImage]) -> Any:
    """Positions by time, line and column: rows of an image have one time, and texts go on behind its longer side."""
    found = np.zeros((N_AXES, n_tokens), np.int32)
    at = next_position = 0
    for begin, image in zip(begins, images, strict=True):
        found[:, at:begin] = next_position + np.arange(begin - at)
        next_position += begin - at
        at = begin + image.n_rows
        lines, columns = np.divmod(np.arange(image.n_rows), image.n_wide)
        found[:, begin:at] = next_position + np.stack([np.zeros_like(lines), lines, columns])
        next_position += max(image.n_high, image.n_wide)
    found[:, at:] = next_position + np.arange(n_tokens - at)
    return found


def until(rows: PromptRows, n_prompt: int) -> PromptRows:
    """Rows of a prompt that goes on as text up to so many tokens."""
    positions = rows.rope_positions
    if positions is None or positions.shape[1] == n_prompt:
        return rows
    more = np.arange(positions.shape[1], n_prompt, dtype=positions.dtype) + rows.rope_offset
    longer = np.concatenate([positions, np.broadcast_to(more, (N_AXES, len(more)))], axis=1)
    return replace(rows, rope_positions=longer.astype(positions.dtype))


# ---- messages -------------------------------------------------------------------------------------------------------

TYPES = ("image", "image_url")


def without_images(messages: Sequence[Message]) -> tuple[Sequence[Message], list[MessageImage]]:
    """Messages as templates read them, and the images that were in them, in order."""
    if not any(isinstance(message.get("content"), list | tuple) for message in messages):
        return messages, []
    found: list[MessageImage] = []
    return [shown(message, f"messages[{i}]", found) for i, message in enumerate(messages)], found


def shown(message: Message, where: str, found: list[MessageImage]) -> Message:
    """A message whose images are only said to be there."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    parts = [part_of(part, f"{where}.content[{i}]", found) for i, part in enumerate(content)]
    if parts == list(content):
        return message
    if message.get("role") == "system":
        raise ConfigError(f"{where} is a system message with an image: send images in messages of the user.")
    return {**message, "content": parts}


def part_of(part: Any, where: str, found: list[MessageImage]) -> Any:
    if not isinstance(part, Mapping) or part.get("type") not in TYPES:
        return part
    data = text_of(part["image_url"]) if part.get("image_url") is not None else part.get("image")
    if data is None:
        raise ConfigError(f"{where} is of type {part['type']!r} and has no image: give one.")
    found.append(data if isinstance(data, MessageImage) else MessageImage(data, where))
    return {"type": "image"}


def text_of(given: Any) -> ImageText | None:
    """An image in the form of OpenAI's clients."""
    text = given.get("url") if isinstance(given, Mapping) else given
    return ImageText(text) if isinstance(text, str) else None

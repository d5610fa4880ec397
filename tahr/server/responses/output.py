"""Output items while they grow: the events they begin and end with, and what they are in the end."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from tahr.server.responses.fields import FunctionNames
from tahr.server.responses.replies import (
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ThoughtText,
)
from tahr.text.replies.deltas import Delta, ReasoningDelta, ToolCallDelta

Events = list[tuple[str, Mapping[str, Any]]]


def new_item(delta: Delta, index: int, names: FunctionNames, as_summary: bool) -> "Item":
    """The item a first delta belongs to; the delta itself is not added yet."""
    if isinstance(delta, str):
        return MessageItem(index)
    return CallItem(index, delta, names) if isinstance(delta, ToolCallDelta) else ThoughtItem(index, as_summary)


class Item(ABC):
    """Common parts of all kinds of items."""

    prefix = ""

    def __init__(self, index: int):
        self.id = f"{self.prefix}_{random.getrandbits(128):032x}"
        self.index = index
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def at(self) -> dict[str, Any]:
        """Where events about its content belong."""
        return {"item_id": self.id, "output_index": self.index}

    def begin(self) -> Events:
        empty = self.whole("in_progress")
        return [("response.output_item.added", {"output_index": self.index, "item": empty}), *self.content_begins()]

    def end(self, status: str) -> Events:
        done = {"output_index": self.index, "item": self.whole(status)}
        return [*self.content_ends(), ("response.output_item.done", done)]

    @abstractmethod
    def add(self, delta: Delta) -> tuple[str, Mapping[str, Any]]:
        """Another delta, and the event about it."""

    @abstractmethod
    def whole(self, status: str) -> OutputItem: ...
    @abstractmethod
    def content_begins(self) -> Events: ...
    @abstractmethod
    def content_ends(self) -> Events: ...


class MessageItem(Item):
    """Text."""

    prefix = "msg"

    @property
    def at(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def add(self, delta: Delta) -> tuple[str, Mapping[str, Any]]:
        assert isinstance(delta, str)
        self.parts.append(delta)
        return "response.output_text.delta", {**self.at, "logprobs": [], "delta": delta}

    def whole(self, status: str) -> OutputMessage:
        return OutputMessage(self.id, status, [] if status == "in_progress" else [OutputText(self.text)])

    def content_begins(self) -> Events:
        return [("response.content_part.added", {**self.at, "part": OutputText("")})]

    def content_ends(self) -> Events:
        done = {**self.at, "text": self.text, "logprobs": []}
        part = {**self.at, "part": OutputText(self.text)}
        return [("response.output_text.done", done), ("response.content_part.done", part)]


class ThoughtItem(Item):
    """The model's thoughts: as they are, or in the place of a summary."""

    prefix = "rs"

    def __init__(self, index: int, as_summary: bool):
        super().__init__(index)
        self._as_summary = as_summary
        self._kind = "summary_text" if as_summary else "reasoning_text"
        self._event = "response.reasoning_summary_text" if as_summary else "response.reasoning_text"
        self._part_event = "response.reasoning_summary_part" if as_summary else "response.content_part"

    @property
    def at(self) -> dict[str, Any]:
        number = "summary_index" if self._as_summary else "content_index"
        return {"item_id": self.id, "output_index": self.index, number: 0}

    def add(self, delta: Delta) -> tuple[str, Mapping[str, Any]]:
        assert isinstance(delta, ReasoningDelta)
        self.parts.append(delta.text)
        return f"{self._event}.delta", {**self.at, "delta": delta.text}

    def whole(self, status: str) -> ReasoningItem:
        texts = [] if status == "in_progress" else [ThoughtText(self.text, self._kind)]
        if self._as_summary:
            return ReasoningItem(self.id, status, texts)
        return ReasoningItem(self.id, status, [], texts)

    def content_begins(self) -> Events:
        return [(f"{self._part_event}.added", {**self.at, "part": ThoughtText("", self._kind)})]

    def content_ends(self) -> Events:
        part = {**self.at, "part": ThoughtText(self.text, self._kind)}
        return [(f"{self._event}.done", {**self.at, "text": self.text}), (f"{self._part_event}.done", part)]


class CallItem(Item):
    """The call of a function."""

    prefix = "fc"

    def __init__(self, index: int, first: ToolCallDelta, names: FunctionNames):
        super().__init__(index)
        self._call_id = first.id
        self._is_cut = False
        self._namespace, self._name = names.split(first.name)

    def add(self, delta: Delta) -> tuple[str, Mapping[str, Any]]:
        assert isinstance(delta, ToolCallDelta)
        self._is_cut = delta.is_cut
        self.parts.append(delta.arguments)
        return "response.function_call_arguments.delta", {**self.at, "delta": delta.arguments}

    def whole(self, status: str) -> FunctionCallItem:
        space = self._namespace or UNSET
        if status != "in_progress":
            status = "incomplete" if self._is_cut else "completed"
        return FunctionCallItem(self.id, status, self._call_id, self._name, self.text, space)

    def content_begins(self) -> Events:
        return []

    def content_ends(self) -> Events:
        done = {**self.at, "name": self._name, "arguments": self.text}
        return [("response.function_call_arguments.done", done)]

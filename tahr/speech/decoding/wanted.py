"""Requests of the way through a recording to whoever has the sound and the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tahr.speech.audio.windows import SoundWindow


class WindowAt(NamedTuple):
    """The window that begins with this frame; None, if the recording has ended."""

    frame: int


class NextLogits(NamedTuple):
    """The logits after some tokens of a window."""

    window: SoundWindow
    tokens: tuple[int, ...]


class LookAt(NamedTuple):
    """How the tokens of a text look at their window: `Looks`."""

    window: SoundWindow
    before: tuple[int, ...]  # tokens in front of the text
    text: tuple[int, ...]


class HostWork(NamedTuple):
    """The result of a function that takes a while and needs no model."""

    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class WriteText:
    """A text of a window: a `WindowText`."""

    window: SoundWindow
    prompt: tuple[int, ...]
    temperature: float
    has_times: bool
    n_texts: int  # beams at temperature 0, independent texts at others
    patience: float
    seed: int


Wanted = WindowAt | NextLogits | LookAt | HostWork | WriteText

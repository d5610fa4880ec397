"""A request as an engine takes it."""

from collections.abc import Callable
from dataclasses import dataclass

from tahr.config import SamplingParams
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows
from tahr.engine.sequences.writer import Writer
from tahr.text.tool_calls.parser import ReplyFormat


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """Everything is decided: defaults are merged, lengths fit, and nothing changes it any more."""

    tokens: list[int]
    params: SamplingParams  # complete
    new_writer: Callable[[], Writer]  # called for each choice
    reply_format: ReplyFormat | None = None  # tells reasoning and tool calls from text; None: it continues a text
    rows: PromptRows = NO_ROWS  # rows that placeholders among the tokens stand for
    owner: str = ""  # the one it is computed for, of those who share the engine
    n_before: int = 0  # sequences for other prompts of the same client's request, which come first
    background: bool = False  # computed while no other sequence wants to be

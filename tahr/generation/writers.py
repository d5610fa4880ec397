"""Sampled tokens become the deltas that a user may see."""

from collections.abc import Iterable
from dataclasses import dataclass

from tahr.config import SamplingParams
from tahr.text.replies.deltas import Delta, Deltas, ReasoningDelta, merge
from tahr.text.replies.stream import LineLimits, StopMatcher
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tool_calls.parser import ReplyFormat, ReplyParser


def line_limits(params: SamplingParams) -> LineLimits | None:
    """The limits on lines that a request has; one object serves one choice."""
    n_indent = params.n_indent
    max_ms = params.t_max_predict_ms
    return LineLimits(n_indent, max_ms / 1000) if n_indent or max_ms else None


def has_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> bool:
    """Whether any of these tokens stands for text, so that what follows continues one."""
    return not all(map(tokenizer.is_special, tokens))


class StoppedWriter:
    """The end of a text, common to all writers."""

    _matcher: StopMatcher

    @property
    def is_cut(self) -> bool:
        return self._matcher.is_cut

    @property
    def matched_stop(self) -> str | None:
        return self._matcher.hit


class TextWriter(StoppedWriter):
    """Whole characters only, stop strings cut off, and never a piece that may still turn into a stop string."""

    forced: tuple[int, ...] = ()
    n_reasoning_tokens = 0

    def __init__(
        self, tokenizer: Tokenizer, stops: tuple[str, ...], continuing: bool = False, lines: LineLimits | None = None
    ):
        self._detokenizer = tokenizer.detokenizer(continuing=continuing)
        self._matcher = StopMatcher(stops, lines)

    @property
    def stopped(self) -> bool:
        return self._matcher.has_ended

    def push(self, token: int) -> Deltas:
        text = self._detokenizer.push(token)
        if self._matcher.has_stops:
            text = self._matcher.push(text)
        return (text,) if text else ()

    def flush(self) -> Deltas:
        """Release text that was held back, now that no more tokens come."""
        text = self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()
        return (text,) if text else ()


class DeferredTextWriter:
    """A `TextWriter` without stop strings, whose tokens become text only when a reader wants it: many at once.

    The engine's thread pushes, the reader's takes.
    """

    forced: tuple[int, ...] = ()
    n_reasoning_tokens = 0
    stopped = is_cut = False
    matched_stop: str | None = None

    def __init__(self, tokenizer: Tokenizer, continuing: bool = False):
        self._detokenizer = tokenizer.detokenizer(continuing=continuing)
        self._tokens: list[int] = []
        self._n_taken = 0
        self._is_flushed = False

    def push(self, token: int) -> Deltas:
        self._tokens.append(token)
        return ()

    def flush(self) -> Deltas:
        self._is_flushed = True
        return ()

    def take(self, n_tokens: int) -> Deltas:
        """The text of the next tokens, or of those there are; with that of the last what was held back."""
        tokens = self._tokens[self._n_taken : self._n_taken + n_tokens]
        self._n_taken += len(tokens)
        text = self._detokenizer.push_all(tokens) if tokens else ""
        if self._is_flushed and self._n_taken == len(self._tokens):
            text += self._detokenizer.flush()
        return (text,) if text else ()


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How many tokens a block of thinking may have, and the tokens that close it then."""

    n_tokens: int
    close: tuple[int, ...]


class ReplyWriter(StoppedWriter):
    """Replies with reasoning and tool calls. Stop strings are looked for in the text alone."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...],
        reply_format: ReplyFormat,
        continuing: bool = False,
        budget: ThinkingBudget | None = None,
        lines: LineLimits | None = None,
    ):
        shown = tokenizer.special_tokens_in(reply_format.marks)
        self._detokenizer = tokenizer.detokenizer(continuing=continuing, shown=shown)
        self._parser = ReplyParser(reply_format)
        self._matcher = StopMatcher(stops, lines)
        self._budget = budget
        self.forced: tuple[int, ...] = ()
        self.n_reasoning_tokens = 0
        self._n_unshown = 0  # tokens since something was shown

    @property
    def stopped(self) -> bool:
        return self._matcher.has_ended or self._parser.stopped

    def push(self, token: int) -> Deltas:
        """The deltas that this token completes. A block of thinking that has used up its budget is closed next."""
        was_reasoning = self._parser.in_reasoning
        deltas = self._parser.push(self._detokenizer.push(token))
        is_mark = bool(self.forced)
        self.forced = self.forced[1:]
        if was_reasoning and not is_mark:
            self._count(deltas)
        self._spend()
        return self._matched(deltas) if self._matcher.has_stops else deltas

    def flush(self) -> Deltas:
        """Release text that was held back, now that no more tokens come."""
        deltas = self._parser.push(self._detokenizer.flush()) + self._parser.flush()
        return self._matched(deltas, last=True) if self._matcher.has_stops else deltas

    def _count(self, deltas: Deltas) -> None:
        """Count a token of the thinking, of which its closing mark and space before that are no part."""
        has_thought = any(isinstance(delta, ReasoningDelta) for delta in deltas)
        if self._parser.in_reasoning:
            self.n_reasoning_tokens += 1
            self._n_unshown = 0 if has_thought else self._n_unshown + 1
        else:
            self.n_reasoning_tokens -= 0 if has_thought else self._n_unshown
            self._n_unshown = 0

    def _spend(self) -> None:
        budget = self._budget
        if budget and self.n_reasoning_tokens >= budget.n_tokens and self._parser.in_reasoning and not self.forced:
            self.forced = budget.close

    def _matched(self, deltas: Deltas, last: bool = False) -> Deltas:
        """The deltas up to a stop string in their text. What is held back comes before a delta of another kind."""
        made: list[Delta] = []
        for delta in deltas:
            made.append(self._matcher.push(delta) if isinstance(delta, str) else self._matcher.flush())
            if self._matcher.has_ended:
                break
            if not isinstance(delta, str):
                made.append(delta)
        if last and not self._matcher.has_ended:
            made.append(self._matcher.flush())
        return merge([delta for delta in made if delta])

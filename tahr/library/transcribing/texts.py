"""Texts of one window that an engine is writing: sequences that look at the window's rows, fed token by token."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

import numpy as np

from tahr.backends.api import Floats
from tahr.engine.engine import Engine
from tahr.engine.sequences.parts import NO_ROW
from tahr.engine.sequences.prompt_rows import PromptRows
from tahr.engine.sequences.sequence import Sequence
from tahr.speech.decoding.rules import Row, allowed_logits, log_probabilities, log_sum
from tahr.speech.decoding.tokens import SpeechTokens


@dataclass(slots=True, eq=False)
class Followed:
    """A text and the logits after it."""

    first_row: int = NO_ROW  # the first token of the prompt whose row is wanted besides the last one's
    written: list[int] = field(default_factory=list)
    logprob_sum: float = 0.0
    first: Row | None = None  # row of the first token wanted
    last: Row | None = None  # row of the last token; None: it is not there yet
    has_ended: bool = False
    sequence: Sequence | None = None

    def __call__(self, rows: Floats) -> None:
        """Take rows as they come, perhaps chunk by chunk."""
        if self.first is None:
            self.first = np.array(rows[0])
        assert self.sequence
        if self.sequence.computed == len(self.sequence.tokens):
            self.last = np.array(rows[-1])

    @property
    def mean_logprob(self) -> float:
        return self.logprob_sum / (len(self.written) + 1)

    @property
    def score(self) -> float:
        """Order of texts."""
        return self.logprob_sum / max(1, len(self.written))


class WindowTexts:
    """Sequences of one window, all after the same prompt."""

    def __init__(self, engine: Engine, rows: PromptRows, prompt: ListOf[int], first_row: int = NO_ROW):
        self.engine = engine
        self.rows = rows
        self.prompt = list(prompt)
        self.first_row = first_row
        self.texts: list[Followed] = []

    def open(self) -> Followed:
        """One more text."""
        text = Followed(self.first_row)
        text.sequence = self.engine.submit_rows(self.prompt, text, first_row=self.first_row, stays=True, rows=self.rows)
        self.texts.append(text)
        return text

    def fork(self, text: Followed) -> Followed:
        """Another text that has been the same up to here."""
        assert text.sequence
        other = Followed(NO_ROW, list(text.written), text.logprob_sum, text.first)
        other.sequence = self.engine.row_sequence(list(text.sequence.tokens), other, stays=True)
        other.sequence.rows = text.sequence.rows
        self.engine.scheduler.fork(text.sequence, other.sequence)
        self.texts.append(other)
        return other

    def extend(self, text: Followed, token: int, logprob: float) -> None:
        """Let a text go on with a token."""
        assert text.sequence
        text.written.append(token)
        text.logprob_sum += logprob
        text.last = None
        self.engine.scheduler.extend(text.sequence, [token])

    def drop(self, text: Followed) -> None:
        """Forget a text."""
        assert text.sequence
        self.engine.abort(text.sequence)
        self.texts.remove(text)

    def close(self) -> None:
        """Release everything."""
        for text in list(self.texts):
            self.drop(text)

    def check(self) -> None:
        """Raise what went wrong with one of them."""
        for text in self.texts:
            assert text.sequence
            if text.sequence.result.error:
                raise text.sequence.result.error


def probability(row: Row, token: int | None, tokens: SpeechTokens) -> float:
    """How likely a token is after a row, before any rule."""
    values = row[: tokens.n_vocab]
    return 0.0 if token is None else float(np.exp(values[token] - log_sum(values)))


def ruled(text: Followed, tokens: SpeechTokens, has_times: bool) -> Row:
    """Log-probabilities of the tokens that may follow."""
    assert text.last is not None
    return log_probabilities(allowed_logits(text.last, text.written, tokens, has_times))

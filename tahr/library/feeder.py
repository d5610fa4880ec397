"""Sequences whose owner feeds them tokens and takes rows: sessions, beams, probes and benchmarks."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf

import numpy as np

from tahr.backends.api import Floats
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, KvCacheFull
from tahr.generation.driver import Driver

Sink = Callable[[Floats], None]


class LastRow:
    """Keeps a copy of the last row it was given."""

    def __init__(self) -> None:
        self.row: Floats = np.zeros(0, np.float32)

    def __call__(self, rows: Floats) -> None:
        self.row = np.array(rows[-1])


class Feeder:
    """Runs an engine's steps until the sequences it feeds have nothing left to compute."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._driver = Driver(engine)

    def open(self, tokens: ListOf[int], sink: Sink) -> Sequence:
        """A sequence that gives its rows to `sink`: those of the last token of each feed. It stays until closed."""
        self.check(0, tokens)
        return self.engine.submit_rows(tokens, sink, stays=True)

    def feed(self, seq: Sequence, tokens: ListOf[int]) -> None:
        """More tokens to compute."""
        self.check(len(seq.tokens), tokens)
        self.engine.scheduler.extend(seq, tokens)

    def fork(self, seq: Sequence, sink: Sink) -> Sequence:
        """Another sequence with the same tokens; nothing is copied until one of them grows."""
        other = self.engine.row_sequence(list(seq.tokens), sink, stays=True)
        self.engine.scheduler.fork(seq, other)
        return other

    def restore(self, tokens: ListOf[int], sink: Sink) -> Sequence:
        """A sequence with pages for tokens whose keys and values the caller is going to write."""
        self.check(0, tokens)
        seq = self.engine.row_sequence(list(tokens), sink, stays=True)
        try:
            self.engine.scheduler.take_pages(seq)
        except KvCacheFull:
            self.close(seq)  # the engine's adapters are not its any more
            raise
        return seq

    def truncate(self, seq: Sequence, n_tokens: int) -> None:
        """Go back to the first n tokens; at least one is left."""
        self.engine.scheduler.truncate(seq, n_tokens)

    def resume(self, seq: Sequence) -> None:
        """Compute again what a preempted sequence has lost: it holds its pages when this returns."""
        self.engine.scheduler.extend(seq, ())
        self.run(seq)
        while seq.queueing.swapped_out:  # a step that finishes the one before it may swap out what that one computed
            self.engine.scheduler.extend(seq, ())
            self.run(seq)

    def run(self, *sequences: Sequence) -> None:
        """Step until these have nothing left to compute. An error of one is raised.

        An interrupt closes them all: nobody knows what of them is computed.
        """
        try:
            self._driver.run(lambda: all(seq.done or seq.is_idle or seq.queueing.swapped_out for seq in sequences))
        except BaseException:
            for seq in sequences:
                self.close(seq)
            raise
        for seq in sequences:
            if seq.result.error:
                raise seq.result.error

    def close(self, seq: Sequence) -> None:
        """Release what it holds."""
        self.engine.abort(seq)

    def check(self, n_before: int, tokens: ListOf[int]) -> None:
        """Refuse tokens that cannot be computed after so many others."""
        n_vocab = self.engine.facts.n_logits
        context_size = self.engine.context_size
        if not tokens:
            raise ConfigError("There are no tokens to compute: give at least one.")
        if min(tokens) < 0 or max(tokens) >= n_vocab:
            raise ConfigError(f"Token ids must lie between 0 and {n_vocab - 1}.")
        if self.engine.facts.placeholder in tokens:
            raise ConfigError("A session's text reads no rows of images: send what has images with a request.")
        if n_before + len(tokens) > context_size:
            raise KvCacheFull(
                f"The text would have {n_before + len(tokens)} tokens, but the context holds {context_size}: "
                "shorten it, or raise the context size."
            )

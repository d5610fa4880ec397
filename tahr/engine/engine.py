"""The engine: schedule, run, finish. Knows tokens and text, not where either comes from."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tahr.config import SamplingParams
from tahr.engine.output import Writer
from tahr.engine.runner import Runner
from tahr.engine.sampler import Picker
from tahr.engine.scheduler import Scheduler, Work
from tahr.engine.sequence import Sequence
from tahr.errors import ConfigError, GenerateError, KvCacheFull, TahrError


@dataclass(frozen=True, slots=True)
class Event:
    """What a step brought one sequence: text that may be shown, the token behind it, and whether it is over."""

    sequence: Sequence
    text: str
    tokens: tuple[int, ...] = ()


class Engine:
    """Lets many sequences share one model; nothing a request does can change or stop another's."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, context_size: int, n_vocab: int, is_eos: Callable[[int], bool]
    ):
        self.scheduler = scheduler
        self.runner = runner
        self.context_size = context_size
        self.n_vocab = n_vocab
        self.is_eos = is_eos

    def submit(self, tokens: list[int], params: SamplingParams, writer: Writer) -> Sequence:
        """Queue a request; refused at once if it could never run."""
        self._check(tokens)
        max_length = min(len(tokens) + (params.max_tokens or self.context_size), self.context_size)
        if self.scheduler.pages_for(max_length) > self.scheduler.pool.n_pages:
            n_room = self.scheduler.pool.n_pages * self.scheduler.page_size
            raise KvCacheFull(f"The request may need {max_length} tokens, but the whole KV pool holds {n_room}.")
        seq = Sequence(list(tokens), params, max_length, Picker(params), writer)
        self.scheduler.add(seq)
        return seq

    def step(self) -> list[Event]:
        """Choose work, run it, hand out what came of it."""
        work = self.scheduler.next()
        if not work:
            return []
        now = time.perf_counter()
        for item in work:
            item.sequence.started(now)
        ready = self.runner.run(work)
        self.scheduler.advance(work)
        return [self._finish(item, logits) for item, logits in ready]

    def abort(self, seq: Sequence) -> None:
        """Stop a request and free what it holds."""
        if not seq.done:
            self._end(seq, "cancelled")

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    # ---- one request ------------------------------------------------------------------------------------------

    def _check(self, tokens: list[int]) -> None:
        if not tokens:
            raise ConfigError("The prompt is empty: give at least one token of text.")
        if len(tokens) >= self.context_size:
            raise ConfigError(
                f"The prompt has {len(tokens)} tokens, but the context holds {self.context_size} and needs room for a "
                "reply: shorten the prompt or raise the context size."
            )
        if min(tokens) < 0 or max(tokens) >= self.n_vocab:
            raise ConfigError(f"Token ids must lie between 0 and {self.n_vocab - 1}.")

    def _finish(self, work: Work, logits: NDArray[np.float32]) -> Event:
        """Pick, append, write; an error here belongs to this request alone."""
        seq = work.sequence
        try:
            return self._advance(seq, logits)
        except Exception as error:  # whatever one request did wrong must not stop the others
            seq.error = error if isinstance(error, TahrError) else GenerateError(f"The request failed: {error!r}.")
            self._end(seq, "error")
            return Event(seq, "")

    def _advance(self, seq: Sequence, logits: NDArray[np.float32]) -> Event:
        assert seq.picker and seq.writer
        token = seq.picker.pick(logits, seq.tokens)
        seq.picked(token, time.perf_counter())
        if self.is_eos(token) and not seq.params.ignore_eos:
            return self._last(seq, "", "stop", token)
        text = seq.writer.push(token)
        if seq.writer.stopped:
            return self._last(seq, text, "stop", token)
        if len(seq.tokens) >= seq.max_length:
            return self._last(seq, text, "length", token)
        return Event(seq, text, (token,))

    def _last(self, seq: Sequence, text: str, reason: str, token: int) -> Event:
        assert seq.writer
        if not seq.writer.stopped:
            text += seq.writer.flush()
        self._end(seq, reason)
        return Event(seq, text, (token,))

    def _end(self, seq: Sequence, reason: str) -> None:
        seq.finish_reason = reason
        self.scheduler.remove(seq)

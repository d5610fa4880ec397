"""The engine: schedule, run, finish. Knows tokens and text, not where either comes from."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import asdict
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tahr.config import SamplingParams
from tahr.engine.detokenize import Writer
from tahr.engine.drawing import draw, drawable
from tahr.engine.runner import Runner
from tahr.engine.sampler import SampledToken, Sampler, SampleRequest, SamplingState
from tahr.engine.sampling.dry import Resolve
from tahr.engine.scheduler import Scheduler, Work
from tahr.engine.sequence import Sequence, State
from tahr.engine.stats import EngineStats, StatsSnapshot
from tahr.engine.step_log import Watch
from tahr.errors import ConfigError, GenerateError, KvCacheFull, TahrError
from tahr.kv.prefix import PrefixStats
from tahr.text.deltas import Deltas

N_TOKENS = attrgetter("n_tokens")


class Event(NamedTuple):
    """What a step brought one sequence: what may be shown, and the token behind it."""

    sequence: Sequence
    deltas: Deltas
    tokens: tuple[int, ...] = ()


class Engine:
    """Lets many sequences share one model; nothing a request does can change or stop another's."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        context_size: int,
        n_vocab: int,
        eos_ids: frozenset[int] = frozenset(),
        resolve: Resolve | None = None,
    ):
        self.scheduler = scheduler
        self.runner = runner
        self.context_size = context_size
        self.n_vocab = n_vocab
        self.eos_ids = eos_ids
        self.stats = EngineStats()
        self.watch: Watch | None = None  # told of every step
        self.sampler = Sampler(runner.backend.row_sampler)
        self._resolve = resolve

    def submit(
        self, tokens: ListOf[int], params: SamplingParams, new_writer: Callable[[], Writer], adapter: str = ""
    ) -> Sequence:
        """Queue a request; refused at once if it could never run. With n > 1 its `forks` are the other answers."""
        self._check(tokens)
        max_length = min(len(tokens) + (params.max_tokens or self.context_size), self.context_size)
        self._check_room(max_length)
        sampling = SamplingState(params, self.eos_ids, self._resolve)
        sampling.check(self.n_vocab)
        states = [sampling, *(sampling.fork(index) for index in range(1, params.n))]
        answers = [self._answer(list(tokens), max_length, each, new_writer(), adapter) for each in states]
        first, *first.forks = answers
        self.stats.requests_started += len(answers)
        self.scheduler.add(first)
        return first

    def step(self) -> list[Event]:
        """Choose work, run it, hand out what came of it."""
        began = perf_counter()
        work = self.scheduler.next()
        if not work:
            return []
        events = self._run(work)
        if self.watch:
            self.watch.step(self.scheduler, work, began)
        return events

    def _run(self, work: list[Work]) -> list[Event]:
        try:
            ready, answers = self._compute(work)
        except BaseException as error:  # whatever was in this step cannot be trusted any more; the next one can
            events = [self._fail(item.sequence, error, suspect=True) for item in work if not item.sequence.done]
            if not isinstance(error, Exception):
                raise
            return events
        now = perf_counter()
        self.stats.tokens_generated += len(ready)
        return [self._finish(seq, answer, now) for seq, answer in zip(ready, answers, strict=True)]

    def abort(self, seq: Sequence, error: TahrError | None = None) -> None:
        """Stop a request and free what it holds; with an error, it has failed."""
        if not seq.done:
            self._end(seq, "error" if error else "cancelled", error)

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.line)

    @property
    def live(self) -> list[Sequence]:
        """All sequences that run or wait."""
        return [*self.scheduler.running, *self.scheduler.line.members]

    def snapshot(self) -> StatsSnapshot:
        """All counters at this moment."""
        scheduler, prefix = self.scheduler, self.scheduler.prefix
        found = prefix.stats if prefix else PrefixStats()
        return StatsSnapshot(
            **asdict(self.stats),
            requests_running=len(scheduler.running),
            requests_waiting=len(scheduler.line),
            requests_prefilling=sum(seq.state is State.PREFILLING for seq in list(scheduler.running)),
            max_batch_size=scheduler.limits.n_seqs,
            page_size=scheduler.page_size,
            kv_dtype=self.runner.kv.dtype,
            preemptions=scheduler.n_preempted,
            pages_total=sum(pool.n_pages for pool in scheduler.pools),
            pages_used=sum(pool.n_used for pool in scheduler.pools),
            prefix_hits=found.hits,
            prefix_misses=found.misses,
            prefix_evictions=sum(pool.n_evicted for pool in scheduler.pools),
            prefix_tokens_cached=prefix.tokens_cached if prefix else 0,
            prefix_bytes_cached=prefix.bytes_cached if prefix else 0,
            prefix_tokens_reused=found.tokens_reused,
            prefix_enabled=prefix is not None,
        )

    # ---- the door ---------------------------------------------------------------------------------------------

    def _check(self, tokens: ListOf[int]) -> None:
        if not tokens:
            raise ConfigError("The prompt is empty: give at least one token of text.")
        if len(tokens) >= self.context_size:
            raise ConfigError(
                f"The prompt has {len(tokens)} tokens, but the context holds {self.context_size} and needs room for a "
                "reply: shorten the prompt or raise the context size."
            )
        if min(tokens) < 0 or max(tokens) >= self.n_vocab:
            raise ConfigError(f"Token ids must lie between 0 and {self.n_vocab - 1}.")

    def _check_room(self, max_length: int) -> None:
        if not self.scheduler.holds(max_length):
            n_held = self.scheduler.pools[0].n_pages * self.scheduler.page_size
            raise KvCacheFull(
                f"The request may need {max_length} tokens, but the whole KV pool holds {n_held}: "
                "lower max_tokens, shorten the prompt, or give the engine more KV memory."
            )

    def _answer(
        self, tokens: list[int], max_length: int, sampling: SamplingState, writer: Writer, adapter: str
    ) -> Sequence:
        request = SampleRequest(sampling, tokens, len(tokens))
        params = sampling.params
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        return Sequence(tokens, params, max_length, writer, request, adapter, ends)

    # ---- one step ---------------------------------------------------------------------------------------------

    def _compute(self, work: list[Work]) -> tuple[list[Sequence], list[SampledToken | TahrError]]:
        """Run the step; the sequences that get a token now, and the tokens."""
        began = perf_counter()
        if self.runner.backend.draws and (ready := drawable(work)):
            answers = draw(self.runner, work, ready, self.n_vocab)
            n_decoded = self.scheduler.advance(work)
        else:
            logits = self.runner.run(work)[:, : self.n_vocab]  # a model may have more rows than there are tokens
            n_decoded = self.scheduler.advance(work)
            ready, rows = self._ready(work, logits)
            chosen = logits if rows == list(range(len(logits))) else logits[rows]
            answers = self.sampler.sample([seq.request for seq in ready if seq.request], chosen)
        self.stats.count_step(sum(map(N_TOKENS, work)), n_decoded, perf_counter() - began)
        return ready, answers

    def _ready(self, work: list[Work], logits: NDArray[np.float32]) -> tuple[list[Sequence], list[int]]:
        """Who gets a token now, from which row of logits. Here the answers to one prompt go their own ways."""
        ready: list[Sequence] = []
        rows: list[int] = []
        at = 0
        for seq, n, picks, n_rows, _ in work:
            at += n_rows
            if n_rows > picks and not seq.finish_reason:  # more than picking takes: the prompt's own tokens are scored
                self._score(seq, seq.computed - n, logits[at - n_rows : at])
            if picks and not seq.finish_reason:
                ready.append(seq)
                rows.append(at - 1)
                if seq.forks and not seq.n_generated:
                    forks = self._part(seq)
                    ready += forks
                    rows += [at - 1] * len(forks)
        return ready, rows

    def _part(self, seq: Sequence) -> list[Sequence]:
        forks = [fork for fork in seq.forks if not fork.done]
        for fork in forks:
            fork.prompt_logprobs = seq.prompt_logprobs
            self.scheduler.fork(seq, fork)
        return forks

    def _score(self, seq: Sequence, begin: int, rows: NDArray[np.float32]) -> None:
        """How likely a prompt's tokens were, given those before them."""
        known = seq.prompt_logprobs
        try:
            for position, row in enumerate(rows, begin):
                if len(known) <= position < seq.n_prompt - 1:
                    token, n_top = seq.tokens[position + 1], seq.params.prompt_logprobs or 0
                    known.append(self.sampler.logprobs_of(row, token, n_top))
        except Exception as error:  # whatever is wrong with one request must not stop the others
            self._fail(seq, error, suspect=True)

    # ---- one request ------------------------------------------------------------------------------------------

    def _finish(self, seq: Sequence, answer: SampledToken | TahrError, now: float) -> Event:
        """Append and write; an error here belongs to this request alone."""
        if seq.finish_reason:
            return Event(seq, ())  # another request's writer has cancelled it
        if isinstance(answer, TahrError):
            return self._fail(seq, answer, suspect=True)
        try:
            return self._accept(seq, answer, now)
        except Exception as error:  # whatever one request did wrong must not stop the others
            return self._fail(seq, error)

    def _accept(self, seq: Sequence, answer: SampledToken, now: float) -> Event:
        token, writer = answer.token, seq.writer
        assert writer
        seq.picked(token, now)
        if seq.params.logprobs is not None:
            seq.logprobs.append(answer)
        if token in seq.ends:
            return self._last(seq, (), "stop", token)
        deltas = writer.push(token)
        if writer.stopped:
            return self._last(seq, deltas, "stop", token)
        if len(seq.tokens) >= seq.max_length:
            return self._last(seq, deltas, "length", token)
        return Event(seq, deltas, (token,))

    def _last(self, seq: Sequence, deltas: Deltas, reason: str, token: int) -> Event:
        assert seq.writer
        if not seq.writer.stopped:
            deltas += seq.writer.flush()
        self._end(seq, reason)
        return Event(seq, deltas, (token,))

    def _fail(self, seq: Sequence, error: BaseException, suspect: bool = False) -> Event:
        """End a request with an error; what it computed is not reused if the computing itself is `suspect`."""
        if suspect:
            self.scheduler.distrust(seq)
        if not isinstance(error, TahrError):
            cause, error = error, GenerateError(f"The request failed: {error!r}.")
            error.__cause__ = cause
        self._end(seq, "error", error)
        return Event(seq, ())

    def _end(self, seq: Sequence, reason: str, error: TahrError | None = None) -> None:
        over = [seq] if seq.n_generated else [seq, *(fork for fork in seq.forks if not fork.done)]
        for each in over:
            each.end(reason, error)
            self.scheduler.remove(each)
            self.stats.count_end(each.state.value)

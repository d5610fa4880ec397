"""The engine: schedule, launch, collect, finish. Knows tokens and text, not where either comes from."""

from collections import deque
from collections.abc import Sequence as ListOf
from dataclasses import asdict
from functools import partial
from itertools import repeat
from time import perf_counter

from tahr.backends.api import Floats
from tahr.engine.accept import accept_forced, accept_token, forced_tokens, run_ahead, taken_by_grammars
from tahr.engine.energy import EnergyMeter
from tahr.engine.sampling.dry import Resolve
from tahr.engine.sampling.sampling_state import Sample, token_of
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.parts import NO_ROW
from tahr.engine.sequences.sequence import Sequence, State
from tahr.engine.sequences.stats import StatsSnapshot
from tahr.engine.speculation.speculator import SpeculationStats, Speculator
from tahr.engine.step.drafts import AcceptedTokens, verify
from tahr.engine.step.in_flight import InFlight
from tahr.engine.step.row_steps import RowSteps
from tahr.engine.step.steps import StepOutput, Steps
from tahr.engine.step_log import Watch
from tahr.engine.submission import Submission
from tahr.errors import ExecutorLost, GenerateError, TahrError
from tahr.executor.protocol import Executor
from tahr.grammar.masks import Forced
from tahr.kv.prefix import PrefixStats
from tahr.text.replies.deltas import Deltas

NO_DRAFTS: dict[int, int] = {}


# Output of a step for one sequence: deltas to show, and the tokens behind them. A plain tuple, because each token of
# each sequence makes one.
Event = tuple[Sequence, Deltas, tuple[int, ...]]


class Engine(Submission):
    """Lets many sequences share one model; nothing a request does can change or stop another's."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        context_size: int,
        eos_ids: frozenset[int] = frozenset(),
        resolve: Resolve | None = None,
        speculator: Speculator | None = None,
    ):
        super().__init__(scheduler, executor, context_size, eos_ids, resolve, speculator)
        self.executor = executor
        targets = speculator.targets if speculator else None
        self.steps = Steps(executor, rows=scheduler.rows.slots if scheduler.rows else None, more=targets)
        self._row_steps = RowSteps(executor, scheduler.rows) if scheduler.rows else None
        self.watch: Watch | None = None  # told of every step
        self.meter: EnergyMeter | None = None  # told when there is work
        self._overlaps = executor.facts.overlaps
        self.n_in_flight = int(self._overlaps)  # steps left in flight at a launch; more than one only without grammars
        self._in_flight: deque[InFlight] = deque()
        self._landed_at = 0.0

    def step(self) -> list[Event]:
        """Schedule a step, launch it, and finish the step whose results are due."""
        events = self._propose(self.speculator) if self.speculator else []
        work = self.scheduler.schedule()
        if work:
            if self.meter:
                self.meter.wake()
            events += self._launch(work)
        elif not self._in_flight and self.scheduler.tiers:
            self.scheduler.tiers.wait()
        if self._is_due(bool(work)):
            events += self._finish(self._in_flight.popleft())
        if self._in_flight and self._in_flight[-1].waits:
            events += self._begin_sample(self._in_flight[-1])
        if self.speculator:
            self.speculator.follow(work)
        if self._row_steps and self._row_steps.has_work:
            events += self._compute_rows(self._row_steps)
        return events

    def _compute_rows(self, steps: RowSteps) -> list[Event]:
        """Compute some of the rows that sequences wait for. Those in flight are sampled before: steps share memory."""
        events = self._sample_last()
        try:
            found = steps.run()
        except BaseException as error:
            events += [self._fail(seq, error) for seq in steps.give_up()]
            if not isinstance(error, Exception):
                raise
            return events
        return events + [self._give_rows(seq, rows) for seq, rows in found if not seq.done]

    def _give_rows(self, seq: Sequence, rows: Floats) -> Event:
        """End a sequence with the rows that a tower made for it."""
        try:
            self._sink(seq, 0, rows)
        except Exception as error:  # whatever is wrong with one request must not stop the others
            return self._fail(seq, error)
        return seq, (), ()

    def _propose(self, speculator: Speculator) -> list[Event]:
        """Have drafts made, after the step in flight has landed if their sequences are in it."""
        events = self._finish(self._in_flight.popleft()) if self._in_flight and speculator.waits(self.scheduler) else []
        speculator.propose(self.scheduler)
        return events

    def _launch(self, work: StepWork) -> list[Event]:
        """Begin a step; a launch that fails takes the sequences of its work with it, and they are returned."""
        events: list[Event] = []
        try:
            step = self.steps.prepare(work, self.adapters.n_used > 0)
            events += self._sample_last()  # the launch writes over the logits of the step before
            self.steps.launch(step, self.scheduler.slots.take_copies if self.scheduler.slots else None)
        except BaseException as error:
            self.steps.failed()
            return events + self._fail_step(work, error)
        self._in_flight.append(step)
        if self._overlaps:
            self.scheduler.launched()
            if not step.waits:
                run_ahead(step.sequences, step.host_bound)
        return events

    def _begin_sample(self, step: InFlight) -> list[Event]:
        """Begin the masks of a step whose grammars had to see the tokens of the step before.

        It is sampled when the next step is ready to run, so that the host prepares that one while masks are filled. A
        draft model runs earlier than that, and writes over the rows.
        """
        try:
            if step.masks is None:
                self.steps.begin_masks(step)
            if not step.has_run_ahead:  # a step has run ahead where the one after it could not be prepared
                known = zip(step.sequences, step.lengths, strict=True)
                step.void = frozenset(seq.id for seq, n in known if len(seq.tokens) > n)
                run_ahead(step.sequences, step.host_bound, step.void)
                step.has_run_ahead = True
            return self._sample_last() if self.speculator else []
        except BaseException as error:
            return self._fail_last(error)

    def _sample_last(self) -> list[Event]:
        """Sample the last step launched, if that had to wait."""
        try:
            if self._in_flight and self._in_flight[-1].waits:
                self.steps.sample(self._in_flight[-1])
        except BaseException as error:
            return self._fail_last(error)
        return []

    def _fail_last(self, error: BaseException) -> list[Event]:
        """The last step launched cannot be sampled."""
        step = self._in_flight.pop()
        self.scheduler.landed()
        return self._fail_step(step.work, error)

    def _is_due(self, launched: bool) -> bool:
        """Where steps overlap, some are left in flight while the host launches the next; otherwise none is."""
        return len(self._in_flight) > (self.n_in_flight if launched else 0)

    def abort(self, seq: Sequence, error: TahrError | None = None) -> None:
        """Stop a request and free what it holds; with an error, it has failed."""
        if not seq.done:
            self._end(seq, "error" if error else "cancelled", error)

    def end_early(self, seq: Sequence) -> Event:
        """End a request that runs or waits with what it has, and free what it holds."""
        writer = seq.reply.writer
        try:
            deltas = writer.flush() if writer else ()
        except Exception as error:  # an error of one request is its own
            return self._fail(seq, error)
        # A stop string may stand in what was held back.
        self._end(seq, "stop" if writer and writer.matched_stop is not None else "abort")
        return seq, deltas, ()

    @property
    def busy(self) -> bool:
        return bool(self._in_flight or self.scheduler.has_work or self.scheduler.is_copying)

    def close(self) -> None:
        """Finish what is written beside steps, and end processes that compute them."""
        if self.scheduler.tiers:
            self.scheduler.tiers.close()
        self.executor.close()

    def measure_energy(self) -> EnergyMeter | None:
        """Measure energy from now on, where its device has a counter of it; who calls this closes the meter."""
        counter = self.executor.energy_counter()
        self.meter = EnergyMeter(counter, self.stats, lambda: self.busy) if counter else None
        return self.meter

    def snapshot(self) -> StatsSnapshot:
        """All counters at this moment."""
        scheduler = self.scheduler
        prefix = self.scheduler.prefix
        found = prefix.stats if prefix else PrefixStats()
        guessed = self.speculator.stats if self.speculator else SpeculationStats()
        return StatsSnapshot(
            **asdict(self.stats),
            requests_running=len(scheduler.running),
            requests_waiting=scheduler.n_waiting,
            requests_prefilling=sum(seq.state is State.PREFILLING for seq in list(scheduler.running)),
            max_batch_size=scheduler.limits.n_seqs,
            page_size=scheduler.page_size,
            kv_dtype=self.executor.facts.memory.dtype,
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
            spec_drafts=guessed.n_drafts,
            spec_draft_tokens=guessed.n_draft_tokens,
            spec_accepted_tokens=guessed.n_accepted_tokens,
            energy=self.meter.use() if self.meter else None,
            tiers=scheduler.tiers.use() if scheduler.tiers else None,
        )

    # ---- one step ---------------------------------------------------------------------------------------------

    def _finish(self, step: InFlight) -> list[Event]:
        """Take the results of a step and hand them to its sequences."""
        try:
            output = self.steps.collect(step)
        except BaseException as error:
            return self._fail_step(step.work, error)
        finally:
            if self._overlaps:
                self.scheduler.landed()
        events = self._hand_out(step, output, perf_counter())
        if self.watch:
            self.watch.step(self.scheduler, step.work, step.began)
        return events

    def _hand_out(self, step: InFlight, output: StepOutput, now: float) -> list[Event]:
        began = max(step.began, self._landed_at)
        self._landed_at = now
        sampled = step.sequences
        tokens = output.tokens
        accepted = NO_DRAFTS
        if self.speculator:
            sampled, tokens, accepted = self._verify(step, tokens, now - began, self.speculator)
        n_decoded = self.scheduler.advance(step.work, accepted)
        drafts = step.samples.drafts
        n_wrong = sum(map(len, drafts.values())) - sum(accepted.values()) if drafts else 0
        n_tokens = sum(step.work.n_tokens)
        as_usual = self._took_as_usual(step)
        self.stats.count_step(n_tokens - n_wrong, n_decoded, now - began, not as_usual)
        if as_usual:
            self.scheduler.pace.learn(n_tokens, n_decoded + n_wrong, now - began)
        events = [] if output.rows is None else self._hand_out_rows(step.work, output.rows)
        for parent in step.samples.parents:
            self._fork(parent)
        if step.void:
            kept = [i for i, seq in enumerate(sampled) if seq.id not in step.void]
            sampled = [sampled[i] for i in kept]
            tokens = [tokens[i] for i in kept]
        self.stats.tokens_generated += len(sampled)
        ahead = self._in_flight[-1] if self._in_flight and not self.speculator else None
        if ahead and ahead.waits:
            return events + self._accept_before_masks(sampled, tokens, now, ahead)
        return events + self._accept_tokens(sampled, tokens, now)

    def _took_as_usual(self, step: InFlight) -> bool:
        """Whether no plan was compiled or captured since a step began: its own, or that of the step launched after."""
        return self.steps.sizes.n_first_runs == step.n_first_runs

    def _accept_before_masks(
        self, sampled: list[Sequence], tokens: ListOf[Sample], now: float, ahead: InFlight
    ) -> list[Event]:
        """Append a token to each sequence. The masks of the step ahead are begun in between.

        Grammars take all tokens first, so that masks are filled while tokens become text.
        """
        events: list[Event] = []
        try:
            taken = taken_by_grammars(sampled, tokens, partial(self.steps.begin_masks, ahead))
        except BaseException as error:
            events = self._fail_last(error)
            taken = [None] * len(sampled)
        return events + list(map(self._accept_token, sampled, tokens, repeat(now), taken))

    def _verify(self, step: InFlight, tokens: ListOf[Sample], seconds: float, speculator: Speculator) -> AcceptedTokens:
        """The samples that count: all of them, but for those that follow a wrong guess."""
        drafts = step.samples.drafts
        sampled = step.sequences
        found = verify(sampled, tokens, drafts) if drafts else AcceptedTokens(sampled, tokens, {})
        speculator.learn(step.work, drafts, found.accepted, seconds if self._took_as_usual(step) else None)
        return found

    def _fail_step(self, work: StepWork, error: BaseException) -> list[Event]:
        """Fail the sequences of a step: its results cannot be trusted any more, those of the next one can."""
        if isinstance(error, ExecutorLost):
            return self._start_again(error)
        events = [self._fail(seq, error, suspect=True) for seq in work.sequences if not seq.done]
        if not isinstance(error, Exception):
            raise error
        return events

    def _start_again(self, error: ExecutorLost) -> list[Event]:
        """The executor has lost its memory, but tokens are ours: all sequences are computed again from these."""
        self._in_flight.clear()
        self.steps.failed()
        self.scheduler.drop_all()
        self.executor.restart(str(error))
        fault = self.executor.fault
        return [self._fail(seq, ExecutorLost(fault)) for seq in self.scheduler.queued()] if fault else []

    def _fork(self, parent: Sequence) -> None:
        """Let the choices of a request continue each on its own, now that their prompt is computed."""
        for fork in parent.queueing.forks:
            if not parent.done and not fork.done:
                fork.result.prompt_logprobs = parent.result.prompt_logprobs
                self.scheduler.fork(parent, fork)

    def _hand_out_rows(self, work: StepWork, rows: Floats) -> list[Event]:
        """Give rows to the sequences that want more than a sampled token; the events of those that end by it."""
        ended: list[Event] = []
        end = 0
        for seq, begin, n, _, n_rows in work:
            begins = end
            end = end + n_rows
            if (seq.wanted.sink or begin + n > seq.wanted.first_row) and n_rows and not seq.result.finish_reason:
                try:
                    (self._sink if seq.wanted.sink else self._score)(seq, begin + n - n_rows, rows[begins:end])
                except Exception as error:  # whatever is wrong with one request must not stop the others
                    self._fail(seq, error, suspect=True)
                if seq.done:
                    ended.append((seq, (), ()))
        return ended

    def _sink(self, seq: Sequence, begin: int, rows: Floats) -> None:
        """Give rows to their taker; a sequence that does not stay ends with its last one."""
        assert seq.wanted.sink
        n_taken = begin + len(rows)
        seq.wanted.sink(rows)
        if seq.wanted.first_row != NO_ROW:
            seq.wanted.first_row = n_taken
        if n_taken == len(seq.tokens) and not seq.queueing.stays:
            self._end(seq, "stop")

    def _score(self, seq: Sequence, begin: int, rows: Floats) -> None:
        """How likely a prompt's tokens were, given those before them."""
        known = seq.result.prompt_logprobs
        wanted = [i for i in range(len(rows)) if len(known) <= begin + i < seq.n_prompt - 1]
        tokens = [seq.tokens[begin + i + 1] for i in wanted]
        for scored in self.steps.sampler.logprobs_of(rows, wanted, tokens, seq.params.prompt_logprobs or 0):
            if isinstance(scored, TahrError):
                raise scored
            known.append(scored)
        seq.wanted.first_row = len(known) if len(known) < seq.n_prompt - 1 else NO_ROW

    # ---- one request ------------------------------------------------------------------------------------------

    def _accept_tokens(self, sampled: list[Sequence], tokens: ListOf[Sample], now: float) -> list[Event]:
        """Accept a token for each sequence; in short for those that go on and need nothing but text."""
        events: list[Event] = []
        for seq, token in zip(sampled, tokens, strict=True):
            reply = seq.reply
            if (
                not reply.is_plain
                or not isinstance(token, int)
                or seq.result.finish_reason
                or token in reply.ends
                or len(seq.tokens) + 1 >= reply.max_length
            ):
                events.append(self._accept_token(seq, token, now))
                continue
            writer = reply.writer
            assert writer
            try:
                seq.append(token, now)
                deltas = writer.push(token)
            except Exception as error:  # whatever one request did wrong must not stop the others
                events.append(self._fail(seq, error))
                continue
            if writer.stopped:
                self._end(seq, "length" if writer.is_cut else "stop")
            events.append((seq, deltas, (token,)))
        return events

    def _accept_token(self, seq: Sequence, sampled: Sample, now: float, taken: Forced | None = None) -> Event:
        """Append a token and turn it into text; an error here belongs to this request alone.

        `taken` is what its grammar forces after it, if that has taken it already.
        """
        if seq.result.finish_reason:  # the sequence ended, failed or was cancelled after the step was launched
            self.stats.tokens_generated -= 1
            return seq, (), ()
        if isinstance(sampled, TahrError):
            return self._fail(seq, sampled, suspect=True)
        if taken is not None and isinstance(taken, Exception):
            return self._fail(seq, taken)
        tokens: tuple[int, ...] = (token_of(sampled),)
        try:
            deltas, reason = accept_token(seq, sampled, now, taken is not None)
            if reason is None and seq.reply.may_be_forced and (forced := forced_tokens(seq, taken)):
                found, deltas, reason = accept_forced(seq, forced, deltas, now)
                self.stats.tokens_generated += len(found)
                tokens += found
        except Exception as error:  # whatever one request did wrong must not stop the others
            return self._fail(seq, error)
        if reason:
            self._end(seq, reason)
        return seq, deltas, tokens

    def _fail(self, seq: Sequence, error: BaseException, suspect: bool = False) -> Event:
        """End a request with an error; what it computed is not reused if the computing itself is `suspect`."""
        if suspect:
            self.scheduler.invalidate(seq)
        if not isinstance(error, TahrError):
            cause = error
            error = GenerateError(f"The request failed: {error!r}.")
            error.__cause__ = cause
        self._end(seq, "error", error)
        return seq, (), ()

    def _end(self, seq: Sequence, reason: str, error: TahrError | None = None) -> None:
        ended = [seq] if seq.n_generated else [seq, *(fork for fork in seq.queueing.forks if not fork.done)]
        for each in ended:
            each.end(reason, error)
            self.scheduler.remove(each)
            self.adapters.detach(each)
            if each.reply.request:
                self.stats.count_end(each.state.value)

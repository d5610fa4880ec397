"""Which sequences advance, and by how many tokens: one token budget per step, decode first, prompts in chunks."""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from operator import attrgetter
from time import perf_counter

from tahr.engine.scheduling.memory import SequenceMemory
from tahr.engine.scheduling.work import PrefillBudget, PrefillPace, SchedulerLimits, StepWork
from tahr.engine.sequences.sequence import Sequence, State
from tahr.executor.output import Output
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache
from tahr.kv.row_slots import RowSlots
from tahr.kv.slots import StateSlots

LAST_STEP = attrgetter("queueing.last_step")
PATIENCE = 16  # steps that a decoding sequence waits for others' prompts
# Background sequences have a part in one of so many steps that others want: fewer than one in a hundred.
TURN = 128
SELDOM = tuple(output for output in Output if output is not Output.LOGITS)


class Scheduler(SequenceMemory):
    """Lets sequences catch up with their tokens, in the order of a policy, within the limits of steps and pools."""

    def __init__(
        self,
        pools: ListOf[PagePool],
        limits: SchedulerLimits,
        prefix: PrefixCache | None = None,
        order: str = "fcfs",
        slots: StateSlots | None = None,
        row_slots: RowSlots | None = None,
    ):
        super().__init__(pools, limits, prefix, order, slots, row_slots)
        self.pace = PrefillPace(limits.mixed_s)
        self.n_steps = 0
        self._limits = {Output.LOGITS: limits, Output.HIDDEN: limits.for_hidden_rows(), Output.FRAME: limits}
        self._last_output = Output.LOGITS
        self._n_held = 0  # steps in a row without background sequences, because others wanted them
        self._at_checkpoint: list[Sequence] = []  # whose states are kept before the next step
        self._image_first: Sequence | None = None  # has an image for which steps with chunks of text have no place

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or has tokens to compute, or may get some when a step in flight has landed."""
        for seq in self.running:  # asked at every step: a generator costs more
            if not seq.is_idle:
                return True
        return self.n_waiting > 0

    @property
    def is_copying(self) -> bool:
        """Whether pages are on their way to the host."""
        return self.tiers is not None and self.tiers.n_copying > 0

    def schedule(self) -> StepWork:
        """The work of the next step; empty when nothing can be computed now. The kinds of output take turns."""
        self.n_steps += 1
        self._insert_states()
        if self.rows:
            self._queue_ready(self.rows)
        if self.tiers:
            self._queue_fetched(self.tiers)
        running = self._without_background() if self.background else self.running
        if not any(self._n_running[output] or self.queues[output] for output in SELDOM):
            return self._schedule_output(Output.LOGITS, running)
        turns = sorted(Output, key=lambda output: (output - self._last_output - 1) % len(Output))
        for output in turns:
            work = self._schedule_output(output, [seq for seq in running if seq.wanted.output is output])
            if work:
                self._last_output = output
                return work
        return StepWork()

    def _without_background(self) -> list[Sequence]:
        """The running sequences that may have a part in the step: those in the background only if no other wants it.

        A sequence whose last step is in flight wants the next one, too. In their turn they run beside the others.
        """
        others = [seq for seq in self.running if not seq.queueing.is_background]
        first = [queue.first for queue in self.queues.values()]
        waits = any(seq and not seq.queueing.is_background for seq in first)
        wanted = waits or any(not seq.is_idle for seq in others)
        self._n_held = self._n_held + 1 if wanted and (waits or self._n_held < TURN - 1) else 0
        self.holds_background = self._n_held > 0
        return others if self.holds_background else self.running

    def _schedule_output(self, output: Output, running: list[Sequence]) -> StepWork:
        """A step for the sequences that want one kind of output."""
        work = StepWork()
        most = self.limits.n_decode_tokens
        decoding = running = running[:]  # preempting changes the list
        if self.limits.n_decoding_first or len(running) > self.limits.n_decode_seqs:
            decoding = [seq for seq in running if 0 < seq.n_left <= most]
        image = self._image_first
        if image and image in running:
            self._image_first = None
            others = [seq for seq in running if seq is not image and self._prefills(seq)]
            self._schedule_prefill(output, [image, *others], work)
        elif self._prefill_comes_first(decoding):
            self._schedule_prefill(output, list(filter(self._prefills, running)), work)
        if not work:
            self._schedule_decode(decoding, work)
            left = running if len(work) < len(running) else []
            prefilling = [seq for seq in left if seq.queueing.last_step != self.n_steps and self._prefills(seq)]
            self._schedule_prefill(output, prefilling, work)
        return work

    def _prefills(self, seq: Sequence) -> bool:
        """Whether a sequence has too many tokens left to decode, or the rest of an image, however short."""
        return seq.n_left > self.limits.n_decode_tokens or self._is_before_image(seq)

    def _is_before_image(self, seq: Sequence) -> bool:
        """Whether an image whose tokens see each other is not computed yet."""
        spans = seq.rows.spans
        return bool(spans and self.limits.image_rows and seq.scheduled < spans[-1].end)

    def _stop_running(self, seq: Sequence) -> None:
        super()._stop_running(seq)
        if seq is self._image_first:
            self._image_first = None

    # ---- decode ------------------------------------------------------------------------------------------------------

    def _prefill_comes_first(self, decoding: list[Sequence]) -> bool:
        """Whether too few decode for a step of theirs to pay; no sequence waits long for others' prompts."""
        if len(decoding) >= self.limits.n_decoding_first:
            return False
        return all(self.n_steps - seq.queueing.last_step <= PATIENCE for seq in decoding)

    def _schedule_decode(self, decoding: list[Sequence], work: StepWork) -> None:
        """All tokens each has to compute; if not all sequences may decode in one step, they take turns.

        Sequences that have nothing to compute, or a prompt, are left out.
        """
        limit = self.limits.n_decode_seqs
        most = self.limits.n_decode_tokens
        n_steps = self.n_steps
        for seq in decoding if len(decoding) <= limit else sorted(decoding, key=LAST_STEP):
            begin = seq.scheduled
            ahead = seq.ahead
            end = len(seq.tokens) + ahead.n_ahead
            n = end - begin
            if not 0 < n <= most or (seq.rows.spans and self._is_before_image(seq)):
                continue
            if len(work.sequences) == limit:
                return
            if end <= seq.memory.n_owned or self._gets_pages(seq, end, work):
                if n == 1 and not ahead.drafts:
                    work.add_last(seq, begin)
                else:
                    n_rows = max(1 + len(ahead.drafts), end - max(begin, seq.wanted.first_row))
                    work.add(seq, begin, n, True, n_rows)
                seq.scheduled = end
                seq.queueing.last_step = n_steps

    # ---- prefill -----------------------------------------------------------------------------------------------------

    def _schedule_prefill(self, output: Output, prefilling: list[Sequence], work: StepWork) -> None:
        """Prompts that have begun come first, then new ones as long as there is capacity."""
        if not (prefilling or self.queues[output]):
            return
        others_decode = work or (output is not Output.LOGITS and self._n_running[Output.LOGITS])
        is_background = bool(self.background) and not self.holds_background  # one that comes now waits for this step
        is_short = others_decode or is_background
        n_most = (self.limits.n_active_prefill_tokens or self.pace.n_tokens) if is_short else None
        budget = PrefillBudget(self._limits[output], n_most)
        for seq in prefilling:
            if seq.state is not State.PREEMPTED:
                self._prefill(seq, budget, work)
        while budget.open and (admitted := self._admit(output)):
            self._prefill(admitted, budget, work)

    def _prefill(self, seq: Sequence, budget: PrefillBudget, work: StepWork) -> None:
        n = budget.grant(seq) if budget.holds(seq) and len(work) < self.limits.n_most_seqs else 0
        for position in seq.memory.checkpoints:
            if seq.scheduled < position < seq.scheduled + n:
                n = position - seq.scheduled
        if n and self.limits.image_rows:
            n = self._with_whole_images(seq, n, budget, work)
        if n and self._schedule_tokens(seq, n, work):
            budget.spend(seq, n)
            if seq.scheduled in seq.memory.checkpoints:
                self._at_checkpoint.append(seq)

    def _with_whole_images(self, seq: Sequence, n: int, budget: PrefillBudget, work: StepWork) -> int:
        """How many of n tokens of a sequence are computed: text up to the next image, or the rest of an image.

        A step has chunks of either: in one with images, tokens of a sequence see those behind them.
        """
        n_chunk, is_image = seq.rows.chunk(seq.scheduled, n)
        if not is_image:
            return n_chunk if n_chunk == 1 or not work.has_images else 0
        if n_chunk > n and not budget.is_whole:
            return 0  # the first of a later step
        if not work.has_images and max(work.n_tokens, default=1) > 1:
            self._image_first = self._image_first or seq
            return 0
        work.has_images = True
        return n_chunk

    def _schedule_tokens(self, seq: Sequence, n: int, work: StepWork) -> bool:
        """Put n tokens of a sequence into the step, if there are pages for them."""
        begin = seq.scheduled
        end = seq.scheduled + n
        known = len(seq.tokens) + seq.ahead.n_ahead
        if not self._gets_pages(seq, known, work):
            return False
        samples = end == known
        n_sampled = 1 + len(seq.ahead.drafts) if samples else 0
        work.add(seq, begin, n, samples, max(n_sampled, end - max(begin, seq.wanted.first_row)))
        seq.scheduled = end
        seq.queueing.last_step = self.n_steps
        return True

    # ---- what a step has computed ------------------------------------------------------------------------------------

    def _insert_states(self) -> None:
        """Make the checkpoints that sequences came to with the last step, before the next one changes their states."""
        for seq in self._at_checkpoint:
            held = seq.memory
            if held.slot and held.hashes and seq.scheduled in held.checkpoints:  # not if it has ended or was preempted
                assert self.prefix
                self.prefix.insert_state(held.hashes, seq.tokens, seq.scheduled, held.slot)
                if self.tiers:
                    self.tiers.keep_state(seq)
        self._at_checkpoint.clear()

    def advance(self, work: StepWork, accepted: Mapping[int, int] | None = None) -> int:
        """The step has computed its tokens; how many of those that count belong to sequences that decode.

        `accepted` says by the id of each sequence that computed drafts how many of them were right.
        """
        n_decoded = 0
        page_size = self.page_size
        decoding = State.DECODING
        for seq, begin, n, samples in zip(work.sequences, work.begins, work.n_tokens, work.samples, strict=True):
            end = begin + n
            if seq.scheduled < end:
                continue  # finished or preempted meanwhile
            seq.computed = end
            if seq.state is decoding:
                n_decoded += n
                seq.queueing.share.n_tokens += n
            elif samples:
                seq.enter(decoding)
                if self.rows and not seq.rows.seen_by_all:
                    self.rows.release(seq)
            else:
                seq.result.stats.chunk_ends.append((end, perf_counter()))
            if accepted and seq.id in accepted:
                n_decoded -= n - 1 - accepted[seq.id]
                end = self._accept(seq, begin + 1 + accepted[seq.id])
            hashes = seq.memory.hashes
            if hashes and end >= (hashes.n_inserted + 1) * page_size:
                assert self.prefix
                begin = hashes.n_inserted
                self.prefix.insert(hashes, seq.tokens, seq.memory.tables, end)
                if self.tiers:
                    self.tiers.keep(seq, begin, hashes.n_inserted)
        if self.tiers:
            self.tiers.copy()
        return n_decoded

    def _accept(self, seq: Sequence, n_computed: int) -> int:
        """Drop what was computed for drafts that were wrong; how many of its own tokens are computed then.

        The drafts that were right become its own when they are appended.
        """
        seq.set_drafts(())
        if n_computed < seq.computed:
            self.rewind(seq, n_computed)
        return min(n_computed, len(seq.tokens))

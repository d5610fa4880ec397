"""The scheduler against random traffic on tiny pools: no arrays, no model, page integrity after every step."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from null_model import N_VOCAB, PAGE, NullModel, expected, scheduler, sequence
from tahr.config import SCHEDULING_POLICIES, EngineConfig, SamplingParams
from tahr.engine.scheduling.policies import POLICIES
from tahr.engine.scheduling.waiting_queue import PATIENCE
from tahr.engine.scheduling.work import PrefillPace
from tahr.engine.sequences.parts import ReplyState
from tahr.engine.sequences.sequence import NEXT, OVER, Sequence, State
from tahr.errors import ConfigError, GenerateError, KvCacheFull
from tahr.executor.output import Output
from tahr.kv.pages import PagePool
from tiers import examples


def add(model: NullModel, *sequences: Sequence) -> None:
    for seq in sequences:
        model.sched.add(seq)


# ---- memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
def test_twenty_requests_share_a_pool_for_two(cached: bool) -> None:
    model = NullModel(scheduler(n_pages=10, cached=cached))
    everyone = [sequence([i % N_VOCAB, i // N_VOCAB % N_VOCAB, i // 9] + [1] * 9, 8) for i in range(20)]
    add(model, *everyone)
    model.run(*everyone)  # which checks after every step that nobody holds more than it needs
    assert [seq.tokens for seq in everyone] == [expected(seq.tokens[:12], 20) for seq in everyone]
    assert model.sched.pools[0].n_used == 0


def test_the_oldest_wins_when_memory_runs_out() -> None:
    model = NullModel(scheduler(n_pages=6))
    old, young = sequence(8, 14), sequence([2] * 8, 14)
    add(model, old, young)
    model.run(old)
    assert not young.done
    assert young.result.stats.n_preempted > 0 and old.result.stats.n_preempted == 0
    model.run(young)
    assert young.tokens == expected([2] * 8, 22)


def test_a_preempted_sequence_finds_its_own_pages_again() -> None:
    model = NullModel(scheduler(n_pages=9))
    old, young = sequence(12, 12), sequence([2] * 12, 12)
    add(model, old, young)
    n_computed = 0
    while not young.done:
        n_computed += sum(item.n_tokens for item in model.step() if item.sequence is young)
    assert young.result.stats.n_preempted > 0
    assert n_computed < len(young.tokens) - 1 + 12, "everything was computed again"


def test_the_short_end_of_a_prompt_gives_all_rows_that_are_wanted() -> None:
    """With drafts, it may come in the same way as a decoding sequence: its wanted rows begin in the middle of it."""
    model = NullModel(scheduler(n_pages=9, prefill_chunk=8, n_decode_tokens=6))
    seq = sequence(12, 4)
    seq.wanted.first_row = 10
    add(model, seq)
    items = [item for _ in range(2) for item in model.step()]
    assert [(item.begin, item.n_tokens, item.n_rows) for item in items] == [(0, 8, 0), (8, 4, 2)]


def test_admission_leaves_room_to_grow() -> None:
    model = NullModel(scheduler(n_pages=13, admit_below=0.8, n_prefill_tokens=99))
    first, second, third = (sequence([i] * 15, 2) for i in range(3))
    add(model, first, second, third)
    model.step()
    assert [seq.state is State.WAITING for seq in (first, second, third)] == [False, False, True]
    assert model.sched.pools[0].n_free == 5, "four would be enough for the third, but nobody could grow"
    model.run(third)


def test_a_cancelled_sequence_frees_everything_at_once() -> None:
    model = NullModel(scheduler(n_pages=10))
    running, waiting = sequence(12, 20), sequence(30, 9)
    add(model, running, waiting)
    model.step()
    assert model.sched.pools[0].n_used > 0
    for seq in (running, waiting):
        seq.end("cancelled")
        model.sched.remove(seq)
    assert model.sched.pools[0].n_used == 0 and not model.sched.running and not model.sched.n_waiting
    assert not model.step()


def test_pool_refuses_what_it_does_not_have() -> None:
    pool = PagePool(3, PAGE)
    held = pool.take(2)
    with pytest.raises(KvCacheFull, match="1 free pages of 3"):
        pool.take(2)
    pool.share(held)
    pool.release(held)
    assert pool.n_free == 1
    pool.release(held)
    assert pool.n_free == 3
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(held)
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share(held)


# ---- forks ----------------------------------------------------------------------------------------------------


def test_a_fork_shares_all_pages_and_copies_one() -> None:
    model = NullModel(scheduler(n_pages=20, cached=False))
    parent = sequence(10, 8)
    add(model, parent)
    while not parent.n_generated:
        model.step()
    child = sequence(list(parent.tokens), parent.reply.max_length - len(parent.tokens))
    model.sched.fork(parent, child)
    assert model.sched.pools[0].n_used == 3
    child.tokens[-1] = (child.tokens[-1] + 1) % N_VOCAB  # another first token: not computed yet
    wanted = expected(child.tokens, child.reply.max_length)
    work = model.step()
    assert len(work.copies) == 1, "the second to write has the page to itself"
    assert model.sched.pools[0].n_used == 4
    model.run(parent, child)
    assert child.tokens == wanted
    assert parent.tokens == expected(parent.tokens[:10], 18)


def test_a_fork_without_a_place_waits() -> None:
    model = NullModel(scheduler(n_pages=20, n_seqs=1))
    parent = sequence(10, 8)
    add(model, parent)
    while not parent.n_generated:
        model.step()
    child = sequence(list(parent.tokens), 5)
    model.sched.fork(parent, child)
    assert child in model.sched.queues[Output.LOGITS] and not any(child.memory.tables)
    model.run(parent, child)
    assert child.tokens == expected(child.tokens[:11], 16)
    assert model.sched.prefix and model.sched.prefix.stats.tokens_reused >= 8


# ---- chunks and limits ----------------------------------------------------------------------------------------


def test_decoding_goes_on_while_a_long_prompt_comes_in() -> None:
    model = NullModel(scheduler(n_pages=100))
    talker, reader = sequence(2, 50), sequence(80, 1)
    add(model, talker)
    model.step()
    add(model, reader)
    chunks = []
    while not reader.done:
        work = {item.sequence.id: item.n_tokens for item in model.step()}
        assert work[talker.id] == 1, "the running sequence lost a turn to the prompt"
        chunks.append(work[reader.id])
    assert max(chunks) == 8 and sum(chunks) == 80


def test_prompts_share_the_budget_but_the_first_is_always_taken() -> None:
    model = NullModel(scheduler(n_pages=100, prefill_chunk=16, n_prefill_tokens=10))
    add(model, sequence([0] * 16, 1), sequence([1] * 16, 1))
    assert [item.n_tokens for item in model.step()] == [16], "a chunk over budget stalls nobody, but is alone"
    add(model, sequence([2] * 6, 1), sequence([2, 1] * 3, 1))
    assert [item.n_tokens for item in model.step()] == [16]
    assert [item.n_tokens for item in model.step()] == [6, 4], "the second gets what the first leaves"


def test_forced_tokens_and_prompts_share_the_budget() -> None:
    model = NullModel(scheduler(n_pages=100, prefill_chunk=16, n_prefill_tokens=16))
    talker = sequence(2, 50)
    add(model, talker)
    model.step()
    talker.tokens += [1, 2]  # what a grammar forces
    add(model, sequence([0] * 12, 1), sequence([1] * 12, 1))
    n_tokens = [item.n_tokens for item in model.step()]
    assert len(n_tokens) == 3 and sum(n_tokens) == 16


def test_no_more_read_or_write_in_a_step_than_allowed() -> None:
    model = NullModel(scheduler(100, n_seqs=6, n_prefill_seqs=2, n_decode_seqs=3, prefill_chunk=4, n_prefill_tokens=99))
    everyone = [sequence([i] * 6, 9) for i in range(8)]
    add(model, *everyone)
    waited = dict.fromkeys((seq.id for seq in everyone), 0)
    while not all(seq.done for seq in everyone):
        decoding = [seq for seq in model.sched.running if seq.n_left == 1]
        work = model.step()
        wrote = [item.sequence for item in work if item.sequence in decoding]
        assert len(wrote) <= 3 and len(work) - len(wrote) <= 2
        for seq in decoding:
            waited[seq.id] = 0 if seq in wrote else waited[seq.id] + 1
            assert waited[seq.id] <= 2, "they do not take turns"
    assert all(seq.tokens == expected([seq.tokens[0]] * 6, 15) for seq in everyone)


def test_prompts_are_read_in_smaller_pieces_while_others_write() -> None:
    model = NullModel(scheduler(100, prefill_chunk=8, n_prefill_tokens=16, n_active_prefill_tokens=3))
    writer, reader = sequence([0] * 4, 20), sequence([1] * 30, 1)
    add(model, writer)
    model.step()
    add(model, reader, sequence([2] * 30, 1))
    assert [item.n_tokens for item in model.step()] == [1, 3], "all that read share the smaller budget"
    model.sched.remove(writer)
    assert [item.n_tokens for item in model.step()] == [8, 8], "with nobody waiting, whole chunks"


def test_slow_steps_make_prompts_give_way_to_decoding() -> None:
    model = NullModel(scheduler(100, prefill_chunk=512, n_prefill_tokens=512))
    decoding = sequence([0] * 4, 20)
    add(model, decoding)
    model.step()
    model.sched.pace.learn(512, 0, 0.4)  # a token takes 0.8 ms
    add(model, sequence([1] * 300, 1))
    assert [item.n_tokens for item in model.step()] == [1, 128], "0.1 s of a prompt"
    model.sched.pace.learn(512, 0, 400)
    assert [item.n_tokens for item in model.step()] == [1, PrefillPace.LEAST]
    model.sched.remove(decoding)
    assert [item.n_tokens for item in model.step()] == [108], "with nobody waiting, all that is left"


def test_few_who_write_wait_until_prompts_are_read() -> None:
    model = NullModel(scheduler(100, n_decoding_first=3, prefill_chunk=4))
    everyone = [sequence([i] * 8, 6) for i in range(4)]
    add(model, *everyone)
    while sum(seq.n_generated > 0 for seq in everyone) < 3:
        assert all(seq.n_generated <= 1 for seq in everyone), "they write before enough have been read"
        model.step()
    assert any(item.n_tokens == 1 for item in model.step()), "three are enough"
    model.run(*everyone)
    assert all(seq.tokens == expected([seq.tokens[0]] * 8, 14) for seq in everyone)


def test_who_writes_does_not_wait_for_others_prompts_forever() -> None:
    model = NullModel(scheduler(100, n_decoding_first=4))
    writer = sequence([0] * 4, 9)
    add(model, writer)
    model.step()
    for i in range(400):  # each is over with its first token, so that never enough write
        add(model, sequence([i % 7] * 8, 1))
        model.step()
    assert writer.done


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("n_pages", [60, 16])
@pytest.mark.parametrize("n_drafts", [1, 3, 6])
def test_a_sequence_decodes_its_drafts_with_its_token_and_keeps_the_right_ones(
    n_drafts: int, n_pages: int, overlaps: bool
) -> None:
    sched = scheduler(n_pages, windows=(0, 9), n_spare=8, n_decode_tokens=1 + n_drafts, overlaps=overlaps)
    model = NullModel(sched, overlaps, n_drafts=n_drafts)
    everyone = [sequence([i % 3] * 6, 40) for i in range(6)]
    add(model, *everyone)
    most = 0
    while not all(seq.done for seq in everyone):
        most = max([most, *(item.n_rows for item in model.step())])
    assert most == 1 + n_drafts and model.n_accepted > 0
    assert [seq.tokens for seq in everyone] == [expected([i % 3] * 6, 46) for i in range(6)]
    assert model.sched.pools[0].n_used == 0


def test_a_step_scores_only_so_many_tokens() -> None:
    model = NullModel(scheduler(100, n_row_tokens=3))
    seq = sequence(8, 1, prompt_logprobs=0)
    add(model, seq)
    assert [(item.n_tokens, item.n_rows) for item in model.step()] == [(3, 3)]


# ---- order ----------------------------------------------------------------------------------------------------


def admitted(order: str, *sequences: Sequence) -> list[int]:
    """Places in the given list, in the order in which they were let in one by one."""
    model = NullModel(scheduler(n_pages=20, n_seqs=1, order=order))
    add(model, *sequences)
    seen: list[int] = []
    while not all(seq.done for seq in sequences):
        seen += [item.sequence.id for item in model.step() if item.sequence.id not in seen]
    return [seen.index(seq.id) for seq in sequences]


@pytest.mark.parametrize(
    ("order", "places"),
    [("fcfs", [0, 1, 2, 3]), ("priority", [3, 1, 0, 2]), ("shortest_job_first", [3, 2, 1, 0]), ("sjf", [3, 2, 1, 0])],
)
def test_policies(order: str, places: list[int]) -> None:
    lengths, priorities = [9, 8, 7, 6], [-5, 2, 7, 2]
    traffic = [sequence(n, 2, priority=p) for n, p in zip(lengths, priorities, strict=True)]
    assert admitted(order, *traffic) == places


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'random'.*fcfs, priority, shortest_job_first, sjf"):
        EngineConfig(scheduling_policy="random")
    assert tuple(POLICIES) == SCHEDULING_POLICIES


@pytest.mark.parametrize("n_older", [0, 3])
def test_nobody_starves_behind_an_endless_stream_of_better_ones(n_older: int) -> None:
    model = NullModel(scheduler(n_pages=20, n_seqs=1, order="sjf", n_decode_seqs=1))
    older = [sequence(20, 1) for _ in range(n_older)]
    patient = sequence(19, 1)
    add(model, *older, patient)
    n_passed = 0
    while patient.state is State.WAITING:
        add(model, sequence(4, 1))
        model.step()
        n_passed += 1
        assert n_passed <= (PATIENCE + 8) * (n_older + 1)


def test_who_has_waited_long_keeps_its_pages() -> None:
    model = NullModel(scheduler(n_pages=8, order="priority"))
    low = sequence([2] * 4, 24, priority=-1)
    low.queueing.n_passed = PATIENCE - 1
    add(model, low, sequence([1] * 4, 3))
    model.sched.queues[Output.LOGITS].pop()
    assert model.sched.queues[Output.LOGITS].first is low
    add(model, sequence([0] * 8, 20, priority=5))
    model.run(low)
    assert low.result.stats.n_preempted == 0


def test_lower_priority_loses_its_pages_first() -> None:
    model = NullModel(scheduler(n_pages=6, order="priority"))
    low, high = sequence(8, 14, priority=1), sequence([2] * 8, 14, priority=2)
    add(model, low, high)
    model.run(low, high)
    assert low.result.stats.n_preempted > 0 and high.result.stats.n_preempted == 0


# ---- states ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
def test_states_follow_the_table(state: State) -> None:
    for other in State:
        seq = Sequence([1], SamplingParams(), ReplyState(2))
        seq.state = state
        if other in NEXT[state]:
            seq.enter(other)
        else:
            with pytest.raises(GenerateError, match=f"is {state.value} and cannot become {other.value}"):
                seq.enter(other)


def test_the_life_of_a_sequence() -> None:
    model = NullModel(scheduler(n_pages=6, cached=False))
    old, seq = sequence(8, 14), sequence(9, 13)
    add(model, old, seq)
    seen = [seq.state]
    while not seq.done:
        model.step()
        seen += [seq.state] if seq.state is not seen[-1] else []
    life = " ".join(state.value for state in seen)
    assert life.startswith("waiting prefilling decoding preempted prefilling")
    assert life.endswith("decoding completed") and seq.state in OVER


# ---- random traffic -------------------------------------------------------------------------------------------


class Traffic(RuleBasedStateMachine):
    """Arrivals, cancels, forks and steps in any order; every text must come out as if its request were alone."""

    @initialize(
        pages=st.integers(3, 12),
        seqs=st.integers(1, 5),
        chunk=st.integers(1, 9),
        budget=st.integers(1, 12),
        decode=st.integers(1, 5),
        order=st.sampled_from(SCHEDULING_POLICIES),
        active=st.sampled_from([None, 1, 4]),
        first=st.sampled_from([0, 0, 3]),
        cached=st.sampled_from([None, 0, 2, 100]),
        admit_below=st.sampled_from([0.5, 0.9, 1.0]),
        windows=st.sampled_from([(0,), (0, 5), (0, 13, 1), (6,)]),
        spare=st.integers(0, 8),
        overlaps=st.booleans(),
    )
    def begin(
        self,
        pages: int,
        seqs: int,
        chunk: int,
        budget: int,
        decode: int,
        order: str,
        active: int | None,
        first: int,
        cached: int | None,
        admit_below: float,
        windows: tuple[int, ...],
        spare: int,
        overlaps: bool,
    ) -> None:
        sched = scheduler(
            pages,
            windows=windows,
            n_spare=spare,
            cached=cached is not None,
            order=order,
            n_seqs=seqs,
            n_prefill_seqs=seqs,
            n_decode_seqs=min(decode, seqs),
            prefill_chunk=chunk,
            n_prefill_tokens=budget,
            n_active_prefill_tokens=active,
            n_decoding_first=first,
            admit_below=admit_below,
            overlaps=overlaps,
        )
        if sched.prefix and cached is not None:
            sched.prefix.max_pages = cached
        self.model = NullModel(sched, overlaps)
        self.room = pages * PAGE
        self.everyone: list[tuple[Sequence, list[int]]] = []  # with the text each began with
        self.wanted: dict[int, list[int]] = {}  # what each would say if it were alone

    @rule(
        data=st.data(),
        priority=st.integers(-2, 2),
        salt=st.sampled_from(["", "a"]),
        cache=st.booleans(),
        background=st.booleans(),
    )
    def arrive(self, data: st.DataObject, priority: int, salt: str, cache: bool, background: bool) -> None:
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=self.room - 1))
        n_new = data.draw(st.integers(1, self.room - len(prompt)))
        seq = sequence(prompt, n_new, 0, background, priority=priority, cache_salt=salt, cache_prompt=cache)
        self.remember(seq)
        self.model.sched.add(seq)

    def remember(self, seq: Sequence) -> None:
        self.everyone.append((seq, list(seq.tokens)))
        self.wanted[seq.id] = expected(seq.tokens, seq.reply.max_length)

    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: random.Random) -> None:
        live = [seq for seq, _ in self.everyone if not seq.done]
        if live:
            seq = pick.choice(live)
            seq.end("cancelled")
            self.model.sched.remove(seq)
            assert not any(seq.memory.tables)

    @rule(pick=st.randoms(use_true_random=False), other=st.integers(0, N_VOCAB - 1))
    def fork(self, pick: random.Random, other: int) -> None:
        settled = [seq for seq in self.model.sched.running if seq.n_left == 1 and seq.scheduled == seq.computed]
        if settled:
            parent = pick.choice(settled)
            n_new = parent.reply.max_length - len(parent.tokens)
            child = sequence(parent.tokens, n_new, background=parent.queueing.is_background)
            self.model.sched.fork(parent, child)
            self.model.sched.truncate(child, len(child.tokens) - 1)
            child.tokens.append(other)
            self.remember(child)

    @rule(pick=st.randoms(use_true_random=False), share=st.floats(0, 1))
    def truncate(self, pick: random.Random, share: float) -> None:
        settled = [seq for seq in self.model.sched.running if seq.scheduled == seq.computed and not seq.ahead.n_ahead]
        if settled:
            seq = pick.choice(settled)
            n_begun = next(len(begun) for each, begun in self.everyone if each is seq)
            n = n_begun + int(share * (len(seq.tokens) - n_begun))
            self.model.sched.truncate(seq, n)
            self.model.sched.rewind(seq, min(seq.computed, n - 1))  # the last one is computed again, for its logits

    @rule(n=st.integers(1, 10))
    def steps(self, n: int) -> None:
        for _ in range(n):
            self.model.step()

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def sound(self) -> None:
        self.model.check()
        for seq, begun in self.everyone:
            assert len(seq.tokens) >= len(begun) and seq.tokens == self.wanted[seq.id][: len(seq.tokens)]

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        live = [seq for seq, _ in self.everyone if not seq.done]
        self.model.run(*live, max_steps=sum(s.reply.max_length * 4 for s in live) * (len(live) + 1) + 1)
        for seq, _ in self.everyone:
            if seq.result.finish_reason == "length":
                assert seq.tokens == self.wanted[seq.id]
        assert not any(pool.n_used for pool in self.model.sched.pools)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)

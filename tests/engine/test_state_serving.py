"""A family whose layers keep states, served like any other: the same tokens as in one shot, whatever happens."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from engines import Tally, greedy, poison
from late_backend import LateBackend, blank_free_pages
from model_runs import greedy as one_shot
from tahr.cli.chat.prefix_files import PrefixFiles
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, GenerateError, KvCacheFull, SnapshotIncompatible
from tahr.kv.codec import TextRows
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.session import Session
from tahr.library.inference.snapshot import pack, put_back, take, unpack
from tahr.loading.builder import build_engine
from toy_state_space import ToyBackend, toy

N_NEW = 12
PROMPTS = [[1 + (i * j * 5 + j) % 60 for j in range(1, n)] for i, n in enumerate((4, 30, 17, 9, 24), 1)]


class LateToy(LateBackend, ToyBackend):
    """The toy's backend with steps in flight."""

    def __init__(self) -> None:
        super().__init__(ToyBackend())


@pytest.fixture(scope="module", params=["states", "hybrid"])
def is_hybrid(request: pytest.FixtureRequest) -> bool:
    return request.param == "hybrid"


@pytest.fixture(scope="module")
def wanted(is_hybrid: bool) -> list[list[int]]:
    be = ToyBackend()
    model = toy(be, is_hybrid)
    return [one_shot(model, be, prompt, N_NEW)[len(prompt) :] for prompt in PROMPTS]


def make(is_hybrid: bool, late: bool = False, whole_texts: int = 0, **options: object) -> Engine:
    be = LateToy() if late else ToyBackend()
    config = EngineConfig(**{"context_size": 64, "page_size": 4, "kv_dtype": "f32", **options})  # type: ignore[arg-type]
    return build_engine(be, toy(be, is_hybrid).decoder, config, whole_texts=whole_texts)[0]


def submit(eng: Engine, prompt: list[int], params: SamplingParams | None = None) -> Sequence:
    return eng.submit(ResolvedRequest(prompt, params or greedy(N_NEW), Tally))


def run(eng: Engine, *sequences: Sequence) -> list[list[int]]:
    while not all(seq.done for seq in sequences) or (eng.busy and not eng.scheduler.has_work):
        eng.step()
        assert eng.scheduler.slots
        eng.scheduler.slots.check([seq.memory.slot for seq in eng.scheduler.running])
        for group, pool in enumerate(eng.scheduler.pools):
            pool.check(seq.memory.tables[group].held for seq in eng.scheduler.running)
        if eng.executor.backend.overlaps:
            blank_free_pages(eng)
    for seq in sequences:
        if seq.result.error:
            raise seq.result.error
    return [seq.tokens[seq.n_prompt :] for seq in sequences]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 5}, {"max_batch_size": 2}, {"max_decode_batch": 1}])
def test_batched_chunked_and_in_turns(
    is_hybrid: bool, wanted: list[list[int]], late: bool, options: dict[str, object]
) -> None:
    eng = make(is_hybrid, late, **options)
    assert (eng.scheduler.prefix is not None) == is_hybrid, "without pages there is no prefix cache"
    for _ in range(2):  # the second time in used slots
        sequences = []
        for prompt in PROMPTS:
            sequences.append(submit(eng, prompt))
            eng.step()
        assert run(eng, *sequences) == wanted
    assert eng.scheduler.slots and eng.scheduler.slots.n_used == 0


@pytest.mark.parametrize("late", [False, True])
def test_preempted_and_cancelled(is_hybrid: bool, wanted: list[list[int]], late: bool) -> None:
    eng = make(is_hybrid, late)
    sequences = [submit(eng, prompt) for prompt in PROMPTS]
    for _ in range(6):
        eng.step()
    for seq in sequences[1:3]:
        if seq in eng.scheduler.running:
            eng.scheduler._preempt(seq)  # as when pages run out
    eng.abort(sequences[0])
    assert sequences[0].memory.slot == 0
    assert run(eng, *sequences[1:]) == wanted[1:]
    assert eng.scheduler.n_preempted == 2 and eng.scheduler.slots and eng.scheduler.slots.n_used == 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_batch_size": 2}, {"max_decode_batch": 1}])
def test_forked(is_hybrid: bool, wanted: list[list[int]], late: bool, options: dict[str, object]) -> None:
    eng = make(is_hybrid, late, **options)
    first = submit(eng, PROMPTS[1], greedy(N_NEW, n=3))
    other = submit(eng, PROMPTS[2])
    assert run(eng, first, *first.queueing.forks, other) == [wanted[1]] * 3 + [wanted[2]]
    hot = [SamplingParams(temperature=1.5, seed=3, max_tokens=N_NEW, ignore_eos=True, n=n) for n in (3, 1)]
    parent = submit(eng, PROMPTS[3], hot[0])
    replies = run(eng, parent, *parent.queueing.forks)
    assert replies[0] == run(eng, submit(eng, PROMPTS[3], hot[1]))[0], "a fork changed its parent's state"
    assert len({tuple(reply) for reply in replies}) == 3


def test_a_step_that_fails_loses_no_state_of_forks_it_does_not_hold(
    is_hybrid: bool, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    eng = make(is_hybrid, max_decode_batch=1)
    first = submit(eng, PROMPTS[1], greedy(N_NEW, n=4))
    while not eng.scheduler.slots or not eng.scheduler.slots._copies:
        eng.step()
    with monkeypatch.context() as patch:
        patch.setattr(eng.steps.sampler, "prepare", lambda *_: 1 / 0)
        eng.step()
    choices = [first, *first.queueing.forks]
    left = [seq for seq in choices if not seq.result.error]
    assert len(left) == 3
    assert run(eng, *left) == [wanted[1]] * 3


def test_a_session_goes_back_copies_and_restores(is_hybrid: bool) -> None:
    session, other = (Session(make(is_hybrid, whole_texts=2, prefix_cache=False), "toy") for _ in range(2))
    text = PROMPTS[1]
    session.feed(text[:20])
    copy = session.copy()
    row = session.feed(text[20:])
    session.truncate(20)
    np.testing.assert_allclose(session.feed(text[20:]), row, atol=1e-5)
    other.feed(PROMPTS[2])
    other.restore(copy)
    np.testing.assert_allclose(other.feed(text[20:]), row, atol=1e-5)
    with pytest.raises(ConfigError, match="restore the whole copy"):
        copy.first(5)


def test_a_slot_in_flight_is_waited_for(is_hybrid: bool, wanted: list[list[int]]) -> None:
    """A place is free, but not its slot before the step in flight has landed, nor that of an idle session."""
    eng = make(is_hybrid, late=True, max_batch_size=3)
    session = Session(eng, eng)
    short, long = submit(eng, PROMPTS[0], greedy(6)), submit(eng, PROMPTS[1])
    session.feed([1, 2, 3])
    while not short.done:
        eng.step()
    assert run(eng, long, submit(eng, PROMPTS[2])) == wanted[1:3]
    session.truncate(0)
    assert not eng.busy and eng.scheduler.slots and eng.scheduler.slots.n_used == 0


def test_a_session_that_is_restored_takes_the_slot_of_an_idle_one(is_hybrid: bool) -> None:
    eng = make(is_hybrid, whole_texts=2, prefix_cache=False)
    assert eng.scheduler.slots and eng.scheduler.slots.n_slots == 2
    sessions = [Session(eng, "toy") for _ in range(3)]
    rows = [session.feed(prompt) for session, prompt in zip(sessions[:2], PROMPTS, strict=False)]
    sessions[2].restore(sessions[0].copy())
    eng.scheduler.slots.check([seq.memory.slot for seq in eng.scheduler.running])
    for session, row in zip((*sessions[:2], sessions[2]), (*rows, rows[0]), strict=True):
        again = session.tokens[-1]
        session.truncate(session.length - 1)
        np.testing.assert_allclose(session.feed([again]), row, atol=1e-5)
    for session in sessions:
        session.truncate(0)
    assert not eng.scheduler.running and eng.scheduler.slots.n_used == 0


def test_a_session_is_not_restored_in_place_of_a_request(is_hybrid: bool, wanted: list[list[int]]) -> None:
    eng = make(is_hybrid, max_batch_size=1, prefix_cache=False)
    session = Session(eng, "toy")
    session.feed(PROMPTS[2])
    copy = session.copy()
    session.truncate(0)
    seq = submit(eng, PROMPTS[1])
    eng.step()
    with pytest.raises(KvCacheFull, match="wait for one"):
        session.restore(copy)
    assert session.length == 0 and eng.scheduler.running == [seq]
    assert run(eng, seq) == [wanted[1]] and eng.scheduler.slots and eng.scheduler.slots.n_used == 0
    session.restore(copy)
    assert session.tokens == PROMPTS[2]


def test_a_snapshot_holds_states(is_hybrid: bool) -> None:
    session, other = (Session(make(is_hybrid, whole_texts=2, prefix_cache=False), "toy") for _ in range(2))
    text = PROMPTS[1]
    session.feed(text[:20])
    data = take(session, InferenceConfig(), "toy", "0")
    row = session.feed(text[20:])
    info, rows = unpack(data)
    put_back(other, info, rows)
    np.testing.assert_allclose(other.feed(text[20:]), row, atol=1e-5)
    cut = replace(info, state_bytes=info.state_bytes[:-1])
    with pytest.raises(SnapshotIncompatible, match="states do not fit"):
        put_back(other, *unpack(pack(cut, TextRows(rows.layers, rows.states[:-1]))))


# ---- checkpoints in the prefix cache ------------------------------------------------------------------------------

COMMON = [1 + (7 * i) % 60 for i in range(18)]
TURNS = [COMMON + [1 + (3 * i + j) % 60 for j in range(8 + i)] for i in range(5)]


@pytest.fixture
def kept_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.kv.prefix.LEAST_KEPT", 4)


def replies_to(prompts: list[list[int]]) -> list[list[int]]:
    be = ToyBackend()
    model = toy(be, True)
    return [one_shot(model, be, prompt, N_NEW)[len(prompt) :] for prompt in prompts]


@pytest.mark.usefixtures("kept_early")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 5}])
def test_texts_go_on_from_checkpoints(late: bool, options: dict[str, object]) -> None:
    """A prompt that is sent again goes on from its last full page; a third that begins like two others, where those
    part.
    """
    eng = make(True, late, **options)
    found = []
    for prompt in (TURNS[0], TURNS[0], *TURNS[1:]):
        seq = submit(eng, prompt)
        found.append((run(eng, seq)[0], seq.result.stats.n_cached_tokens))
    wanted = replies_to(TURNS)
    assert [reply for reply, _ in found] == [wanted[0], *wanted]
    n_own, n_common = (len(TURNS[0]) - 1) // 4 * 4, len(COMMON) // 4 * 4
    assert [n for _, n in found] == [0, n_own, 0, n_common, n_common, n_common]


@pytest.mark.usefixtures("kept_early")
@pytest.mark.parametrize("late", [False, True])
def test_a_conversation_goes_on_where_its_last_prompt_ended(late: bool) -> None:
    eng, prompt, n_before = make(True, late), list(COMMON), 0
    for _ in range(2):
        seq = submit(eng, prompt)
        (reply,) = run(eng, seq)
        assert [reply] == replies_to([prompt]) and seq.result.stats.n_cached_tokens == n_before
        n_before = (len(prompt) - 1) // 4 * 4
        prompt += [*reply, 3, 5]


@pytest.mark.usefixtures("kept_early")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_requests_with_few_checkpoints(late: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Common beginnings, forks, aborts and preemptions, with two checkpoints and little room."""
    monkeypatch.setattr("tahr.loading.capacity.MOST_CHECKPOINTS", 2)
    rng = np.random.default_rng(seed)
    prompts = [[*TURNS[i % 5][:n], 11 + i] for i, n in enumerate(rng.integers(3, 24, 12))]
    wanted = dict(zip(map(tuple, prompts), replies_to(prompts), strict=True))
    eng = make(True, late, max_batch_size=3, prefill_chunk_size=7)
    assert eng.scheduler.prefix and eng.scheduler.prefix.checkpoints is not None
    for _ in range(4):
        chosen = [prompts[i] for i in rng.integers(0, len(prompts), 6)]
        sequences = [submit(eng, prompt, greedy(N_NEW, n=int(rng.integers(1, 3)))) for prompt in chosen]
        for _ in range(int(rng.integers(1, 9))):
            eng.step()
        running = [seq for seq in eng.scheduler.running if seq.computed == seq.scheduled]
        for seq in running[: int(rng.integers(0, 2))]:
            eng.scheduler._preempt(seq)
        eng.abort(sequences.pop(int(rng.integers(6))))
        for seq in sequences:
            assert run(eng, seq, *seq.queueing.forks) == [wanted[tuple(seq.tokens[: seq.n_prompt])]] * (
                1 + len(seq.queueing.forks)
            )
        assert len(eng.scheduler.prefix.checkpoints) <= 2
    assert eng.scheduler.prefix.stats.tokens_reused > 0 and eng.scheduler.slots and not eng.scheduler.slots.n_used


@pytest.mark.usefixtures("kept_early")
def test_states_of_sequences_that_fail_are_kept_from_others() -> None:
    eng = make(True)
    poison(eng, lambda seq: True)
    victim = submit(eng, TURNS[0])
    with pytest.raises(GenerateError):
        run(eng, victim)
    assert eng.scheduler.prefix and eng.scheduler.prefix.checkpoints is not None
    assert not len(eng.scheduler.prefix.checkpoints)


def test_short_prompts_make_no_checkpoint() -> None:
    eng = make(True)
    seq = submit(eng, PROMPTS[1])
    run(eng, seq)
    assert not seq.memory.checkpoints and eng.scheduler.n_steps <= N_NEW + 1


def test_a_saved_chat_cannot_hold_states() -> None:
    llm = SimpleNamespace(engine=make(True))
    with pytest.raises(SnapshotIncompatible, match="windows or states"):
        PrefixFiles(llm, lambda: "").copy(PROMPTS[1])  # type: ignore[arg-type]

"""Steps in flight change no text: the equality suite on a backend that is always one step behind."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import Tally, alone, engine, greedy, here, loaded, page_bytes, poison, run, submit
from late_backend import LateBackend, blank_free_pages
from speculating import speculating
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence, State
from tahr.errors import GenerateError
from tahr.library.embeddings import EmbeddingJob, Pooling
from tahr.library.inference.session import Session
from tahr.loading.builder import build_engine
from test_engine import TEXTS, prompts
from tiers import examples


@pytest.fixture(scope="module")
def wanted(stories: Path) -> list[list[int]]:
    return [alone(stories, prompt) for prompt in prompts(stories)]


def n_late(eng: Engine) -> int:
    """Steps that ran after the next one had been launched."""
    late = eng.executor.backend
    assert isinstance(late, LateBackend)
    return late.n_late


@pytest.mark.parametrize(("chunk", "cached"), [(1, True), (7, True), (7, False), (64, True), (64, False)])
def test_batched_interleaved_and_chunked(stories: Path, wanted: list[list[int]], cached: bool, chunk: int) -> None:
    eng = engine(stories, late=True, prefix_cache=cached, prefill_chunk_size=chunk)
    for _ in range(2):  # the second time, prefixes are cached
        sequences = []
        for prompt in prompts(stories):
            sequences.append(submit(eng, prompt))
            eng.step()
            blank_free_pages(eng)
        assert run(eng, *sequences) == wanted
    assert n_late(eng) > 20 and not eng.busy
    assert eng.scheduler.pools[0].n_used == 0


def test_preempted(stories: Path, wanted: list[list[int]]) -> None:
    longest = max(map(len, prompts(stories))) + 16
    n_bytes = page_bytes(stories) * -(-longest // 8) * 2
    eng = engine(stories, late=True, kv_bytes=n_bytes, context_size=longest, max_batch_size=6)
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted
    assert eng.snapshot().preemptions > 0 and n_late(eng) > 20


@pytest.mark.parametrize("places", [6, 2])
def test_forked(stories: Path, wanted: list[list[int]], places: int) -> None:
    eng = engine(stories, late=True, max_batch_size=places)
    first = submit(eng, prompts(stories)[1], greedy(n=3))
    other = submit(eng, prompts(stories)[2])
    assert run(eng, first, *first.queueing.forks, other) == [wanted[1]] * 3 + [wanted[2]]
    assert eng.scheduler.pools[0].n_used == 0


def test_random_numbers_are_counted_by_tokens_not_by_steps(stories: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=7, n=3)
    at_once, late = engine(stories), engine(stories, late=True)
    replies = []
    for eng in (at_once, late):
        first = submit(eng, prompts(stories)[0], params)
        replies.append(run(eng, first, *first.queueing.forks))
    assert replies[0] == replies[1]


@pytest.mark.parametrize(
    "options", [{"repetition_penalty": 1.3}, {"min_tokens": 5}, {"mirostat": 2, "temperature": 1.0, "seed": 3}]
)
def test_sampling_that_needs_the_last_token_waits_for_it(stories: Path, options: dict[str, object]) -> None:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **options})  # type: ignore[arg-type]
    replies = []
    for late in (False, True):
        eng = engine(stories, late=late)
        beside = submit(eng, prompts(stories)[2])
        replies.append(run(eng, submit(eng, prompts(stories)[0], params), beside))
    assert replies[0] == replies[1]
    assert n_late(eng) > 0, "the others must not wait"


@pytest.mark.parametrize("n_on_host", [1, 2])
def test_tokens_that_only_the_host_knows(stories: Path, wanted: list[list[int]], n_on_host: int) -> None:
    config = EngineConfig(context_size=256, page_size=8)
    late = LateBackend(here(), n_on_host)
    eng, _ = build_engine(late, loaded(stories)[0].decoder, config)  # type: ignore[arg-type]
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted


@pytest.mark.parametrize("after", range(6))
def test_cancelled_between_launch_and_collect(stories: Path, wanted: list[list[int]], after: int) -> None:
    eng = engine(stories, late=True, prefill_chunk_size=16)
    sequences = [submit(eng, prompt) for prompt in prompts(stories)]
    for _ in range(after):
        eng.step()
        blank_free_pages(eng)
    eng.abort(sequences[0])
    assert not any(sequences[0].memory.tables)
    blank_free_pages(eng)
    assert run(eng, *sequences[1:]) == wanted[1:]
    assert sequences[0].state is State.CANCELLED and eng.scheduler.pools[0].n_used == 0
    assert run(eng, submit(eng, prompts(stories)[0])) == wanted[:1]


class Stopping(Tally):
    """Meets a stop string after some tokens."""

    def __init__(self, after: int):
        super().__init__()
        self.n_left = after

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        return self.n_left <= 0

    def push(self, token: int) -> str:  # type: ignore[override]
        self.n_left -= 1
        return super().push(token)


@pytest.mark.parametrize("how", ["stop string", "end of text", "length"])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_ends_that_are_seen_one_step_late(stories: Path, wanted: list[list[int]], how: str, after: int) -> None:
    eng = engine(stories, late=True)
    prompt, params = prompts(stories)[0], greedy()
    if how == "end of text":
        params = greedy(stop_token_ids=[wanted[0][after - 1]])
        after = wanted[0].index(wanted[0][after - 1]) + 1
    if how == "length":
        params = greedy(after)
    seq = eng.submit(ResolvedRequest(prompt, params, lambda: Stopping(after if how == "stop string" else 99)))
    others = [submit(eng, each) for each in prompts(stories)[1:]]
    assert run(eng, seq, *others) == [wanted[0][:after], *wanted[1:]]
    assert seq.result.stats.n_generated_tokens == after == seq.n_generated
    assert eng.stats.tokens_generated == after + sum(map(len, wanted[1:]))
    assert eng.scheduler.pools[0].n_used == 0


def test_a_failing_request_fails_alone(stories: Path, wanted: list[list[int]]) -> None:
    eng = engine(stories, late=True)
    victim = submit(eng, prompts(stories)[0])
    others = [submit(eng, prompt) for prompt in prompts(stories)[1:]]
    for _ in range(3):
        eng.step()
    poison(eng, lambda seq: seq is victim)
    assert run(eng, *others) == wanted[1:]
    assert isinstance(victim.result.error, GenerateError)
    assert eng.scheduler.pools[0].n_used == 0


def test_a_launch_that_fails_leaves_the_step_in_flight_alone(stories: Path, wanted: list[list[int]]) -> None:
    eng = engine(stories, late=True, max_batch_size=2, max_decode_batch=1)
    sequences = [submit(eng, prompt) for prompt in prompts(stories)]
    sound = eng.steps.launch
    for _ in range(4):
        eng.step()

    def broken(*_: object) -> None:
        eng.steps.launch = sound  # type: ignore[method-assign]
        raise OSError("the device fell off the bus")

    eng.steps.launch = broken  # type: ignore[method-assign, assignment]
    eng.step()
    failed = [seq for seq in sequences if seq.result.error]
    assert failed
    rest = [(seq, reply) for seq, reply in zip(sequences, wanted, strict=True) if seq not in failed]
    assert run(eng, *(seq for seq, _ in rest)) == [reply for _, reply in rest]
    assert eng.scheduler.pools[0].n_used == 0


def test_embeddings_and_scores_beside_replies(stories: Path, wanted: list[list[int]]) -> None:
    vectors = []
    for late in (False, True):
        eng = engine(stories, late=late, prefill_chunk_size=16)
        sequences = [submit(eng, prompt) for prompt in prompts(stories)]
        scored = submit(eng, prompts(stories)[0], greedy(2, prompt_logprobs=1))
        job = EmbeddingJob(eng, prompts(stories), Pooling.MEAN)
        assert run(eng, *sequences) == wanted
        run(eng, scored, *job.sequences)
        vectors.append((job.vectors().tolist(), scored.result.prompt_logprobs))
    assert vectors[0] == vectors[1]


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_random_traffic(stories: Path, wanted: list[list[int]], data: st.DataObject) -> None:
    longest = max(map(len, prompts(stories))) + 16
    eng = engine(
        stories,
        late=True,
        context_size=longest,
        kv_bytes=page_bytes(stories) * data.draw(st.integers(-(-longest // 8), 40)),
        max_batch_size=data.draw(st.integers(1, 6)),
        prefill_chunk_size=data.draw(st.integers(1, 40)),
        prefix_cache=data.draw(st.booleans()),
    )
    live: list[tuple[Sequence, list[int]]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        which = data.draw(st.integers(0, len(TEXTS) - 1))
        n = data.draw(st.sampled_from([1, 1, 3]))
        first = submit(eng, prompts(stories)[which], greedy(data.draw(st.integers(1, 16)), n=n))
        live += [(seq, wanted[which]) for seq in (first, *first.queueing.forks)]
        for _ in range(data.draw(st.integers(0, 6))):
            eng.step()
            blank_free_pages(eng)
        if data.draw(st.integers(0, 4)) == 0:
            eng.abort(data.draw(st.sampled_from([seq for seq, _ in live])))
    while eng.busy:
        eng.step()
        blank_free_pages(eng)
    for seq, reply in live:
        assert seq.result.error is None
        assert seq.tokens[seq.n_prompt :] == reply[: seq.n_generated]
        assert seq.state is State.CANCELLED or seq.n_generated == seq.reply.max_length - seq.n_prompt
    assert eng.scheduler.pools[0].n_used == 0


def test_a_copy_of_a_session_holds_its_text_whoever_wants_the_pages(stories: Path) -> None:
    """Where tokens are guessed, a step first finishes the one before: what that computed may lose its pages at once."""
    n_bytes = 9 * page_bytes(stories)
    eng = speculating(stories, "wrong", 4, late=True, kv_bytes=n_bytes, context_size=64, prefix_cache=False)
    text = list(range(1, 12))
    session, other = Session(eng, eng), Session(eng, eng)
    session.feed(text)
    sequences = [submit(eng, [7 * i + j for j in range(1, 6)], greedy(40)) for i in range(4)]
    while not session.sequence.queueing.swapped_out:
        eng.step()
    copy = session.copy()
    assert [len(layer) for layer in copy.layers] == [len(text)] * len(copy.layers)
    run(eng, *sequences)
    row = session.feed([12])
    other.restore(copy)
    assert other.feed([12]).tobytes() == row.tobytes()

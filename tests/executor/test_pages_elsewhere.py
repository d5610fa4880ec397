"""A text whose pages left the engine and came back goes on with the same bits, whatever happens meanwhile."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backends_here import NAMES, backend
from echo_executor import EchoExecutor
from engines import engine, greedy, run, submit
from late_backend import LateBackend, blank_free_pages
from model_cases import CASES, make_weights
from model_files import write_hf
from pages_elsewhere import Elsewhere
from tahr.backends.api import STATES, Backend
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.library.inference.session import Session
from tahr.loading import builder
from tahr.loading.builder import build_engine
from tahr.models.loader import load, open_model
from test_engine import prompts
from toy_state_space import ToyBackend, toy

Make = Callable[..., Engine]


@pytest.fixture(params=["local", "late", "echo", "late echo"])
def make(request: pytest.FixtureRequest, stories: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines of every kind of executor."""
    if "echo" in request.param:
        monkeypatch.setattr(builder, "LocalExecutor", EchoExecutor)

    def made(**options: object) -> Engine:
        return engine(stories, late="late" in request.param, **options)

    return made


def advance(eng: Engine, elsewhere: Elsewhere, n: int) -> None:
    """Steps of others while pages travel; free pages are spoilt, and all pages are accounted for."""
    for _ in range(n):
        eng.step()
        for group, (pool, coming) in enumerate(zip(eng.scheduler.pools, elsewhere.loading_pages, strict=True)):
            pool.check([*(seq.memory.tables[group].held for seq in eng.scheduler.running), coming])
        if isinstance(eng.executor.backend, LateBackend) and not elsewhere.is_sending:  # type: ignore[attr-defined]
            blank_free_pages(eng)  # at once; a copy that was enqueued sees only what steps after it write


def spoil(eng: Engine) -> None:
    """Every page that nobody holds becomes nonsense."""
    for group, pool in enumerate(eng.scheduler.pools):
        free = sorted(pool._free)
        blank = [np.full_like(layer, 0xFF) for layer in eng.executor.pages.read(free, group)]
        eng.executor.pages.write(free, blank, group)


def n_found(n_tokens: int, n_computed: int) -> int:
    """The tokens of a text that are found, if so many were computed of it and what follows: its last is not wanted."""
    return min(n_computed // 8 * 8, n_tokens // 8 * 8, n_tokens - 1)


def goes_on(eng: Engine, tokens: list[int], n_cached: int) -> tuple[list[int], object]:
    """What follows a text, with log-probabilities, if so many of its tokens are found."""
    seq = submit(eng, tokens, greedy(12, logprobs=5))
    run(eng, seq)
    assert seq.result.stats.n_cached_tokens == n_cached
    return seq.tokens, seq.result.logprobs


def finished(eng: Engine, prompt: list[int]) -> Sequence:
    seq = submit(eng, prompt, greedy(12))
    run(eng, seq)
    return seq


def test_a_text_that_left_and_came_back_goes_on_with_the_same_bits(make: Make, stories: Path) -> None:
    first, *others = prompts(stories)
    stayed = make()
    text = finished(stayed, first).tokens
    n_cached = n_found(len(text), len(text) - 1)
    wanted = goes_on(stayed, text, n_cached)

    eng = make()
    elsewhere = Elsewhere(eng)
    seq = finished(eng, first)
    beside = [submit(eng, prompt, greedy(24)) for prompt in others]
    advance(eng, elsewhere, 2)
    n_pages = (len(text) - 1) // 8
    assert seq.memory.hashes and elsewhere.send(seq.memory.hashes) == n_pages
    advance(eng, elsewhere, 3)  # which take the pages that were left, before the copies have ended
    elsewhere.keep()
    spoil(eng)
    assert elsewhere.bring(seq.memory.hashes.known) == n_pages
    assert eng.scheduler.pools[0].n_loading == n_pages
    while not elsewhere.land():
        advance(eng, elsewhere, 1)
    assert goes_on(eng, text, n_cached) == wanted
    run(eng, *beside)
    assert [each.tokens for each in beside] == [finished_alone(make, prompt, 24) for prompt in others]


def finished_alone(make: Make, prompt: list[int], n: int) -> list[int]:
    eng = make(prefix_cache=False)
    seq = submit(eng, prompt, greedy(n))
    run(eng, seq)
    return seq.tokens


def test_a_text_that_is_asked_for_while_it_loads_is_computed_and_kept_once(make: Make, stories: Path) -> None:
    """Pages that load are found by nobody; when they have come, those computed meanwhile are there already."""
    eng = make()
    elsewhere = Elsewhere(eng)
    seq = finished(eng, prompts(stories)[0])
    assert seq.memory.hashes
    n = elsewhere.send(seq.memory.hashes)
    elsewhere.keep()
    wanted = finished_alone(make, prompts(stories)[0], 12)
    assert elsewhere.bring(seq.memory.hashes.known) == n
    again = submit(eng, prompts(stories)[0], greedy(12))
    while not again.done:
        advance(eng, elsewhere, 1)
    assert again.tokens == wanted and again.result.stats.n_cached_tokens == 0
    while not elsewhere.land():
        pass
    (pool,) = eng.scheduler.pools
    pool.check([])
    assert pool.n_loading == 0 and pool.n_hashed == n


def test_what_did_not_arrive_is_computed_again(make: Make, stories: Path) -> None:
    eng = make()
    elsewhere = Elsewhere(eng)
    seq = finished(eng, prompts(stories)[0])
    assert seq.memory.hashes and elsewhere.send(seq.memory.hashes)
    elsewhere.keep()
    elsewhere.bring(seq.memory.hashes.known)
    while not elsewhere.land(fails=True):
        pass
    assert goes_on(eng, seq.tokens, 0)[0] == finished_alone(make, seq.tokens, 12)


def test_pages_of_an_aborted_text_leave_as_they_were(make: Make, stories: Path) -> None:
    """Its sequence ends, and others write to its pages, while they are copied: in a pool with none to spare."""
    n_pages = 9
    eng = make(kv_bytes=n_pages * engine(stories).scheduler.pools[0].page_bytes, context_size=n_pages * 8)
    elsewhere = Elsewhere(eng)
    first, second, *_ = prompts(stories)
    seq = submit(eng, first, greedy(30))
    while len(seq.tokens) < len(first) + 3:
        eng.step()
    assert seq.memory.hashes and elsewhere.send(seq.memory.hashes) > 2
    eng.abort(seq)
    other = submit(eng, second, greedy(72 - len(second)))
    while not other.done:
        advance(eng, elsewhere, 1)
    assert not other.result.error
    elsewhere.keep()
    spoil(eng)
    elsewhere.bring(seq.memory.hashes.known)
    while not elsewhere.land():
        pass
    assert goes_on(eng, first, n_found(len(first), len(first) + 2))[0] == finished_alone(make, first, 12)


def test_pages_that_load_are_not_taken_by_others(make: Make, stories: Path) -> None:
    """A running text needs more pages than are left beside those that load: it is preempted, and goes on later."""
    n_pages = 9
    eng = make(kv_bytes=n_pages * engine(stories).scheduler.pools[0].page_bytes, context_size=n_pages * 8)
    elsewhere = Elsewhere(eng)
    first, second, *_ = prompts(stories)
    seq = finished(eng, first)
    assert seq.memory.hashes and elsewhere.send(seq.memory.hashes)
    elsewhere.keep()
    other = submit(eng, second, greedy(72 - len(second)))
    advance(eng, elsewhere, 2)
    elsewhere.bring(seq.memory.hashes.known)
    for _ in range(60):
        advance(eng, elsewhere, 1)
    assert not other.done and eng.snapshot().preemptions
    while not elsewhere.land():
        pass
    run(eng, other)
    assert other.tokens == finished_alone(make, second, 72 - len(second))


# ---- layers with windows, and states ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["gemma3", "qwen2_window"])
def test_pages_of_windows_leave_and_come_back(name: str, case: str, tmp_path: Path) -> None:
    config = {**CASES[case], "sliding_window": 8}
    be = backend(name, deterministic=True)
    model = load(open_model([], write_hf(tmp_path, config, make_weights(config))), be)
    options = EngineConfig(context_size=64, page_size=4, prefill_chunk_size=16)
    prompt = [1 + (i * i * 7 + 3 * i) % 120 for i in range(30)]
    texts = []
    for leaves in (False, True):
        eng = build_engine(be, model.decoder, options)[0]
        seq = finished(eng, prompt)
        if leaves:
            elsewhere = Elsewhere(eng)
            assert seq.memory.hashes and elsewhere.send(seq.memory.hashes) > 10
            elsewhere.keep()
            spoil(eng)
            elsewhere.bring(seq.memory.hashes.known)
            while not elsewhere.land():
                pass
        texts.append(goes_on(eng, seq.tokens, 40))
    assert texts[0] == texts[1]


class LateToy(LateBackend, ToyBackend):
    """The toy's backend with steps in flight."""

    def __init__(self) -> None:
        super().__init__(ToyBackend())


@pytest.mark.parametrize("is_hybrid", [False, True], ids=["states", "hybrid"])
@pytest.mark.parametrize("kind", [ToyBackend, LateToy])
def test_states_leave_and_come_back(kind: Callable[[], Backend], is_hybrid: bool) -> None:
    be = kind()
    config = EngineConfig(context_size=64, page_size=4, kv_dtype="f32", prefix_cache=False)
    eng = build_engine(be, toy(be, is_hybrid).decoder, config, whole_texts=2)[0]  # type: ignore[arg-type]
    session = Session(eng, eng)
    text = [1 + (7 * i) % 60 for i in range(25)]
    session.feed(text[:20])
    port = eng.executor.pages
    groups = range(len(eng.scheduler.pools))
    pages = [list(table.held) for table in session.sequence.memory.tables]
    contents = [port.store(pages[group], group) for group in groups]
    state = port.store([session.sequence.memory.slot], STATES)
    wanted = session.feed(text[20:])
    session.truncate(0)
    session.feed(list(range(1, 24)))  # elsewhere in the pools, and in the same slot
    seq = session.sequence
    for group, table in enumerate(seq.memory.tables):
        port.load(list(table.held)[: len(pages[group])], group, contents[group].collect()).collect()
    port.load([seq.memory.slot], STATES, state.collect()).collect()
    del seq.tokens[20:]
    seq.tokens[:] = text[:20]
    seq.computed = 20
    seq.scheduled = 20
    np.testing.assert_array_equal(session.feed(text[20:]), wanted)

"""Pages of several kinds, in places: windows, states, adapters; and what takes pages away from those who run."""

from collections.abc import Sequence as ListOf
from pathlib import Path
from typing import Any

import pytest

from engines import engine, greedy, here, page_bytes, poison, submit
from late_backend import LateBackend
from model_cases import CASES, make_weights
from model_files import write_hf
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.tiers import fetcher
from tahr.errors import GenerateError
from tahr.loading.builder import build_engine
from tahr.models.loader import load, open_model
from tahr.models.loader.load import Loaded
from tiered import disk_of, reply, run, tiered, with_tiers
from toy_state_space import ToyBackend, toy

LONG = [1 + (i * i * 7 + 3 * i) % 120 for i in range(90)]


class LateToy(LateBackend, ToyBackend):
    """The toy's backend with steps in flight."""

    def __init__(self) -> None:
        super().__init__(ToyBackend())


def hybrid(late: bool) -> Engine:
    backend = LateToy() if late else ToyBackend()
    config = EngineConfig(context_size=64, page_size=4, kv_dtype="f32")
    return build_engine(backend, toy(backend, True).decoder, config)[0]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_states_come_back_with_their_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool, host: bool
) -> None:
    """After a restart from the disk, or from the host when others have taken pages and checkpoints."""
    monkeypatch.setattr("tahr.kv.prefix.LEAST_KEPT", 4)
    prompt = [token % 60 for token in LONG[:30]]  # 7 pages of 4 and a rest
    wanted = reply(hybrid(late), prompt)
    folder = None if host else tmp_path / "kv"
    eng = with_tiers(hybrid(late), folder, host_bytes=1 << 20 if host else 0)
    assert reply(eng, prompt) == wanted
    if host:
        forget(eng)
    else:
        eng = with_tiers(hybrid(late), folder)
    text, logprobs, n_cached = reply(eng, prompt)
    assert (text, logprobs) == wanted[:2] and n_cached == 28


def forget(eng: Engine) -> None:
    """Empty pools and checkpoints, as other texts would."""
    for pool in eng.scheduler.pools:
        while pool.evict():
            pass
    assert eng.scheduler.prefix and eng.scheduler.prefix.checkpoints is not None
    for key in list(eng.scheduler.prefix.checkpoints._by_hash):
        eng.scheduler.prefix.checkpoints.remove(key)


WINDOWED = {
    "gemma3": {**CASES["gemma3"], "sliding_window": 8},
    "mistral": {**CASES["mistral"], "sliding_window": 8},
    "qwen2_window": CASES["qwen2_window"],
}


@pytest.fixture(scope="module", params=WINDOWED)
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    case = WINDOWED[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return load(open_model([], write_hf(folder, case, make_weights(case))), here())


@pytest.mark.parametrize("late", [False, True])
def test_windows_come_back_as_far_as_they_are_looked_at(windowed: Loaded, tmp_path: Path, late: bool) -> None:
    def make() -> Engine:
        config = EngineConfig(context_size=256, page_size=4, prefill_chunk_size=16)
        backend = LateBackend(here()) if late and not here().overlaps else here()
        return build_engine(backend, windowed.decoder, config)[0]

    wanted = reply(make(), LONG)
    for n_cached in (0, 88):
        eng = with_tiers(make(), tmp_path / "kv")
        assert reply(eng, LONG) == (*wanted[:2], n_cached)
    assert disk_of(eng).stats.n_read == 11


@pytest.mark.parametrize("late", [False, True])
def test_preempted_texts_find_their_pages_on_the_host(stories: Path, late: bool) -> None:
    """Pages for half the load: what was taken away is loaded, and not computed again."""
    prompts = [[1 + place, *LONG[:39]] for place in range(6)]
    wanted = [reply(engine(stories), prompt, 40)[0] for prompt in prompts]
    small = {"kv_bytes": 30 * page_bytes(stories), "context_size": 128, "admit_below": 1.0}
    computed = []
    for host_bytes in (0, 1 << 24):
        eng = tiered(stories, late=late, host_bytes=host_bytes, **small)
        sequences = [submit(eng, prompt, greedy(40)) for prompt in prompts]
        assert run(eng, *sequences) == wanted
        assert eng.snapshot().preemptions > 0
        computed.append(eng.snapshot().tokens_prefilled)
    assert computed[1] < computed[0]


def test_a_text_that_failed_is_found_nowhere(stories: Path, tmp_path: Path) -> None:
    """Neither its pages on the host, nor its files, nor those that wait to be written."""
    eng = tiered(stories, tmp_path / "kv", host_bytes=1 << 24)
    prompt = LONG[:61]
    with pytest.MonkeyPatch.context() as patch:
        poison(eng, lambda seq: len(seq.tokens) > 70, patch.setattr)
        with pytest.raises(GenerateError):
            reply(eng, prompt, 30)
    assert disk_of(eng).flush(20)
    assert eng.scheduler.tiers and eng.scheduler.tiers.places.host is not None
    assert len(eng.scheduler.tiers.places.host) == 0 and not list((tmp_path / "kv").rglob("*.kv"))
    assert reply(eng, prompt) == reply(engine(stories), prompt)


def test_a_request_that_leaves_while_its_pages_come(stories: Path, tmp_path: Path) -> None:
    """Its pages are free again, and the next one finds the files."""
    wanted = reply(engine(stories), LONG[:61])
    reply(tiered(stories, tmp_path / "kv", late=True), LONG[:61])
    eng = tiered(stories, tmp_path / "kv", late=True)
    for n_steps in range(8):
        seq = submit(eng, LONG[:61], greedy(12))
        for _ in range(n_steps):
            eng.step()
        eng.abort(seq)
        while eng.busy:
            eng.step()
        assert eng.snapshot().pages_used == 0 and eng.snapshot().requests_waiting == 0
    assert reply(eng, LONG[:61])[:2] == wanted[:2]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_texts_that_begin_alike_bring_their_beginning_once(
    stories: Path, tmp_path: Path, late: bool, host: bool
) -> None:
    """Thirty at once: one reads, the others wait for it."""
    prompts = [[*LONG[:61], 3 + place, 5] for place in range(30)]
    wanted = [reply(engine(stories), prompt, 4)[0] for prompt in prompts]
    eng = tiered(stories, tmp_path / "kv", late=late, host_bytes=(1 << 24) * host, max_batch_size=8)
    reply(eng, prompts[0], 4)
    if host:
        for pool in eng.scheduler.pools:
            while pool.evict():
                pass
    else:
        eng = tiered(stories, tmp_path / "kv", late=late, max_batch_size=8)
    sequences = [submit(eng, prompt, greedy(4)) for prompt in prompts]
    assert run(eng, *sequences) == wanted
    assert eng.scheduler.tiers and eng.scheduler.tiers.places.stats.n_loaded == (7 if host else 6)
    assert disk_of(eng).stats.n_read == (0 if host else 3)


@pytest.mark.parametrize("late", [False, True])
def test_all_texts_together_load_a_bounded_part_between_two_steps(
    stories: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[1 + place, *LONG[:60]] for place in range(5)]
    eng = tiered(stories, late=late, host_bytes=1 << 24)
    wanted = [reply(eng, prompt, 4)[0] for prompt in prompts]
    for pool in eng.scheduler.pools:
        while pool.evict():
            pass
    assert eng.scheduler.tiers
    port = eng.scheduler.tiers.places.port
    load = port.load
    n_loaded: list[int] = []  # pages by step

    def counted(pages: ListOf[int], group: int, contents: ListOf[Any]) -> Any:
        n_loaded[-1] += len(pages)
        return load(pages, group, contents)

    monkeypatch.setattr(port, "load", counted)
    monkeypatch.setattr(fetcher, "LOADED_BYTES", 2 * page_bytes(stories))
    sequences = [submit(eng, prompt, greedy(4)) for prompt in prompts]
    while not all(seq.done for seq in sequences):
        n_loaded.append(0)
        eng.step()
    assert [seq.tokens[seq.n_prompt :] for seq in sequences] == wanted
    assert max(n_loaded) == 2 and sum(n_loaded) == 7 * len(prompts)


def test_limits_of_the_prefix_cache_hold_for_pages_that_come_back(stories: Path, tmp_path: Path) -> None:
    reply(tiered(stories, tmp_path / "kv"), LONG[:61])
    limit = 3 * page_bytes(stories)
    eng = tiered(stories, tmp_path / "kv", cache_max_bytes=limit)
    assert reply(eng, LONG[:61])[:2] == reply(engine(stories), LONG[:61])[:2]
    assert eng.scheduler.prefix and eng.scheduler.prefix.bytes_cached <= limit

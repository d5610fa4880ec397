"""Layers with a window keep only the pages they need, and nothing that can be seen changes."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from backends_here import NAMES, backend, kv_store
from engines import greedy, here, logits_of, run, submit
from model_cases import CASES, make_weights
from model_files import write_hf
from null_model import PAGE, NullModel, expected, scheduler, sequence
from tahr.backends.api import (
    AttentionSpec,
    Backend,
    KVShape,
    KVStore,
    LayerMemory,
    Rope,
    Rotation,
    StepLimits,
)
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.step.batch import TableRows
from tahr.errors import ConfigError
from tahr.kv.pages import PagePool, pages_for
from tahr.kv.tables import PageTable
from tahr.loading.builder import build_engine
from tahr.loading.capacity import Capacity, kv_groups, measure
from tahr.models.config.record import ModelConfig
from tahr.models.loader import load, open_model
from tahr.models.loader.load import Loaded

# ---- how much memory is asked for -----------------------------------------------------------------------------

SHAPES = [KVShape(2, 32)] * 6
GEMMA_LIKE = [64, 64, 64, 64, 64, 0]
LAYER_BYTES = 32 * 2 * 2 * 32 * 2  # of a page of 32 tokens in f16


def room(windows: list[int], free_bytes: int = 1 << 40, max_context: int = 4096, **options: object) -> Capacity:
    config = EngineConfig(**{"prefill_chunk_size": 64, "max_batch_size": 4, **options})  # type: ignore[arg-type]
    groups = kv_groups(SHAPES, windows, config.page_size, "f16")
    return measure(config, groups, max_context, free_bytes // 4)


def test_layers_are_grouped_by_window_the_widest_first() -> None:
    groups = kv_groups(SHAPES, [8, 0, 64, 0, 8, 8], 32, "f16")
    assert [(group.window, group.layers) for group in groups] == [(0, (1, 3)), (64, (2,)), (8, (0, 4, 5))]
    assert [group.page_bytes // LAYER_BYTES for group in groups] == [2, 1, 3]


def test_windows_take_memory_for_themselves_and_a_chunk() -> None:
    full, sliding = room([0] * 6), room(GEMMA_LIKE)
    assert full.n_pages == (4 * 128,)
    assert sliding.n_pages == (4 * 128, 4 * 5), "two pages of window, two of chunk, one for where they begin"
    assert sliding.kv_bytes == LAYER_BYTES * (512 + 5 * 20) < full.kv_bytes / 5


def test_a_window_beyond_the_context_costs_no_more_than_the_context() -> None:
    assert room(GEMMA_LIKE, max_context=64).n_pages == (4 * 2, 4 * 2)


def test_a_model_of_windows_alone_has_its_whole_context_in_little_memory() -> None:
    assert room([64] * 6, free_bytes=4 * 5 * 6 * LAYER_BYTES).n_pages == (5,)
    assert room([64] * 6, free_bytes=4 * 13 * 6 * LAYER_BYTES).n_pages == (10,)


def test_scarce_memory_serves_one_whole_text_then_windows_then_growth() -> None:
    one = 128 + 5 * 5
    assert room(GEMMA_LIKE, free_bytes=4 * LAYER_BYTES * one).n_pages == (128, 5)
    assert room(GEMMA_LIKE, free_bytes=4 * LAYER_BYTES * (one + 60)).n_pages == (128 + 60 - 25, 10)
    assert room(GEMMA_LIKE, free_bytes=4 * LAYER_BYTES * (one + 400)).n_pages == (128 + 400 - 75, 20)
    # A window as wide as the context has as many places as there is room for full texts.
    assert room([4096, 0] * 3, free_bytes=4 * LAYER_BYTES * 6 * 128 * 2).n_pages == (128 * 2, 128 * 2)


@pytest.mark.parametrize("n_pages", [153, 100, 31, 6])
def test_a_context_is_cut_to_what_fits(n_pages: int) -> None:
    cut = room(GEMMA_LIKE, free_bytes=4 * LAYER_BYTES * n_pages)
    n_held = max(n_pages - 25, n_pages // 6)
    assert (cut.context_size, cut.n_pages[0]) == (32 * n_held, n_held)
    assert cut.kv_bytes <= LAYER_BYTES * n_pages
    assert ("context cut" in cut.note) == (n_pages < 153)
    with pytest.raises(ConfigError, match="needs 1 MB of KV memory, but only 0 MB"):
        room(GEMMA_LIKE, free_bytes=4 * LAYER_BYTES * 6, context_size=4096)


# ---- attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_new", [1, 3, 40])
def test_what_the_window_has_left_is_not_read(name: str, n_new: int) -> None:
    be, page, window, n = backend(name), 8, 21, 150
    kv = kv_store(be, [KVShape(1, 32)], [30], page, "f32")
    rng = np.random.default_rng(n_new)
    text = rng.standard_normal((n, 32)).astype(np.float32)
    step = be.step_inputs(StepLimits(n, 1, 1, 20))
    step.page_table[0, 0] = rng.permutation(20)

    def attend(begin: int) -> np.ndarray:
        where = np.arange(begin, n)
        step.counts[:] = n - begin, 0, 1
        step.positions[: n - begin] = where
        step.slot_mapping[0, : n - begin] = step.page_table[0, 0, where // page] * page + where % page
        step.query_start[:2], step.seq_lens[:, 0] = [0, n - begin], n
        x = be.tensor(text[begin:])
        angles = be.cos_sin(step, Rope(np.zeros(16, np.float32)))
        q = be.rope_and_cache([x, x, x], Rotation(angles, "halves"), LayerMemory(step, kv, 0))
        return np.array(be.read(be.attention(q, AttentionSpec(0.2, window), LayerMemory(step, kv, 0))))

    wanted = attend(0)[n - n_new :]
    spoil(be, kv, step.page_table[0, 0], (n - n_new - window + 1) // page)
    np.testing.assert_allclose(attend(n - n_new), wanted, rtol=1e-5, atol=1e-6)


def spoil(be: Backend, kv: KVStore, page_table: np.ndarray, n_behind: int) -> None:
    """Let the first entries of a table lead to a page of NaNs, which turn everything that reads them into NaNs."""
    (content,) = be.read_pages(kv, [29])
    be.write_pages(kv, [29], [np.full(content.shape, 0xFF, np.uint8)])
    assert n_behind > 5
    page_table[:n_behind] = 29


# ---- engines --------------------------------------------------------------------------------------------------

WINDOWED = {
    "gemma3": {**CASES["gemma3"], "sliding_window": 8},
    "mistral": {**CASES["mistral"], "sliding_window": 8},
    "qwen2_window": CASES["qwen2_window"],
}
PROMPTS = [[1 + (i * i * k + 3 * i) % 120 for i in range(n)] for k, n in [(7, 90), (5, 9), (11, 40), (3, 61)]]


@cache
def tiny(case: str, folder: Path) -> Loaded:
    return load(open_model([], write_hf(folder, WINDOWED[case], make_weights(WINDOWED[case]))), here())


@pytest.fixture(scope="module", params=WINDOWED)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return tiny(request.param, tmp_path_factory.mktemp(request.param))


def make(model: Loaded, **options: object) -> Engine:
    config = EngineConfig(**{"context_size": 256, "page_size": 4, "prefill_chunk_size": 16, **options})  # type: ignore[arg-type]
    return build_engine(here(), model.decoder, config)[0]


def make_full(model: Loaded, **options: object) -> Engine:
    """An engine that keeps everything in every layer: windows are a matter of attention alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelConfig, "windows", property(lambda config: (0,) * config.n_layers))
        return make(model, **options)


def test_a_long_text_holds_no_more_than_its_window_and_a_chunk(model: Loaded) -> None:
    eng = make(model, prefix_cache=False)
    seq = submit(eng, PROMPTS[0], greedy(200 - len(PROMPTS[0])))
    most = [0] * len(eng.scheduler.pools)
    while not seq.done:
        eng.step()
        most = [max(n, len(table)) for n, table in zip(most, seq.memory.tables, strict=True)]
    sliding = [n for n, pool in zip(most, eng.scheduler.pools, strict=True) if pool.window]
    assert len(seq.tokens) == 200 and sliding
    n_in_flight = 16 * (2 if eng.executor.backend.overlaps else 1)
    assert max(sliding) <= pages_for(8 + n_in_flight, 4) + 1
    n_seqs = eng.scheduler.limits.n_seqs
    assert all(
        pool.n_pages <= n_seqs * (pages_for(8 + n_in_flight, 4) + 1) for pool in eng.scheduler.pools if pool.window
    )
    assert eng.executor.kv.n_bytes < make_full(model).executor.kv.n_bytes


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logits_are_those_of_a_full_cache(model: Loaded, chunk: int, cached: bool) -> None:
    found = []
    for build in (make, make_full):
        eng = build(model, prefix_cache=cached, prefill_chunk_size=chunk)
        for _ in range(2):  # the second time, much of it is known
            rows = logits_of(eng, *(submit(eng, prompt, greedy(40)) for prompt in PROMPTS))
        found.append(rows)
    assert found[0] == found[1]


def test_preempted_sequences_are_those_of_a_full_cache(model: Loaded) -> None:
    short = [prompt[:3] for prompt in PROMPTS]
    wanted = make_full(model, prefix_cache=False)
    replies = run(wanted, *(submit(wanted, prompt, greedy(90)) for prompt in short))
    one = make(model, max_batch_size=1, context_size=100).executor.kv
    eng = make(model, max_batch_size=4, context_size=100, kv_bytes=one.n_bytes * 3 // 2, admit_below=1.0)
    assert run(eng, *(submit(eng, prompt, greedy(90)) for prompt in short)) == replies
    assert eng.snapshot().pages_used == 0 and eng.snapshot().preemptions > 0


def test_forked_answers_are_those_of_a_full_cache(model: Loaded) -> None:
    replies = []
    for build in (make, make_full):
        eng = build(model)
        first = submit(eng, PROMPTS[2], greedy(40, n=3))
        replies.append(run(eng, first, *first.queueing.forks))
    assert replies[0] == replies[1]
    assert replies[0][0] == replies[0][1] == replies[0][2]


def test_a_conversation_goes_on_from_its_windows(model: Loaded) -> None:
    eng = make(model)
    (reply,) = run(eng, submit(eng, PROMPTS[0], greedy(30)))
    longer = [*PROMPTS[0], *reply, 5, 6, 7]
    again = submit(eng, longer, greedy(20))
    alone = make_full(model, prefix_cache=False)
    assert run(eng, again) == run(alone, submit(alone, longer, greedy(20)))
    assert again.result.stats.n_cached_tokens == (len(PROMPTS[0]) + 30 - 1) // 4 * 4


# ---- the prefix cache -----------------------------------------------------------------------------------------

WINDOW = 8  # two pages, or three where it does not begin with one
TEXT = [0, 1, 2, 2, 1] * 12  # fifteen pages


class Asked:
    """One request after the other; how many prompt tokens each found."""

    def __init__(self, n_spare: int, windows: tuple[int, ...] = (0, WINDOW)):
        self.model = NullModel(scheduler(100, windows=windows, n_spare=n_spare))
        assert self.model.sched.prefix
        self.prefix = self.model.sched.prefix

    def n_found(self, prompt: list[int]) -> int:
        seq = sequence(prompt, 1)
        self.model.sched.add(seq)
        self.model.run(seq)
        assert seq.tokens == expected(prompt, len(prompt) + 1)
        return seq.result.stats.n_cached_tokens

    @property
    def sliding(self) -> PagePool:
        return self.model.sched.pools[-1]


def test_with_room_for_all_pages_a_hit_ends_anywhere() -> None:
    requested = Asked(n_spare=50)
    assert requested.n_found(TEXT) == 0
    assert requested.n_found(TEXT) == 59
    assert requested.n_found([*TEXT[:30], 0, 0, 0, 0]) == 28
    assert requested.n_found(TEXT[:5]) == 4


def test_a_hit_shrinks_to_where_the_window_is_known() -> None:
    ends = {60: 60, 56: 56, 44: 0, 20: 0}  # the pool has five pages, so the last five of the text are known
    for end, n_found in ends.items():
        requested = Asked(n_spare=0)
        requested.n_found(TEXT)
        assert requested.n_found([*TEXT[:end], 0]) == n_found
    assert requested.n_found([*TEXT, 0]) == 20, "the last one has brought its end back"


@pytest.mark.parametrize("gone", range(6, 15))
def test_a_lost_page_costs_what_looks_at_it(gone: int) -> None:
    requested = Asked(n_spare=50)
    requested.n_found(TEXT)
    hashes = requested.prefix.hashes()
    requested.sliding.drop_hash(requested.sliding.lookup(hashes.of(TEXT, gone)))
    # A hit of k pages looks at the last seven tokens of them: at pages k - 2 and k - 1.
    for end in range(5, 15):
        looks = {end - 1, end - 2}
        n = len(requested.prefix.lookup(hashes, [*TEXT[: 4 * end], 9])[0].pages)
        assert n == (end if gone not in looks else gone), (gone, end)


def test_windows_alone_need_no_beginning() -> None:
    requested = Asked(n_spare=20, windows=(WINDOW,))
    assert requested.n_found(TEXT) == 0
    hashes = requested.prefix.hashes()
    for i in range(8):
        requested.sliding.drop_hash(requested.sliding.lookup(hashes.of(TEXT, i)))
    assert requested.n_found([*TEXT, 1]) == 60
    assert requested.n_found([*TEXT[:36], 0]) == 0


def test_what_a_failed_sequence_left_behind_is_not_found() -> None:
    requested = Asked(n_spare=50)
    seq = sequence(TEXT, 30)
    requested.model.sched.add(seq)
    while seq.n_generated < 3:
        requested.model.step()
    assert seq.memory.tables[1].first > 5 and requested.sliding.n_hashed == 15
    requested.model.sched.invalidate(seq)
    seq.end("error")
    requested.model.sched.remove(seq)
    assert [pool.n_hashed for pool in requested.model.sched.pools] == [0, 0]


def test_going_back_behind_a_window_computes_everything_again() -> None:
    model = NullModel(scheduler(40, windows=(0, WINDOW), cached=False))
    seq = sequence(TEXT, 30)
    model.sched.add(seq)
    while seq.n_generated < 20:
        model.step()
    n_computed = seq.computed
    model.sched.truncate(seq, n_computed - 1)
    assert seq.computed == n_computed - 1, "one step back is within the window's pages"
    model.sched.truncate(seq, len(TEXT))
    assert seq.computed == 0
    model.run(seq)
    assert seq.tokens == expected(TEXT, len(TEXT) + 30)


def test_page_tables_of_groups_may_lie_between_each_other() -> None:
    memory = np.zeros((2, 3, 4), np.int32)  # by sequence and group, as a device may want them
    rows = TableRows(1, memory.transpose(1, 0, 2)[1])
    pools = [PagePool(12, PAGE) for _ in range(3)]
    texts = [sequence(9, 11) for _ in range(2)]
    for seq in texts:
        seq.memory.tables = [PageTable(pool) for pool in pools]
    for n_tokens in (9, 13):
        for seq in texts:
            seq.memory.tables[1].take(0, n_tokens)
        rows.write(texts)
        n_pages = len(texts[0].memory.tables[1].pages)
        assert [row[:n_pages].tolist() for row in memory[:, 1]] == [list(seq.memory.tables[1].pages) for seq in texts]
    assert not memory[:, [0, 2]].any()

"""The prefix cache: what is reused, what is not, and what goes first when room is short."""

from pathlib import Path

import pytest

from engines import alone, engine, greedy, loaded, run, submit
from null_model import PAGE, NullModel, expected, scheduler, sequence
from tahr.config import EngineConfig
from tahr.engine.sequences.sequence import Sequence
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache
from tahr.loading.capacity import Capacity, cache_pages


class Cached:
    """One request after the other; how many prompt tokens each had to compute."""

    def __init__(self, n_pages: int = 40, max_pages: int | None = None):
        self.model = NullModel(scheduler(n_pages))
        assert self.model.sched.prefix
        self.prefix = self.model.sched.prefix
        if max_pages is not None:
            self.prefix.max_pages = max_pages

    def request(self, prompt: list[int], n_new: int = 1, adapter: str = "", **options: object) -> Sequence:
        seq = sequence(prompt, n_new, **options)
        seq.adapters.digest = adapter
        self.model.sched.add(seq)
        self.model.run(seq)
        assert seq.tokens == expected(prompt, len(prompt) + n_new)
        return seq

    def n_computed(self, prompt: list[int], **options: object) -> int:
        seq = self.request(prompt, **options)  # type: ignore[arg-type]
        return len(prompt) - seq.result.stats.n_cached_tokens


SYSTEM = [0, 1, 2] * 8  # six pages


def test_texts_that_begin_alike_share_their_beginning() -> None:
    cache = Cached()
    assert cache.n_computed([*SYSTEM, 0, 0, 0]) == 27
    assert cache.n_computed([*SYSTEM, 1, 1, 1]) == 3
    assert cache.n_computed([*SYSTEM[:10], 2, 2]) == 4, "two of two and a half pages"
    assert cache.n_computed([1, *SYSTEM]) == 25, "the same tokens elsewhere are another text"


def test_half_a_prompt_shared_is_half_the_work() -> None:
    cache = Cached()
    assert cache.n_computed([0] * 50 + [1] * 50) == 100
    assert cache.n_computed([0] * 50 + [2] * 50) <= 52


def test_a_whole_hit_computes_the_last_token_alone() -> None:
    cache = Cached()
    assert [cache.n_computed(SYSTEM) for _ in range(3)] == [24, 1, 1]
    assert cache.model.sched.pools[0].n_hashed == 6, "the copy of the last page is not kept beside the first"


def test_replies_are_found_too() -> None:
    cache = Cached()
    first = cache.request(SYSTEM, n_new=9)
    assert cache.n_computed([*first.tokens, 1]) == 34 - 32


@pytest.mark.parametrize("options", [{"cache_salt": "mine"}, {"adapter": "a1b2"}])
def test_a_salt_or_an_adapter_makes_another_text(options: dict[str, str]) -> None:
    cache = Cached()
    assert cache.n_computed(SYSTEM) == 24
    assert cache.n_computed(SYSTEM, **options) == 24
    assert cache.n_computed(SYSTEM, **options) == 1
    assert cache.n_computed(SYSTEM) == 1


def test_a_salt_is_not_an_adapter() -> None:
    cache = Cached()
    cache.request(SYSTEM, adapter="1:ab", cache_salt="c")
    assert cache.n_computed(SYSTEM, adapter="1:a", cache_salt="bc") == 24


def test_a_request_may_stay_out_of_it() -> None:
    cache = Cached()
    assert cache.n_computed(SYSTEM, cache_prompt=False) == 24
    assert cache.model.sched.pools[0].n_hashed == 0
    cache.request(SYSTEM)
    counted = (cache.prefix.stats.hits, cache.prefix.stats.misses)
    assert cache.n_computed(SYSTEM, cache_prompt=False) == 24
    assert (cache.prefix.stats.hits, cache.prefix.stats.misses) == counted == (0, 1)


def test_statistics() -> None:
    cache = Cached()
    for tail in ([0], [1], [2, 2]):
        cache.request([*SYSTEM, *tail])
    cache.request([2, 2, 2])
    stats = cache.prefix.stats
    assert (stats.hits, stats.misses, stats.tokens_reused, stats.hit_rate) == (2, 2, 48, 0.5)
    assert cache.prefix.tokens_cached == 24
    assert PrefixCache([PagePool(1, 4)]).stats.hit_rate == 0


def test_texts_computed_at_the_same_time_are_kept_once() -> None:
    cache = Cached()
    twins = [sequence(SYSTEM, 6) for _ in range(3)]
    for seq in twins:
        cache.model.sched.add(seq)
    cache.model.step()
    cache.model.run(*twins)
    assert all(seq.tokens == expected(SYSTEM, 30) for seq in twins)
    assert cache.model.sched.pools[0].n_hashed == 7


# ---- limits ---------------------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first_and_its_end_before_its_beginning() -> None:
    cache = Cached(n_pages=12)
    old, young = [0] * 16, [1] * 16
    cache.request(old)
    cache.request(young)
    cache.request(old[:5])  # uses the first page of the old one again
    cache.request([2] * 17)  # eight pages are kept, one is needed beyond the four that are free
    assert cache.model.sched.pools[0].n_evicted == 1
    assert cache.n_computed([*old[:12], 1]) == 1, "the end of the old text is gone, its beginning is not"
    assert cache.n_computed(young) == 1


def test_running_sequences_are_worth_more_than_old_texts() -> None:
    cache = Cached(n_pages=8)
    for i in range(3):
        cache.request([i] * 20)
    long = cache.request([0, 1] * 8, n_new=15)
    assert long.result.stats.n_preempted == 0
    assert cache.model.sched.pools[0].n_evicted > 0


@pytest.mark.parametrize("max_pages", [0, 1, 3])
def test_no_more_is_kept_than_allowed(max_pages: int) -> None:
    cache = Cached(max_pages=max_pages)
    for prompt in ([0] * 20, [1] * 20, [2] * 8):
        cache.request(prompt)
        assert cache.model.sched.pools[0].n_hashed <= max_pages
    assert cache.n_computed([2] * 8) == (1 if max_pages == 3 else 4 if max_pages == 1 else 8)


def test_limits_in_prompts_and_bytes() -> None:
    room = Capacity(context_size=64, n_pages=(10, 4), page_bytes=(400, 600))
    assert cache_pages(EngineConfig(), room) == 10
    assert cache_pages(EngineConfig(cache_max_entries=3), room) == 6, "pages of 32"
    assert cache_pages(EngineConfig(cache_max_entries=3, cache_max_tokens=33), room) == 6
    assert cache_pages(EngineConfig(cache_max_entries=3, cache_max_tokens=32), room) == 3
    assert cache_pages(EngineConfig(cache_max_tokens=32), room) == 10
    assert cache_pages(EngineConfig(cache_max_entries=100, cache_max_tokens=2048), room) == 10, "as others write it"
    assert cache_pages(EngineConfig(cache_max_bytes=4999, cache_max_entries=7), room) == 4


def test_no_more_of_a_text_is_kept_than_allowed() -> None:
    cache = Cached()
    assert cache.model.sched.prefix
    cache.model.sched.prefix.max_text_tokens = 10
    cache.request([0] * 20)
    cache.request([1] * 20)
    assert cache.model.sched.pools[0].n_hashed == 2 * (10 // cache.model.sched.page_size)
    assert cache.n_computed([0] * 20) == 20 - 10 // cache.model.sched.page_size * cache.model.sched.page_size


def test_pages_of_a_failed_sequence_are_not_found() -> None:
    cache = Cached()
    seq = sequence(SYSTEM, 30)
    cache.model.sched.add(seq)
    while seq.n_generated < 3:
        cache.model.step()
    cache.model.sched.invalidate(seq)
    seq.end("error")
    cache.model.sched.remove(seq)
    assert cache.model.sched.pools[0].n_hashed == 0
    assert cache.n_computed(SYSTEM) == 24


def test_truncated_text_is_not_mistaken_for_what_it_was() -> None:
    cache = Cached()
    seq = sequence(SYSTEM, 12)
    cache.model.sched.add(seq)
    while seq.n_generated < 9:
        cache.model.step()
    cache.model.sched.truncate(seq, len(SYSTEM) + 2)
    seq.tokens.append((seq.tokens[-1] + 1) % 3)
    begun = list(seq.tokens)
    cache.model.run(seq)  # reads back every slot: the pages it had were kept, so they were copied first
    assert seq.tokens == expected(begun, seq.reply.max_length)
    assert cache.n_computed([*seq.tokens[:32], 0]) == 1


def test_page_names_depend_on_everything_before() -> None:
    cache = PrefixCache([PagePool(4, PAGE)])
    hashes = [cache.hashes().of(tokens, 1) for tokens in ([0] * 8, [1] + [0] * 7, [0] * 7 + [1])]
    assert len(set(hashes)) == 3
    assert cache.hashes().of([0] * 8, 1) == cache.hashes().of([0] * 9, 1)


# ---- on a real model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_common_system_prompt_never_mixes_replies(stories: Path, cached: bool, together: bool) -> None:
    encode = loaded(stories)[1].encode
    system = "Lily and Ben are friends. They like to play in the park. "
    tails = ["One day", "Lily", "Ben saw", "It was", "They", "Mom said", "A dog", "The sun"]
    prompts = [encode(system + tail) for tail in tails]
    eng = engine(stories, prefix_cache=cached)
    if together:
        replies = run(eng, *(submit(eng, prompt, greedy(8)) for prompt in prompts))
    else:
        replies = [run(eng, submit(eng, prompt, greedy(8)))[0] for prompt in prompts]
    assert replies == [alone(stories, prompt, greedy(8)) for prompt in prompts]
    assert (eng.snapshot().prefix_hits > 0) == (cached and not together)


def test_half_the_prompt_of_a_real_model(stories: Path) -> None:
    eng = engine(stories)
    shared = [1, *range(300, 363)]
    first, second = [*shared, *range(100, 164)], [*shared, *range(200, 264)]
    run(eng, submit(eng, first))
    before = eng.snapshot().tokens_prefilled
    assert run(eng, submit(eng, second)) == [alone(stories, second)]
    assert eng.snapshot().tokens_prefilled - before <= 0.52 * len(second)

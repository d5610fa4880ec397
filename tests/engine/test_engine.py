"""Requests that share an engine answer as if each were alone, whatever happens around them."""

from pathlib import Path

import pytest

from engines import Tally, alone, engine, greedy, here, loaded, page_bytes, poison, run, submit
from tahr.backends.reference.backend import ReferenceBackend
from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence, State
from tahr.engine.step.batch import FEW
from tahr.errors import ConfigError, GenerateError, KvCacheFull, TahrError
from tahr.loading.builder import build_engine
from tahr.loading.capacity import Capacity, step_sizes
from tahr.loading.memory_plan import check_kv_dtype

TEXTS = [
    "Once upon a time there was a little girl named Lily. She loved to play in the park with her red ball.",
    "Once upon a time there was a little girl named Lily. She had a cat",
    "Tom and his dog went to the beach. It was a sunny day",
    "One day",
    "The big bird saw a small bug. The bug was scared, so it",
    "Once upon a time there was a little girl named Lily. She loved to play in the rain",
]


def prompts(path: Path) -> list[list[int]]:
    tokenizer = loaded(path)[1]
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def wanted(stories: Path) -> list[list[int]]:
    return [alone(stories, prompt) for prompt in prompts(stories)]


# ---- equality -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["stories", "smollm2"])
def model(request: pytest.FixtureRequest) -> Path:
    """A model of 260 thousand parameters in f32, and the default one, quantised."""
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(scope="module")
def replies(model: Path) -> list[list[int]]:
    """What each request says to an engine of its own."""
    return [alone(model, prompt) for prompt in prompts(model)]


@pytest.mark.parametrize("cached", [True, False])
def test_batched_is_alone(model: Path, replies: list[list[int]], cached: bool) -> None:
    eng = engine(model, prefix_cache=cached)
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(model))) == replies
    assert eng.scheduler.pools[0].n_used == 0


def test_a_crowd_is_alone(model: Path, replies: list[list[int]]) -> None:
    n_times = FEW // len(TEXTS) + 1
    eng = engine(model, max_batch_size=n_times * len(TEXTS))
    sequences = [submit(eng, prompt) for _ in range(n_times) for prompt in prompts(model)]
    assert run(eng, *sequences) == replies * n_times
    assert eng.scheduler.pools[0].n_used == 0


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 256])
def test_chunked_is_alone(model: Path, replies: list[list[int]], chunk: int) -> None:
    eng = engine(model, prefill_chunk_size=chunk)
    sequences = []
    for prompt in prompts(model):  # each arrives while the others are somewhere else
        sequences.append(submit(eng, prompt))
        eng.step()
        eng.step()
    assert run(eng, *sequences) == replies


def test_prefix_cached_is_alone(model: Path, replies: list[list[int]]) -> None:
    eng = engine(model)
    for _ in range(2):
        for prompt, reply in zip(prompts(model), replies, strict=True):
            seq = submit(eng, prompt)
            assert run(eng, seq) == [reply]
        # Even if the whole prompt is known, its last token is computed: its logits are replies.
        assert seq.result.stats.n_cached_tokens <= seq.n_prompt - 1
    assert eng.snapshot().prefix_hits >= len(TEXTS)
    assert seq.result.stats.n_cached_tokens >= seq.n_prompt // 8 * 8 - 1


def test_preempted_is_alone(model: Path, replies: list[list[int]]) -> None:
    longest = max(map(len, prompts(model))) + 16
    eng = engine(model, kv_bytes=page_bytes(model) * -(-longest // 8) * 2, context_size=longest, max_batch_size=6)
    sequences = [submit(eng, prompt) for prompt in prompts(model)]
    most_used = 0
    while eng.busy:
        eng.step()
        most_used = max(most_used, eng.scheduler.pools[0].n_used)
    assert run(eng, *sequences) == replies
    assert eng.snapshot().preemptions > 0
    assert most_used <= eng.scheduler.pools[0].n_pages


@pytest.mark.parametrize("places", [6, 2])
def test_forked_is_alone(model: Path, replies: list[list[int]], places: int) -> None:
    eng = engine(model, max_batch_size=places)
    first = submit(eng, prompts(model)[1], greedy(n=3))
    other = submit(eng, prompts(model)[2])
    assert run(eng, first, *first.queueing.forks, other) == [replies[1]] * 3 + [replies[2]]
    assert eng.scheduler.pools[0].n_used == 0


def test_forks_copy_no_prompt(stories: Path) -> None:
    eng = engine(stories, prefix_cache=False)
    prompt = prompts(stories)[0]
    first = submit(eng, prompt, greedy(n=4))
    while not all(seq.n_generated > 1 for seq in (first, *first.queueing.forks)):
        eng.step()
    n_shared = len(prompt) // 8
    assert eng.scheduler.pools[0].n_used <= n_shared + 4 * 2
    assert eng.stats.tokens_prefilled == len(prompt)


def test_forks_have_random_numbers_of_their_own(stories: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=7, n=4)
    answers = []
    for n_neighbours in (0, 3):
        eng = engine(stories)
        others = [submit(eng, prompts(stories)[2]) for _ in range(n_neighbours)]
        first = submit(eng, prompts(stories)[0], params)
        answers.append(run(eng, first, *first.queueing.forks))
        run(eng, *others)
    assert answers[0] == answers[1], "a seed means the same text, whatever the batch"
    assert len({tuple(tokens) for tokens in answers[0]}) == 4


@pytest.fixture(scope="module")
def rounded_replies(smollm2: Path) -> list[list[int]]:
    eng = engine(smollm2, kv_dtype="q8_0", prefix_cache=False)
    return [run(eng, submit(eng, text, greedy(8)))[0] for text in prompts(smollm2)]


@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 7}, {"prefix_cache": False}, {"max_batch_size": 2}])
def test_rounded_keys_and_values_change_nothing_between_neighbours(
    smollm2: Path, rounded_replies: list[list[int]], options: dict[str, object]
) -> None:
    texts, replies = prompts(smollm2), rounded_replies
    eng = engine(smollm2, kv_dtype="q8_0", **options)
    for _ in range(2):  # the second time, what is known is reused
        first = submit(eng, texts[0], greedy(8, n=2))
        others = [submit(eng, text, greedy(8)) for text in texts[1:]]
        assert run(eng, first, *others, *first.queueing.forks) == [*replies, replies[0]]


@pytest.mark.parametrize("kv_dtype", ["q8_0/f16", "/q8_0"])
def test_keys_and_values_may_have_types_of_their_own(smollm2: Path, kv_dtype: str) -> None:
    whole, cut = engine(smollm2, kv_dtype=kv_dtype), engine(smollm2, kv_dtype=kv_dtype, prefill_chunk_size=7)
    assert sorted(whole.executor.kv.dtype.split("/")) == ["f16", "q8_0"]
    bytes_of = {dtype: engine(smollm2, kv_dtype=dtype).executor.kv.n_bytes for dtype in ("f16", "q8_0")}
    assert 2 * whole.executor.kv.n_bytes == sum(bytes_of.values())
    (reply,) = run(whole, submit(whole, prompts(smollm2)[0], greedy(8)))
    assert run(cut, submit(cut, prompts(smollm2)[0], greedy(8))) == [reply]


@pytest.mark.parametrize("kv_dtype", ["q8_0/int3", "f16/f32/f16"])
def test_other_kv_types_are_refused(stories: Path, kv_dtype: str) -> None:
    with pytest.raises(ConfigError, match="KV type"):
        engine(stories, kv_dtype=kv_dtype)


def test_a_context_that_fits_only_as_q8_0_is_stored_so(smollm2: Path) -> None:
    decoder, page = loaded(smollm2)[0].decoder, page_bytes(smollm2)

    def build(n_pages: int, **options: object) -> tuple[Engine, str]:
        config = EngineConfig(context_size=64, page_size=8, kv_bytes=n_pages * page, **options)  # type: ignore[arg-type]
        return build_engine(here(), decoder, config)

    assert build(8)[0].executor.kv.dtype == "f16"
    eng, note = build(6)
    assert eng.executor.kv.dtype == "q8_0" and "does not fit in f16" in note
    for options in ({}, {"kv_dtype": "f16"}):
        with pytest.raises(ConfigError, match="context of 64 tokens needs"):
            build(3 if not options else 6, **options)


def test_a_backend_with_one_type_says_so() -> None:
    class OneType(ReferenceBackend):
        mixes_kv_dtypes = False

    assert check_kv_dtype("f16/f16", OneType()) == "f16"
    with pytest.raises(ConfigError, match="same on both sides"):
        check_kv_dtype("q8_0/f16", OneType())


@pytest.mark.parametrize("requested", ["fp8", "fp8/f16", "f16/fp8"])
def test_a_type_that_a_backend_does_not_have_is_never_another(requested: str) -> None:
    with pytest.raises(ConfigError, match="KV type 'fp8' is not one the reference backend has: f32, f16, q8_0"):
        check_kv_dtype(requested, ReferenceBackend())


def test_twenty_requests_share_a_pool_for_two(stories: Path) -> None:
    longest = 48
    eng = engine(stories, kv_bytes=page_bytes(stories) * 2 * longest // 8, context_size=longest, max_batch_size=8)
    pool = eng.scheduler.pools[0]
    assert pool.n_pages == 2 * longest // 8
    texts = [prompts(stories)[i % 6][: 12 + i] for i in range(20)]
    sequences = [submit(eng, text) for text in texts]
    while eng.busy:
        eng.step()
        assert pool.n_used <= pool.n_pages
        assert all(len(seq.memory.tables[0]) <= -(-len(seq.tokens) // 8) for seq in eng.scheduler.running)
    assert run(eng, *sequences) == [alone(stories, text) for text in texts]


# ---- one request's trouble ------------------------------------------------------------------------------------


def faulty(token: int) -> None:
    raise RuntimeError("the client's callback broke")


@pytest.mark.parametrize("trouble", ["callback", "nan", "cancel", "all banned"])
@pytest.mark.parametrize("after", [0, 3])
def test_a_request_fails_alone(stories: Path, wanted: list[list[int]], trouble: str, after: int) -> None:
    eng = engine(stories)
    params = (
        greedy(40, allowed_tokens=[5], stop_token_ids=[5], min_tokens=20) if trouble == "all banned" else greedy(40)
    )
    writer = Tally(faulty if trouble == "callback" else lambda token: None)
    others = [submit(eng, prompt) for prompt in prompts(stories)[:3]]
    victim = eng.submit(ResolvedRequest(prompts(stories)[0], params, lambda: writer))
    others += [submit(eng, prompt) for prompt in prompts(stories)[3:]]
    for _ in range(after):
        eng.step()
    if trouble == "nan":
        poison(eng, lambda seq: seq is victim)
    if trouble == "cancel":
        eng.abort(victim)
        assert not any(victim.memory.tables)
    assert run(eng, *others) == wanted
    assert victim.done and not any(victim.memory.tables)
    if trouble == "cancel":
        assert victim.state is State.CANCELLED and victim.result.error is None
    else:
        assert victim.state is State.FAILED and isinstance(victim.result.error, GenerateError)
    snapshot = eng.snapshot()
    assert (snapshot.requests_failed, snapshot.requests_cancelled) == ((0, 1) if trouble == "cancel" else (1, 0))
    assert snapshot.requests_completed == len(others) and snapshot.pages_used == 0
    assert run(eng, submit(eng, prompts(stories)[0])) == wanted[:1], "what the failed one computed is not reused"


@pytest.mark.parametrize(
    ("tokens", "params"),
    [([1] * 256, greedy()), ([], greedy()), ([1], greedy(stop_token_ids=[600])), ([1, 512], greedy())],
)
def test_a_request_refused_at_the_door_changes_nothing(
    stories: Path, wanted: list[list[int]], tokens: list[int], params: SamplingParams
) -> None:
    eng = engine(stories)
    sequences = []
    for prompt in prompts(stories):
        sequences.append(submit(eng, prompt))
        eng.step()
        with pytest.raises(ConfigError):
            submit(eng, tokens, params)
    assert run(eng, *sequences) == wanted
    assert eng.snapshot().requests_started == len(sequences)


def test_a_step_that_raises_fails_what_was_in_it_and_no_more(stories: Path, wanted: list[list[int]]) -> None:
    eng = engine(stories, max_batch_size=3)
    sequences = [submit(eng, prompt) for prompt in prompts(stories)]
    sound = eng.steps.launch
    eng.step()

    def broken(*_: object) -> None:
        eng.steps.launch = sound  # type: ignore[method-assign]
        raise OSError("the device fell off the bus")

    eng.steps.launch = broken  # type: ignore[method-assign]
    events = eng.step()
    failed = [seq for seq, *_ in events]
    assert failed and all(isinstance(seq.result.error, GenerateError) for seq in failed)
    assert isinstance(failed[0].result.error.__cause__, OSError)  # type: ignore[union-attr]
    rest = [(seq, reply) for seq, reply in zip(sequences, wanted, strict=True) if seq not in failed]
    assert run(eng, *(seq for seq, _ in rest)) == [reply for _, reply in rest]
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted
    assert eng.snapshot().pages_used == 0


def test_an_interrupt_ends_the_step_and_reaches_the_caller(stories: Path, wanted: list[list[int]]) -> None:
    eng = engine(stories)
    sound = eng.steps.launch

    def interrupted(*_: object) -> None:
        eng.steps.launch = sound  # type: ignore[method-assign]
        raise KeyboardInterrupt

    eng.steps.launch = interrupted  # type: ignore[method-assign]
    seq = submit(eng, prompts(stories)[0])
    with pytest.raises(KeyboardInterrupt):
        eng.step()
    assert seq.done and not eng.busy
    assert run(eng, submit(eng, prompts(stories)[0])) == wanted[:1]


def test_a_writer_may_cancel_another_request(stories: Path, wanted: list[list[int]]) -> None:
    eng = engine(stories)
    later: list[Sequence] = []
    first = eng.submit(ResolvedRequest(prompts(stories)[0], greedy(), lambda: Tally(lambda token: eng.abort(later[0]))))
    later.append(submit(eng, prompts(stories)[1], greedy(n=2)))
    third = submit(eng, prompts(stories)[2])
    assert run(eng, first, third) == [wanted[0], wanted[2]]
    assert later[0].state is State.CANCELLED


def test_cancelling_a_request_before_its_prompt_is_read_cancels_all_answers(stories: Path) -> None:
    eng = engine(stories)
    first = submit(eng, prompts(stories)[0], greedy(n=3))
    eng.abort(first)
    assert all(seq.state is State.CANCELLED for seq in first.queueing.forks)
    assert not eng.busy


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([], "prompt is empty"), ([1] * 256, "context holds 256"), ([1, 512], "between 0 and 511"), ([-1], "between 0")],
)
def test_bad_prompts_are_refused_at_the_door(stories: Path, tokens: list[int], message: str) -> None:
    eng = engine(stories)
    with pytest.raises(ConfigError, match=message):
        submit(eng, tokens)
    assert not eng.busy


def test_a_request_larger_than_the_pool_is_refused_at_once(stories: Path) -> None:
    eng = engine(stories)
    eng.scheduler.pools[0].n_pages = 3
    with pytest.raises(KvCacheFull, match="whole KV pool holds 24"):
        submit(eng, [1] * 20, greedy(5))
    with pytest.raises(ConfigError, match="stop_token_ids has token 600"):
        submit(eng, [1], greedy(stop_token_ids=[600]))


@pytest.mark.parametrize("name", ["max_batch_size", "max_prefill_tokens", "cache_max_bytes", "admit_below"])
def test_bad_limits_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**{name: -1})


# ---- what comes out -------------------------------------------------------------------------------------------


def test_stop_tokens_and_lengths(stories: Path, wanted: list[list[int]]) -> None:
    eng = engine(stories)
    stop = wanted[0][4]
    seq = submit(eng, prompts(stories)[0], greedy(stop_token_ids=[stop]))
    assert run(eng, seq) == [wanted[0][: wanted[0].index(stop) + 1]]
    assert seq.result.finish_reason == "stop"
    seq = submit(eng, prompts(stories)[0], greedy(3))
    assert run(eng, seq) == [wanted[0][:3]]
    assert seq.result.finish_reason == "length"


def test_every_step_hands_out_its_tokens_at_once(stories: Path) -> None:
    eng = engine(stories)
    sequences = [submit(eng, prompt) for prompt in prompts(stories)[:4]]
    seen: dict[int, list[int]] = {seq.id: [] for seq in sequences}
    while eng.busy:
        for seq, deltas, tokens in eng.step():
            seen[seq.id] += tokens
            assert deltas == tuple(f"{token} " for token in tokens)
            assert seen[seq.id] == seq.tokens[seq.n_prompt :]


def test_a_new_request_joins_while_another_runs(stories: Path) -> None:
    eng = engine(stories)
    first = submit(eng, prompts(stories)[0], greedy(40))
    for _ in range(5):
        eng.step()
    second = submit(eng, prompts(stories)[3], greedy(4))
    run(eng, second)
    assert not first.done


@pytest.mark.parametrize("chunk", [3, 64])
def test_prompt_logprobs(stories: Path, chunk: int) -> None:
    prompt = prompts(stories)[2]
    eng = engine(stories, prefill_chunk_size=chunk)
    run(eng, submit(eng, prompt))  # so that the cache knows the prompt, and must not be asked
    scored = submit(eng, prompt, greedy(2, prompt_logprobs=1, logprobs=0))
    run(eng, scored, submit(eng, prompts(stories)[0]))
    assert [each.token for each in scored.result.prompt_logprobs] == prompt[1:]
    assert all(
        each.logprob is not None and each.logprob <= each.top_logprobs[0][1] for each in scored.result.prompt_logprobs
    )
    assert len(scored.result.logprobs) == 2
    # The same, token by token: the likelihood of a token is that of picking it after what comes before.
    for n in (1, len(prompt) // 2, len(prompt) - 1):
        step = submit(eng, prompt[:n], greedy(1, logprobs=0, allowed_tokens=[prompt[n]]))
        run(eng, step)
        assert step.result.logprobs[0].logprob == pytest.approx(scored.result.prompt_logprobs[n - 1].logprob, abs=1e-5)


def test_statistics_add_up(stories: Path) -> None:
    eng = engine(stories)
    zero = eng.snapshot()
    assert (zero.decode_tokens_per_s, zero.prefill_tokens_per_s, zero.prefix_hit_rate) == (0, 0, 0)
    first = submit(eng, prompts(stories)[0], greedy(9))
    run(eng, first)
    again = submit(eng, prompts(stories)[0], greedy(9))
    run(eng, again)
    s = eng.snapshot()
    n_prompt = first.n_prompt
    assert (s.requests_started, s.requests_completed, s.tokens_generated) == (2, 2, 18)
    assert s.tokens_prefilled == 2 * n_prompt - again.result.stats.n_cached_tokens
    assert s.tokens_decoded == 16 and s.steps == 18
    assert (s.prefix_hits, s.prefix_misses, s.prefix_hit_rate) == (1, 1, 0.5)
    assert s.prefix_tokens_reused == again.result.stats.n_cached_tokens == min(n_prompt // 8 * 8, n_prompt - 1)
    assert s.decode_tokens_per_s == pytest.approx(s.tokens_decoded / s.decode_s)
    stats = again.result.stats
    assert stats.cache_hit and not first.result.stats.cache_hit
    assert stats.tokens_per_s * stats.decode_s == pytest.approx(8)
    assert stats.ms_per_token * stats.tokens_per_s == pytest.approx(1000)
    assert stats.first_token_s == pytest.approx(stats.queue_s + stats.prefill_s)
    assert f"{n_prompt} tokens, {stats.n_cached_tokens} of them cached" in stats.report()


def test_an_error_is_a_tahr_error(stories: Path) -> None:
    eng = engine(stories)
    seq = eng.submit(ResolvedRequest(prompts(stories)[0], greedy(), lambda: Tally(faulty)))
    with pytest.raises(TahrError, match="the client's callback broke"):
        run(eng, seq)


def test_padding_of_the_vocabulary_is_never_picked(stories: Path) -> None:
    eng = engine(stories)
    eng.steps.sampler = Sampler(eng.executor.backend, 40)  # as if the tokenizer had no more tokens
    hot = SamplingParams(temperature=5.0, seed=3, max_tokens=60, ignore_eos=True).over(NEUTRAL_SAMPLING)
    (tokens,) = run(eng, submit(eng, [1, 2, 3], hot))
    assert len(tokens) == 60 and max(tokens) < 40


def test_the_lesser_of_two_limits_says_how_many_write() -> None:
    room = Capacity(64, (8,), (1,))
    assert step_sizes(EngineConfig(max_batch_size=8), room).n_decode_seqs == 8
    assert step_sizes(EngineConfig(max_batch_size=8, max_decode_tokens=3), room).n_decode_seqs == 3
    assert step_sizes(EngineConfig(max_batch_size=8, max_decode_batch=2, max_decode_tokens=3), room).n_decode_seqs == 2

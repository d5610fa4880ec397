"""`InferenceEngine`: every method before and after loading, and what each promises."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tahr import LLM, CancellationToken, EngineConfig, InferenceConfig, InferenceEngine, PrefixStore, SamplingParams
from tahr.config import GREEDY, NEUTRAL_SAMPLING
from tahr.errors import ConfigError, KvCacheFull, ModelNotFound, ModelNotLoaded, TahrError
from tahr.library.inference.metrics import Metrics
from tahr.library.inference.session import KvCopy
from tahr.library.inference.session_progress import GenerationProgress, ProgressReporter

PROMPT = "Once upon a time"
SAMPLED = SamplingParams(temperature=1.5, seed=3).over(NEUTRAL_SAMPLING)  # nothing left to a model's makers


def load(path: Path, **settings: Any) -> InferenceEngine:
    engine = InferenceEngine(InferenceConfig(str(path), num_threads=2, **settings))
    engine.load_model()
    return engine


@pytest.fixture(scope="module")
def engine(stories: Path) -> InferenceEngine:
    return load(stories)


@pytest.fixture(scope="module")
def tokens(engine: InferenceEngine) -> list[int]:
    return engine.tokenize("Once upon a time there was a small dog who liked to play with a big red ball in the park.")


# ---- configuration and life before loading ----------------------------------------------------------------------


def test_defaults() -> None:
    config = InferenceConfig("model.gguf")
    assert (config.model_path, config.tokenizer_path, config.context_size) == ("model.gguf", None, None)
    assert (config.num_threads, config.sampler, config.prefill_chunk_size) == (4, GREEDY, 512)
    assert config.offload_policy is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("offload_policy", "disk"), ("num_threads", 0), ("context_size", 1), ("prefill_chunk_size", -1), ("sampler", {})],
)
def test_bad_settings_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        InferenceConfig("model.gguf", **{field: value})


COPY = KvCopy((), (), "f32", None)
NEED_A_MODEL: dict[str, Callable[[InferenceEngine], Any]] = {
    "generate": lambda e: e.generate(PROMPT, 1),
    "generate, empty": lambda e: e.generate("", 1),
    "generate_with_config": lambda e: e.generate_with_config(PROMPT, 1, GREEDY),
    "generate_with_logits": lambda e: e.generate_with_logits([1], np.zeros(512, np.float32), 1),
    "prefill": lambda e: e.prefill([1]),
    "forward_prefill": lambda e: e.forward_prefill([1], 0),
    "forward_decode": lambda e: e.forward_decode(1, 0),
    "forward_one": lambda e: e.forward_one(1),
    "truncate": lambda e: e.truncate(0),
    "kv_restore": lambda e: e.kv_restore(COPY),
    "prime_with_prefix": lambda e: e.prime_with_prefix(COPY, 0, [1]),
    "tokenize": lambda e: e.tokenize("a"),
    "decode_token": lambda e: e.decode_token(1),
    "is_eos": lambda e: e.is_eos(1),
    "beam_generate": lambda e: e.beam_generate([1]),
    "embed": lambda e: e.embed("a"),
    "embed_with": lambda e: e.embed_with("a", "mean"),
    "embed_batch": lambda e: e.embed_batch([]),
    "embed_batch_with": lambda e: e.embed_batch_with([], "mean"),
    "load_lora": lambda e: e.load_lora("nowhere"),
    "embed_numpy": lambda e: e.embed_numpy(["a"]),
    "snapshot": lambda e: e.snapshot(),
}


@pytest.mark.parametrize("name", NEED_A_MODEL)
def test_before_loading(name: str) -> None:
    with pytest.raises(ModelNotLoaded, match="load_model"):
        NEED_A_MODEL[name](InferenceEngine(InferenceConfig("nowhere.gguf")))


def test_what_is_allowed_before_loading() -> None:
    engine, cache = InferenceEngine(InferenceConfig("nowhere.gguf")), PrefixStore()
    assert engine.kv_cache_seq_len() == 0
    assert engine.kv_snapshot() is None
    assert engine.model_config is None
    assert engine.hidden_size is None
    assert engine.vocab_bytes() is None
    assert engine.config.model_path == "nowhere.gguf"
    engine.store_kv_in_prefix_cache([1, 2, 3, 4], cache)
    assert len(cache) == 0
    assert engine.metrics_snapshot().tokens_generated == 0


def test_a_missing_file_is_noticed_on_loading() -> None:
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf"):
        InferenceEngine(InferenceConfig("nowhere.gguf")).load_model()
    with pytest.raises(ModelNotFound, match="model_path"):
        InferenceEngine(InferenceConfig()).load_model()


def test_pickling_is_refused(engine: InferenceEngine) -> None:
    with pytest.raises(TypeError, match="snapshot"):
        pickle.dumps(engine)


# ---- whole replies ----------------------------------------------------------------------------------------------


def test_pieces_join_to_the_text(engine: InferenceEngine) -> None:
    pieces: list[str] = []
    text = engine.generate(PROMPT, 30, pieces.append)
    assert text == "".join(pieces)
    assert all(pieces)
    assert text.startswith(", there was a ")
    assert engine.kv_cache_seq_len() == len(engine.tokenize(PROMPT)) + 29  # the last token is picked, not fed


def test_text_is_that_of_the_batching_engine(engine: InferenceEngine, stories: Path) -> None:
    with LLM(str(stories), config=EngineConfig(n_threads=2)) as llm:
        reply = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=50))
        sampled = llm.generate(PROMPT, replace(SAMPLED, max_tokens=50))
    assert engine.generate(PROMPT, 50) == reply.text
    assert engine.generate_with_config(PROMPT, 50, SAMPLED) == sampled.text


def test_calls_do_not_influence_each_other(engine: InferenceEngine) -> None:
    greedy = engine.generate(PROMPT, 20)
    sampled = engine.generate_with_config(PROMPT, 20, SAMPLED)
    assert sampled != greedy
    assert engine.generate(PROMPT, 20) == greedy
    assert engine.generate_with_config(PROMPT, 20, SAMPLED) == sampled


def test_nothing_to_say(engine: InferenceEngine) -> None:
    assert engine.generate("", 20) == ""
    assert engine.generate(PROMPT, 0) == ""
    with pytest.raises(ConfigError, match="max_tokens"):
        engine.generate(PROMPT, -1)


def test_what_ends_a_reply(engine: InferenceEngine) -> None:
    plain = engine.generate(PROMPT, 30)
    assert engine.generate_with_config(PROMPT, 30, replace(GREEDY, stop=(" was",))) == plain[: plain.index(" was")]
    comma = engine.tokenize(PROMPT + ",")[-1]
    assert engine.generate_with_config(PROMPT, 30, replace(GREEDY, stop_token_ids=(comma,))) == ""


def test_a_full_context_ends_a_reply(stories: Path) -> None:
    small = load(stories, context_size=16)
    generated = small.generate_with_config(PROMPT, 100, replace(GREEDY, ignore_eos=True))
    assert small.kv_cache_seq_len() == small.context_size == 16
    assert generated
    with pytest.raises(KvCacheFull, match="context"):
        small.forward_one(1)
    with pytest.raises(KvCacheFull, match="context"):
        small.generate(PROMPT * 10, 1)


def test_an_error_in_the_callback_reaches_the_caller_and_nobody_else(engine: InferenceEngine) -> None:
    def broken(_: str) -> None:
        raise ZeroDivisionError

    expected = engine.generate(PROMPT, 10)
    with pytest.raises(ZeroDivisionError):
        engine.generate(PROMPT, 10, broken)
    assert engine.generate(PROMPT, 10) == expected


def test_cancelling_stops_before_the_next_token(engine: InferenceEngine) -> None:
    cancel, pieces = CancellationToken(), list[str]()

    def listen(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            cancel.cancel()

    text = engine.generate(PROMPT, 50, listen, cancel=cancel)
    assert len(pieces) == 3
    assert text == "".join(pieces)


def test_progress_is_throttled_and_final() -> None:
    now, heard = [0.0], list[GenerationProgress]()
    reporter = ProgressReporter(heard.append, total=10, every_s=1.0, clock=lambda: now[0])
    for n in range(1, 9):
        now[0] += 0.5
        reporter.report(n)
    reporter.report(8, final=True)
    assert [p.tokens_generated for p in heard] == [2, 4, 6, 8, 8]
    assert [p.final for p in heard] == [False] * 4 + [True]
    assert heard[0] == GenerationProgress(2, 10, 1.0, 2.0, 4.0, False)
    assert heard[-1].eta_s == 0


def test_progress_of_a_reply(engine: InferenceEngine) -> None:
    heard: list[GenerationProgress] = []
    engine.generate(PROMPT, 12, progress=heard.append)
    assert heard[-1].final
    assert (heard[-1].tokens_generated, heard[-1].total) == (12, 12)


# ---- step by step -----------------------------------------------------------------------------------------------


def fresh(engine: InferenceEngine, tokens: list[int]) -> np.ndarray:
    engine.truncate(0)
    return engine.forward_prefill(tokens, 0)


def test_logits_and_embeddings_go_to_other_libraries_without_a_copy(engine: InferenceEngine) -> None:
    engine.truncate(0)
    for ours in (engine.forward_prefill([1, 2], 0), engine.embed_numpy(["One day"])):
        theirs = np.from_dlpack(ours)
        assert np.shares_memory(ours, theirs)
        np.testing.assert_array_equal(ours, theirs)


def test_prefill_advances(engine: InferenceEngine, tokens: list[int]) -> None:
    engine.truncate(0)
    engine.prefill(tokens[:5])
    engine.prefill(tokens[5:7])
    assert engine.kv_cache_seq_len() == 7


@pytest.mark.parametrize("chunk", [1, 7, 16, 0])
def test_chunks_make_no_difference(engine: InferenceEngine, stories: Path, tokens: list[int], chunk: int) -> None:
    chunked = load(stories, prefill_chunk_size=chunk)
    np.testing.assert_allclose(fresh(chunked, tokens), fresh(engine, tokens), atol=1e-4)


def test_one_step_by_either_name(engine: InferenceEngine, tokens: list[int]) -> None:
    fresh(engine, tokens)
    a = engine.forward_decode(7, len(tokens))
    engine.truncate(len(tokens))
    b = engine.forward_one(7)
    assert engine.kv_cache_seq_len() == len(tokens) + 1
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a, fresh(engine, [*tokens, 7]), atol=1e-4)


def test_positions_must_continue(engine: InferenceEngine, tokens: list[int]) -> None:
    fresh(engine, tokens)
    for call in (lambda: engine.forward_prefill([1], 3), lambda: engine.forward_decode(1, len(tokens) + 1)):
        with pytest.raises(ConfigError, match=f"{len(tokens)} tokens are in memory"):
            call()


def test_tokens_must_exist(engine: InferenceEngine) -> None:
    for wrong in ([-1], [512], []):
        with pytest.raises(ConfigError, match=r"[Tt]oken"):
            engine.prefill(wrong)


@pytest.mark.parametrize("n", [0, 1, 20, 32])
def test_truncating_forgets(engine: InferenceEngine, tokens: list[int], n: int) -> None:
    long = tokens * 2
    expected = fresh(engine, [*long[:n], 9, 10])
    fresh(engine, long)
    engine.truncate(n)
    assert engine.kv_cache_seq_len() == n
    np.testing.assert_allclose(engine.forward_prefill([9, 10], n), expected, atol=1e-4)


def test_truncating_to_more_is_refused(engine: InferenceEngine, tokens: list[int]) -> None:
    fresh(engine, tokens)
    with pytest.raises(ConfigError, match="cannot be cut"):
        engine.truncate(len(tokens) + 1)


# ---- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "bf16"])
def test_restored_memory_gives_the_same_logits(stories: Path, tokens: list[int], kv_dtype: str) -> None:
    engine = load(stories, kv_dtype=kv_dtype)
    fresh(engine, tokens * 2)
    copy = engine.kv_snapshot()
    assert copy
    expected = engine.forward_one(5)
    fresh(engine, tokens[::-1])
    engine.kv_restore(copy)
    assert engine.kv_cache_seq_len() == 2 * len(tokens)
    np.testing.assert_array_equal(engine.forward_one(5), expected)


def test_a_copy_of_nothing(engine: InferenceEngine, tokens: list[int]) -> None:
    engine.truncate(0)
    empty = engine.kv_snapshot()
    assert empty
    engine.prefill(tokens)
    engine.kv_restore(empty)
    assert engine.kv_cache_seq_len() == 0


def test_another_models_copy_is_refused(engine: InferenceEngine, stories: Path, tokens: list[int]) -> None:
    other = load(stories)
    other.prefill(tokens)
    copy = other.kv_snapshot()
    assert copy
    with pytest.raises(ConfigError, match="another model"):
        engine.kv_restore(copy)


def test_priming_computes_only_the_suffix(engine: InferenceEngine, tokens: list[int]) -> None:
    expected = fresh(engine, tokens)
    fresh(engine, tokens[:12])
    copy = engine.kv_snapshot()
    assert copy
    before = engine.metrics_snapshot()
    logits = engine.prime_with_prefix(copy, 10, tokens[10:])
    after = engine.metrics_snapshot()
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert after.tokens_prefilled - before.tokens_prefilled == len(tokens) - 10
    assert after.kv_hits - before.kv_hits == 1


def test_priming_and_going_on_is_generating(engine: InferenceEngine) -> None:
    prompt = engine.tokenize(PROMPT)
    expected = engine.generate(PROMPT, 20)
    fresh(engine, prompt[:3])
    copy = engine.kv_snapshot()
    assert copy
    logits = engine.prime_with_prefix(copy, 3, prompt[3:])
    assert engine.generate_with_logits(prompt, logits, 20) == expected


def test_priming_beyond_the_copy_is_refused(engine: InferenceEngine, tokens: list[int]) -> None:
    fresh(engine, tokens)
    copy = engine.kv_snapshot()
    assert copy
    with pytest.raises(ConfigError, match="restore_to"):
        engine.prime_with_prefix(copy, len(tokens) + 1, [1])


def test_logits_of_another_text_are_refused(engine: InferenceEngine, tokens: list[int]) -> None:
    logits = fresh(engine, tokens)
    with pytest.raises(ConfigError, match="prompt_tokens"):
        engine.generate_with_logits(tokens[:-1], logits, 5)


def test_prefix_store(engine: InferenceEngine, tokens: list[int]) -> None:
    cache = PrefixStore(max_entries=2)
    expected = fresh(engine, tokens)
    engine.store_kv_in_prefix_cache(tokens[:15], cache)
    assert len(cache) == 1
    found = cache.lookup(tokens)
    assert found
    assert found[1] == 15
    np.testing.assert_allclose(engine.prime_with_prefix(*found, tokens[15:]), expected, atol=1e-4)
    shared = cache.lookup([*tokens[:9], 1, 1, 1])
    assert shared
    assert shared[1] == 9  # texts that part ways share what they have in common
    assert cache.lookup([7, 7, 7, 7, 7]) is None
    assert (cache.hits, cache.misses) == (2, 1)
    with pytest.raises(ConfigError, match="does not begin"):
        engine.store_kv_in_prefix_cache([9, 9, 9, 9], cache)


def test_the_last_token_is_never_found(engine: InferenceEngine, tokens: list[int]) -> None:
    cache = PrefixStore()
    fresh(engine, tokens)
    engine.store_kv_in_prefix_cache(tokens, cache)
    found = cache.lookup(tokens)
    assert found
    assert found[1] == len(tokens) - 1  # its logits are wanted


def test_prefix_store_forgets_the_least_recently_used() -> None:
    def copy(*tokens: int) -> KvCopy:
        return KvCopy(tokens, (np.zeros((2, len(tokens), 1, 10), np.uint8),), "f32", None)

    cache = PrefixStore(max_entries=2, max_bytes=200)
    assert cache.store(copy(1, 1, 1, 1))
    assert cache.store(copy(2, 2, 2, 2))
    assert cache.lookup([1, 1, 1, 1, 5])
    cache.store(copy(3, 3, 3, 3))
    assert cache.lookup([2, 2, 2, 2, 5]) is None
    assert cache.lookup([1, 1, 1, 1, 5])
    assert not cache.store(copy(4, 4, 4))  # too short to be worth it
    assert not cache.store(copy(*range(11)))  # larger than the store
    assert cache.n_bytes <= 200


# ---- loading ----------------------------------------------------------------------------------------------------


def byte_tokenizer() -> str:
    """A tokenizer.json with a token per byte, which is not what the model was trained with."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str())


def test_from_bytes_is_from_path(engine: InferenceEngine, stories: Path) -> None:
    other = InferenceEngine(InferenceConfig(context_size=64))
    other.load_model_from_bytes(stories.read_bytes())
    assert other.context_size == 64
    assert other.tokenize(PROMPT) == engine.tokenize(PROMPT)
    assert other.generate(PROMPT, 30) == engine.generate(PROMPT, 30)


def test_another_tokenizer(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer())
    in_memory = InferenceEngine(InferenceConfig(context_size=64))
    in_memory.load_model_from_bytes(stories.read_bytes(), byte_tokenizer())
    for other in (
        load(stories, tokenizer_path=str(tmp_path / "tokenizer.json")),
        load(stories, tokenizer_path=str(tmp_path)),
        in_memory,
    ):
        assert len(other.tokenize("a dog")) == 5
        assert other.decode_token(other.tokenize("x")[0]) == "x"
    with pytest.raises(ModelNotFound, match="There is no tokenizer at"):
        load(stories, tokenizer_path="nowhere.json")


def test_from_hub_takes_any_reference(stories: Path) -> None:
    engine = InferenceEngine.from_hub(str(stories), context_size=32)
    assert engine.kv_cache_seq_len() == 0
    engine.load_model()
    assert engine.context_size == 32


@pytest.mark.parametrize("name", ["model.gguf", "a1b2c3"])
def test_a_file_of_a_cache_is_loaded_by_the_name_it_is_shown_under_or_by_its_digest(
    name: str, stories: Path, tmp_path: Path
) -> None:
    (tmp_path / "a1b2c3").write_bytes(stories.read_bytes())
    if name != "a1b2c3":
        (tmp_path / name).symlink_to("a1b2c3")
    engine = InferenceEngine(InferenceConfig(str(tmp_path / name), context_size=32))
    engine.load_model()
    assert engine.context_size == 32


def test_accessors(engine: InferenceEngine) -> None:
    assert engine.hidden_size == 64
    assert engine.model_config
    assert engine.model_config.n_layers == 5
    (eos,) = [t for t in range(512) if engine.is_eos(t)]
    assert engine.decode_token(engine.tokenize("a dog")[-1]).endswith("g")
    assert eos not in dict(engine.vocab_bytes() or ())
    with pytest.raises(TahrError, match="512"):
        engine.decode_token(512)


# ---- counters ---------------------------------------------------------------------------------------------------


def test_rates_follow_from_counters() -> None:
    assert Metrics().snapshot().decode_tokens_per_s == 0
    assert Metrics().snapshot().prefill_tokens_per_s == 0
    assert Metrics().snapshot().kv_hit_rate == 0
    some = Metrics(
        tokens_prefilled=30, tokens_generated=10, kv_hits=1, kv_misses=3, prefill_ns=10**9, decode_ns=2 * 10**9
    )
    assert some.snapshot().decode_tokens_per_s == 5
    assert some.snapshot().prefill_tokens_per_s == 30
    assert some.snapshot().kv_hit_rate == 0.25


def test_metrics_count(stories: Path) -> None:
    engine = load(stories)
    engine.generate(PROMPT, 10)
    engine.generate(PROMPT, 5)
    live, snapshot = engine.metrics(), engine.metrics_snapshot()
    assert (live.requests_started, live.requests_completed) == (2, 2)
    assert live.tokens_generated == 15
    assert live.tokens_prefilled == 2 * len(engine.tokenize(PROMPT))
    assert (live.kv_hits, live.kv_misses) == (0, 2)
    assert snapshot.decode_tokens_per_s > 0
    engine.generate(PROMPT, 1)
    assert (snapshot.requests_started, live.requests_started) == (2, 3)

"""Steps on a GPU: tokens the host does not know yet, inputs that are rewritten at once, several tokens per sequence."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import backends_here
from engines import Tally, greedy, logits_of, run, submit
from model_cases import CASES, Config, make_weights, token_ids
from model_files import write_hf
from model_runs import Part, Runs
from random_weights import random_tensor
from tahr.backends import open_backend
from tahr.backends.api import Extras, StepLimits
from tahr.backends.cuda.layouts.presence import interprets
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.step.sizes import StepSizes
from tahr.loading.builder import build_engine
from tahr.loading.speculation import Draft
from tahr.models.loader import load, open_model
from warming_runs import facts_of, memory_of, set_buckets, warm_all

pytestmark = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")

IDS = token_ids()
OTHER = list(reversed(IDS))
N_TOKENS = 64 if interprets() else 4096
# Limits of a captured plan, and of one that is run op by op.
BUCKETS = [StepLimits(4, 4, 4, 1, n_tokens_per_seq=1), StepLimits(4, 4, 4, 1)]


@pytest.mark.parametrize("limits", BUCKETS)
def test_negative_ids_are_tokens_sampled_before(limits: StepLimits) -> None:
    be = backends_here.backend("cuda")
    tensor = random_tensor("F32", (8, 16), np.random.default_rng(3))
    table, step = be.weight(tensor), be.step_inputs(limits)
    plan = be.record(lambda: be.embed(table, step), step)
    be.last_tokens[:3] = be.last_tokens.new_tensor([5, 7, -1])  # type: ignore[attr-defined]
    step.ids[:], step.counts[:] = [3, ~1, ~0, ~2], [4, 4, 4]
    plan.run()
    np.testing.assert_array_equal(be.read(plan.result), tensor.dense()[[3, 7, 5, 0]])  # an error code reads any row


@pytest.mark.parametrize("limits", BUCKETS)
def test_inputs_may_be_rewritten_as_soon_as_a_plan_runs(limits: StepLimits) -> None:
    be = backends_here.backend("cuda")
    tensor = random_tensor("F32", (N_TOKENS, 64), np.random.default_rng(3))
    table, step = be.weight(tensor), be.step_inputs(limits)
    step.counts[:] = 4, 4, 4
    plan = be.record(lambda: be.embed(table, step), step)
    fetched = []
    for first in range(0, N_TOKENS, 4):
        step.ids[:] = range(first, first + 4)
        plan.run()
        step.ids[:] = 0
        fetched.append(be.fetch(plan.result))
    rows = np.concatenate([each.collect() for each in fetched])
    np.testing.assert_array_equal(rows, tensor.dense())


# Experts chosen by a kernel, one after the other and with factors of their own; states of both kinds; latent keys.
UNUSUAL = ["qwen3_moe", "phimoe", "llama4", "qwen3_next", "granite4_h", "deepseek_v3"]
STEPS: list[list[Part]] = [
    [(0, IDS[:3]), (0, OTHER[:2])],
    [(3, IDS[3:6]), (2, OTHER[2:3])],
    [(6, IDS[6:8]), (3, OTHER[3:6])],
    [(8, IDS[8:9])],
]


def test_a_bucket_holds_several_tokens_of_each_sequence(tmp_path: Path) -> None:
    be = backends_here.backend("cuda")
    loaded = load(open_model([], write_hf(tmp_path, CASES["llama"], make_weights(CASES["llama"]))), be)
    eager, runs = (Runs(loaded, be, n_seqs=2) for _ in range(2))
    buckets = be.buckets(runs.limits, n_decode_tokens=3)
    assert next(each for each in buckets if each.hold(2, 2, 2, 1)).n_tokens == 2  # without drafts
    bucket = next(each for each in buckets if each.hold(4, 4, 2, 3))
    assert (bucket.n_seqs, bucket.n_tokens, bucket.n_tokens_per_seq) == (2, 6, 3)
    step = be.step_inputs(runs.limits)
    inside = step.within(bucket)
    plan = be.record(lambda: runs.decoder.forward(be, inside, runs.kv), inside)
    for parts in STEPS:
        runs.fill(step, parts)
        plan.run()
        assert np.abs(be.read(plan.result) - eager.eager(parts)).max() <= 1e-5


@contextmanager
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ops do everything but launch kernels, as where these are compiled before a step."""
    from tahr.backends.cuda.compiling import ZeroMemory, compiling

    if not interprets():
        with compiling():
            yield
        return
    from triton.runtime.interpreter import InterpretedFunction

    with monkeypatch.context() as patch, ZeroMemory():
        patch.setattr(InterpretedFunction, "run", lambda *args, **options: None)
        yield


@pytest.mark.parametrize("case", UNUSUAL)
def test_ops_without_their_kernels_leave_no_trace(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that kernels have not written serves as indices, and states and keys are as they were."""
    be = backends_here.backend("cuda")
    loaded = load(open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case]))), be)
    plain, runs = (Runs(loaded, be, n_seqs=2) for _ in range(2))
    for parts in STEPS[:2]:
        step = be.step_inputs(runs.limits)
        runs.fill(step, parts)
        with without_kernels(monkeypatch):
            runs.decoder.forward(be, step, runs.kv)
        np.testing.assert_array_equal(runs.eager(parts), plain.eager(parts))


def test_rows_stay_in_their_slots_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a tower writes the slots that it has read, first without kernels and then with them."""
    be = backends_here.backend("cuda")
    slots = be.row_store(4, 8)
    limits = replace(BUCKETS[0], extras=int(Extras.ROWS | Extras.TARGETS))
    step = replace(be.step_inputs(limits), rows=slots, target_rows=slots)
    step.counts[:] = 4
    step.row_of[:] = step.row_target[:] = range(4)
    before = np.arange(32, dtype=np.float32).reshape(4, 8)
    be.write_rows(slots, range(4), before)
    with without_kernels(monkeypatch):
        be.store_rows(be.scale(be.take_rows(step, 8), 2.0), step)
    np.testing.assert_array_equal(be.read_rows(slots, range(4)), before)
    be.store_rows(be.scale(be.take_rows(step, 8), 2.0), step)
    np.testing.assert_array_equal(be.read_rows(slots, range(4)), 2 * before)


def test_recording_reads_no_inputs() -> None:
    """Ids far outside of the table would be read if they were."""
    be = backends_here.backend("cuda")
    table = be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3)))
    step = be.step_inputs(BUCKETS[0])
    step.ids[:], step.counts[:] = 10**9, 4
    plan = be.record(lambda: be.gather_rows(be.embed(table, step), step), step)
    step.ids[:], step.logit_rows[:] = 1, range(4)
    plan.run()
    assert be.read(plan.result).shape == (4, 16)


REQUESTS = [
    SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, max_tokens=5, ignore_eos=True),
    # Penalties follow the text: the host must know the last token before the next one is sampled.
    SamplingParams(temperature=1.0, seed=4, top_k=5, repetition_penalty=1.3, max_tokens=6, ignore_eos=True),
]


def test_steps_in_flight_change_no_text(tmp_path: Path) -> None:
    config = {**CASES["llama"], "num_hidden_layers": 1}
    source = open_model([], write_hf(tmp_path, config, make_weights(config)))

    def texts(overlaps: bool) -> list[list[int]]:
        be = open_backend("cuda")
        be.overlaps = overlaps
        requested = EngineConfig(context_size=64, page_size=8, max_batch_size=4, kv_dtype="f32")
        eng = build_engine(be, load(source, be).decoder, requested)[0]
        sequences = [
            eng.submit(ResolvedRequest([1 + i, 5, 9, 7 * i + 2], params, Tally)) for i, params in enumerate(REQUESTS)
        ]
        run(eng, *sequences)
        assert not any(seq.result.error for seq in sequences)
        return [seq.tokens for seq in sequences]

    assert open_backend("cuda").overlaps
    assert texts(overlaps=True) == texts(overlaps=False)


def test_drafts_change_no_text(tmp_path: Path) -> None:
    """Draft passes feed each other on the device, beside sequences that run ahead."""
    config = {**CASES["llama"], "num_hidden_layers": 1}
    source = open_model([], write_hf(tmp_path, config, make_weights(config)))

    def texts(drafts: bool) -> list[list[int]]:
        be = open_backend("cuda", deterministic=True)
        requested = EngineConfig(context_size=64, page_size=8, max_batch_size=4, kv_dtype="f32")
        decoder = load(source, be).decoder
        eng = build_engine(be, decoder, requested, draft=Draft("itself", decoder) if drafts else None)[0]
        if eng.speculator:
            eng.speculator.adapts = False
        params = [*REQUESTS, replace(REQUESTS[0], speculative=False)]
        sequences = [
            eng.submit(ResolvedRequest([1 + i, 5, 9, 7 * i + 2], each, Tally)) for i, each in enumerate(params)
        ]
        run(eng, *sequences)
        assert (eng.snapshot().spec_accepted_tokens > 0) == drafts
        return [seq.tokens for seq in sequences]

    assert texts(drafts=True) == texts(drafts=False)


def test_the_longest_sequences_come_first() -> None:
    be = backends_here.backend("cuda")
    step = be.step_inputs(StepLimits(8, 6, 6, 4))
    step.counts[:], step.seq_lens[:, :4] = (4, 4, 4), (7, 30, 7, 12)
    step.device.upload(step)
    assert step.device.order.tolist() == [1, 3, 0, 2, 4, 5]
    step.counts[:] = (0, 0, 0)
    step.device.upload(step)
    assert step.device.order.tolist() == [0, 1, 2, 3, 4, 5]


WARMED = ["qwen3_moe", "qwen3_next", "granite4_h", "deepseek_v3"]  # experts, states of both kinds, latent keys


@pytest.mark.parametrize("case", WARMED)
def test_warming_leaves_no_trace(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be = backends_here.backend("cuda")
    monkeypatch.setattr(be, "wants_warming", lambda: True)
    source = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case])))
    requested = EngineConfig(context_size=16, page_size=4, max_batch_size=2, kv_dtype="f32", prefill_chunk_size=4)
    eng = build_engine(be, load(source, be).decoder, requested)[0]
    if interprets():  # two sizes, and plans that have nothing to capture: steps take seconds
        monkeypatch.setattr("tahr.engine.step.sizes.N_FIRST_RUNS", 1)
        buckets = eng.steps.sizes.buckets[0]
        set_buckets(eng, (buckets[1], buckets[-1]), monkeypatch)

    def reply() -> list[int]:
        seq = eng.submit(ResolvedRequest([1, 5, 9, 2, 3], replace(REQUESTS[1], max_tokens=3), Tally))
        run(eng, seq)
        return seq.tokens

    wanted = reply()
    model = eng.executor.executed[0]
    model.plans, model.last, eng.steps.sizes = {}, None, StepSizes(eng.steps.sizes.buckets, 1)
    before = memory_of(eng), facts_of(eng)
    assert warm_all(eng) > 0 and (memory_of(eng), facts_of(eng)) == before
    assert model.plans.keys() == {(0, i, 0, 0) for i in range(len(model.buckets[0]))}
    assert reply() == wanted


@pytest.mark.parametrize(
    ("limits", "n_decode_tokens"),
    [
        (StepLimits(8448, 256, 576, 10), 1),  # a server's
        (StepLimits(8704, 256, 1344, 10), 4),
        (StepLimits(4097, 1, 66, 10), 1),
        (StepLimits(20, 4, 72, 10), 1),
        (StepLimits(64, 2, 64, 10), 1),
    ],
)
def test_buckets_hold_every_step_closely(limits: StepLimits, n_decode_tokens: int) -> None:
    found = backends_here.backend("cuda").buckets(limits, n_decode_tokens)
    assert len(found) == len(set(found)) <= 200
    assert all(each.n_seqs <= each.n_tokens and each.n_rows <= each.n_tokens for each in found)
    rng = np.random.default_rng(1)
    for _ in range(2000):
        n = int(rng.integers(1, limits.n_tokens + 1))
        n_seqs = int(rng.integers(1, min(n, limits.n_seqs) + 1))
        n_rows = int(rng.integers(1, min(n, limits.n_rows) + 1))
        bucket = next(each for each in found if each.hold(n, n_rows, n_seqs, n))
        is_sampled = n_rows <= n_seqs
        assert bucket.n_tokens <= (n + max(128, n // 16) if n >= 1024 and is_sampled else max(16, 2 * n))
        if n_seqs == 1 and is_sampled and n <= 4096:
            assert bucket.n_seqs == bucket.n_rows == 1 or bucket.n_rows == n_decode_tokens
        if is_sampled:
            assert bucket.n_rows <= limits.n_seqs * n_decode_tokens, "logits are made of rows that nobody wants"


LENGTHS = [(70,), (3, 40, 65)] if interprets() else [(1500,), (90, 3, 300, 700, 41), (200,) * 20]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("most", [1, 32], ids=["one split of many tiles", "many splits"])
def test_the_fastest_way_gives_the_logits_of_the_deterministic_one(
    lengths: tuple[int, ...], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding joins ops that a deterministic backend runs one by one; texts here are longer than a tile of keys."""
    from tahr.backends.cuda.kernels import attention

    monkeypatch.setattr(attention, "SPLITS", {1 << 31: attention.Splits(most, 1)})
    config = {**CASES["llama"], "num_hidden_layers": 2, "max_position_embeddings": 2048}
    source, rng = open_model([], write_hf(tmp_path, config, make_weights(config))), np.random.default_rng(1)
    prompts = [rng.integers(1, 120, n).tolist() for n in lengths]

    def logits(deterministic: bool) -> dict[tuple[int, int], bytes]:
        be = backends_here.backend("cuda", deterministic)
        requested = EngineConfig(context_size=2048, page_size=16, max_batch_size=len(prompts), kv_dtype="f32")
        eng = build_engine(be, load(source, be).decoder, requested)[0]
        return logits_of(eng, *(submit(eng, prompt, greedy(3)) for prompt in prompts))

    wanted, found = logits(deterministic=True), logits(deterministic=False)
    assert len(wanted) == 3 * len(prompts) and wanted.keys() == found.keys()
    for place, row in wanted.items():
        exact, fast = np.frombuffer(row, np.float32), np.frombuffer(found[place], np.float32)
        assert np.linalg.norm(fast - exact) <= 1e-3 * np.linalg.norm(exact), place


SMOLLM2 = {**CASES["llama"], "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
           "num_key_value_heads": 3, "vocab_size": 512, "tie_word_embeddings": True}  # fmt: skip
STEADY_CASES = [
    (SMOLLM2, "bf16"),
    (SMOLLM2, "q8_0"),
    (SMOLLM2, "fp8"),
    *((CASES[name], "bf16") for name in ("qwen3_moe", "gemma3")),
]
PROMPTS = [[1 + (i * i * k + 3 * i) % 120 for i in range(n)] for k, n in [(7, 90), (5, 9), (11, 40), (3, 61)]]


def logits_by_request(eng: Engine, prompts: list[list[int]]) -> list[dict[int, bytes]]:
    found = logits_of(eng, *(submit(eng, prompt, greedy(12)) for prompt in prompts))
    return [{at: row for (i, at), row in found.items() if i == place} for place in range(len(prompts))]


@pytest.mark.skipif(interprets(), reason="Triton's interpreter cannot multiply bf16")
@pytest.mark.parametrize(("config", "kv_dtype"), STEADY_CASES)
def test_bf16_requests_are_alone_in_any_batch(config: Config, kv_dtype: str, tmp_path: Path) -> None:
    """All logits of twenty requests, to the last bit: batched, in chunks, from the prefix cache."""
    be = backends_here.backend("cuda", deterministic=True)
    loaded = load(open_model([], write_hf(tmp_path, config, make_weights(config), "BF16")), be)

    def make(chunk: int, cached: bool) -> Engine:
        requested = EngineConfig(context_size=128, page_size=8, kv_dtype=kv_dtype, prefill_chunk_size=chunk,
                             max_batch_size=20, prefix_cache=cached)  # fmt: skip
        return build_engine(be, loaded.decoder, requested)[0]

    single = make(512, cached=False)
    wanted = [logits_by_request(single, [prompt])[0] for prompt in PROMPTS] * 5
    assert logits_by_request(make(512, cached=False), PROMPTS * 5) == wanted
    cutting = make(7, cached=True)
    assert logits_by_request(cutting, PROMPTS * 5) == wanted
    assert logits_by_request(cutting, PROMPTS * 5) == wanted
    assert cutting.snapshot().prefix_tokens_reused > 0

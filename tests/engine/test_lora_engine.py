"""Adapters in an engine: many in one batch, each as if it were alone; loaded and removed while requests run."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import assets
from engines import alone, engine, greedy, here, loaded, run, submit
from lora_files import peft_tensors, random_adapter, write_peft
from tahr.backends.api import LoraRows
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.adapter_stack import NO_STACK, AdapterStack
from tahr.engine.step.adapter_rows import write
from tahr.errors import ConfigError, TahrError
from tahr.executor.output import Output
from tahr.executor.plans import PlanKey
from tahr.library.embeddings import EmbeddingJob
from tahr.models.lora import Adapter, AdapterTarget

PROMPTS = [[1 + (7 * i + j) % 500 for j in range(5 + 3 * i)] for i in range(16)]


@pytest.fixture(scope="module")
def path() -> Path:
    return assets.stories()


def target_of(path: Path) -> AdapterTarget:
    decoder = loaded(path)[0].decoder
    return AdapterTarget("stories", decoder.config, decoder.linears)


def add(eng: Engine, path: Path, name: str, seed: int, scale: float = 1.0, strength: float = 0.5) -> None:
    adapter = random_adapter(target_of(path), seed, rank=2 + seed, strength=strength)
    data = eng.executor.adapters.bring(adapter)
    eng.adapters.add(name, data, scale)


def adapted_engine(path: Path, n: int, **options: object) -> Engine:
    eng = engine(path, **options)
    for i in range(n):
        add(eng, path, f"a{i}", seed=i)
    return eng


def with_lora(lora: object, **options: object) -> SamplingParams:
    return greedy(lora=lora, **options)


def alone_with(path: Path, prompt: list[int], lora: object, n: int = 8, **options: object) -> list[int]:
    eng = adapted_engine(path, n, prefix_cache=False)
    return run(eng, submit(eng, prompt, with_lora(lora, **options)))[0]


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_eight_adapters_and_the_base_in_one_batch(path: Path, late: bool) -> None:
    """Each of 16 replies is the one its adapter gives alone; replies without adapter are those of a bare engine."""
    eng = adapted_engine(path, 8, late=late)
    loras = [f"a{i % 9}" if i % 9 < 8 else () for i in range(16)]
    replies = run(eng, *(submit(eng, p, with_lora(lora)) for p, lora in zip(PROMPTS, loras, strict=True)))
    for prompt, lora, reply in zip(PROMPTS, loras, replies, strict=True):
        assert reply == (alone_with(path, prompt, lora) if lora else alone(path, prompt))
    assert len({tuple(reply) for reply in replies}) > 8, "the adapters do something"


def test_stacks_add_up_with_their_scales(path: Path) -> None:
    eng = adapted_engine(path, 4)
    stacks = [
        (),
        "a1",
        [("a1", 0.5)],
        [("a1", 1.0), ("a2", -0.5)],
        ["a0", "a1", "a2", "a3"],
        [("a1", 0.0)],
        ["a2", "a1"],
    ]
    replies = run(eng, *(submit(eng, PROMPTS[3], with_lora(stack)) for stack in stacks))
    for stack, reply in zip(stacks, replies, strict=True):
        assert reply == alone_with(path, PROMPTS[3], stack, n=4)
    assert replies[5] == replies[0], "an adapter scaled by 0 changes nothing"
    assert len({tuple(reply) for reply in replies}) >= 5


def test_a_stack_is_the_sum_of_its_parts(path: Path) -> None:
    """In either order, but for the last bits."""
    one, two = (random_adapter(target_of(path), seed, rank=3) for seed in (1, 2))

    def states(parts: list[tuple[Adapter, float]]) -> np.ndarray:
        eng = engine(path, kv_dtype="f32")  # keys are not rounded, which would make more of the last bits
        for i, (adapter, _) in enumerate(parts):
            data = eng.executor.adapters.bring(adapter)
            eng.adapters.add(f"p{i}", data)
        taken: list[np.ndarray] = []
        lora = [(f"p{i}", scale) for i, (_, scale) in enumerate(parts)]
        seq = eng.submit_rows(PROMPTS[2], lambda got: taken.append(got.copy()), Output.HIDDEN, 0, lora=lora)
        while not seq.done:
            eng.step()
        return np.concatenate(taken)

    found = states([(one, 1.0), (two, 0.5)]), states([(two, 0.5), (one, 1.0)])
    np.testing.assert_allclose(*found, rtol=0, atol=1e-4)
    assert np.abs(found[0] - states([(one, 1.0)])).max() > 0.01


def test_preempted_chunked_and_forked_requests_keep_their_adapter(path: Path) -> None:
    params = with_lora("a2", max_tokens=40)
    tiny = adapted_engine(path, 3, prefill_chunk_size=4, max_batch_size=4, context_size=96, kv_bytes=1 << 19)
    several = [submit(tiny, prompt, params) for prompt in PROMPTS[:6]] + [submit(tiny, PROMPTS[6], greedy(40))]
    replies = run(tiny, *several)
    assert replies[:6] == [alone_with(path, prompt, "a2", max_tokens=40) for prompt in PROMPTS[:6]]
    assert replies[6] == alone(path, PROMPTS[6], greedy(40))
    both = submit(tiny, PROMPTS[1], with_lora("a1", n=3))
    run(tiny, both, *both.queueing.forks)
    wanted = alone_with(path, PROMPTS[1], "a1")
    assert [seq.tokens[seq.n_prompt :] for seq in (both, *both.queueing.forks)] == [wanted] * 3


# ---- the prefix cache -----------------------------------------------------------------------------------------


def test_the_prefix_cache_never_mixes_adapters(path: Path) -> None:
    """Base, adapter, scaled adapter, another adapter under the same name: no page of one serves the other."""
    eng, prompt = adapted_engine(path, 2), PROMPTS[15]
    wanted = {lora: alone_with(path, prompt, lora, n=2) for lora in ((), "a0", "a1", (("a0", 0.5),))}
    for _ in range(2):
        for lora, reply in wanted.items():
            seq = submit(eng, prompt, with_lora(lora))
            assert run(eng, seq) == [reply]
    assert seq.result.stats.n_cached_tokens > 0, "the same stack does share"
    eng.adapters.remove("a0")
    add(eng, path, "a0", seed=5)
    seq = submit(eng, prompt, with_lora("a0"))
    reply = run(eng, seq)[0]
    assert seq.result.stats.n_cached_tokens == 0 and reply != wanted["a0"]
    eng.adapters.remove("a0")
    add(eng, path, "a0", seed=0)
    seq = submit(eng, prompt, with_lora("a0"))
    assert run(eng, seq) == [wanted["a0"]] and seq.result.stats.n_cached_tokens > 0, "the digest counts, not the name"


# ---- loading and removing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_a_removed_adapter_finishes_its_requests_first(path: Path, late: bool) -> None:
    eng = adapted_engine(path, 2, max_batch_size=2, late=late)
    running = [submit(eng, prompt, with_lora("a1", max_tokens=20)) for prompt in PROMPTS[:4]]  # two of them wait
    for _ in range(3):
        eng.step()
    removed = eng.adapters.remove("a1")
    assert [a.name for a in eng.adapters.loaded()] == ["a0"]
    with pytest.raises(ConfigError, match="no adapter 'a1'"):
        submit(eng, PROMPTS[0], with_lora("a1"))
    add(eng, path, "a1", seed=7)  # the old one still has its slot
    other = submit(eng, PROMPTS[5], with_lora("a1", max_tokens=20))
    assert removed.n_users == 4
    replies = run(eng, *running, other)
    assert replies[:4] == [alone_with(path, prompt, "a1", max_tokens=20) for prompt in PROMPTS[:4]]
    assert removed.n_users == 0 and removed.slot in eng.adapters._free
    assert eng.adapters.n_used == 0


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_all_texts_of_a_job_are_embedded_with_the_adapter_it_began_with(
    path: Path, replaced: bool, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tahr.library.embeddings.MAX_QUEUED", 3)  # the others are queued one by one
    found = []
    for changes in (False, True):
        eng = adapted_engine(path, 2, max_batch_size=2, late=late)
        job = EmbeddingJob(eng, PROMPTS, lora="a1")
        for _ in range(3):
            eng.step()
        if changes:
            old = eng.adapters.remove("a1")
        if changes and replaced:
            add(eng, path, "a1", seed=7)
        while not job.finished or eng.busy:
            eng.step()
        found.append(job.vectors())
    assert found[0].tolist() == found[1].tolist()
    assert old.n_users == 0 and old.slot in eng.adapters._free and eng.adapters.n_used == 0


def test_every_end_of_a_request_lets_its_adapter_go(path: Path) -> None:
    eng = adapted_engine(path, 1)
    (adapter,) = eng.adapters.loaded()
    cancelled, failing = submit(eng, PROMPTS[0], with_lora("a0", n=3)), submit(eng, PROMPTS[1], with_lora("a0"))
    rows = eng.submit_rows(PROMPTS[2], lambda got: None, lora="a0")
    assert adapter.n_users == 5
    eng.step()
    eng.abort(cancelled)
    eng.abort(failing, TahrError("It failed."))
    while not rows.done or eng.busy:
        eng.step()
    for fork in cancelled.queueing.forks:
        eng.abort(fork)
    assert adapter.n_users == 0 == eng.adapters.n_used


def test_thousands_of_adapters_are_refused_in_a_sentence(path: Path) -> None:
    eng = engine(path)
    adapter = random_adapter(target_of(path), 0, rank=1)
    prepared = eng.executor.adapters.bring(adapter)
    for i in range(512):
        eng.adapters.add(f"a{i}", prepared)
    with pytest.raises(ConfigError, match="512 adapters are loaded"):
        eng.adapters.add("one-more", prepared)
    one, last = submit(eng, PROMPTS[0], with_lora("a0")), submit(eng, PROMPTS[0], with_lora("a511"))
    replies = run(eng, one, last)
    assert replies[0] == replies[1]
    for i in range(512):
        eng.adapters.remove(f"a{i}")
    eng.adapters.add("one-more", prepared)


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "a:b", ".hidden", "x" * 65, "a b", "ü\n", "a\0"])
def test_names_are_plain_words(path: Path, name: str) -> None:
    eng = engine(path)
    with pytest.raises(ConfigError, match="cannot be called"):
        eng.adapters.add(name, eng.executor.adapters.bring(random_adapter(target_of(path), 0)))


@pytest.mark.parametrize(
    ("lora", "sentence"),
    [
        ("nobody", "no adapter 'nobody'"),
        (["a0"] * 5, "4 are the most"),
        ([("a0", float("nan"))], "must be the name"),
        ([("a0", float("inf"))], "must be the name"),
        ([("a0", "much")], "must be the name"),
        ([("a0", 1, 2)], "must be the name"),
        ([{"scale": 1}], "must be the name"),
        (7, "must be the name"),
        ([["a0", True]], "must be the name"),
    ],
)
def test_stacks_that_make_no_sense_are_refused(path: Path, lora: object, sentence: str) -> None:
    eng = adapted_engine(path, 1)
    with pytest.raises(ConfigError, match=sentence):
        submit(eng, PROMPTS[0], with_lora(lora))
    assert not eng.busy


def test_an_adapter_of_another_model_changes_nothing(path: Path, tmp_path: Path) -> None:
    eng = adapted_engine(path, 1)
    other = {name: replace_width(shape) for name, shape in target_of(path).linears.items()}
    folder = write_peft(tmp_path / "other", peft_tensors(other, 4, 1), r=4)
    with pytest.raises(TahrError, match="made for another model"):
        eng.adapters.prepare(folder)
    assert run(eng, submit(eng, PROMPTS[0])) == [alone(path, PROMPTS[0])]


def replace_width(shape: object) -> object:
    from dataclasses import replace

    return replace(shape, n_cols=shape.n_cols + 8)  # type: ignore[type-var,attr-defined]


# ---- steps ----------------------------------------------------------------------------------------------------


def adapted_plans(eng: Engine) -> dict[PlanKey, object]:
    """The plans of steps in which sequences have adapters, one for each size that was met."""
    return {key: plan for key, plan in eng.executor.executed[0].plans.items() if key[2]}


def test_steps_without_adapters_are_the_same_plans_as_before(path: Path) -> None:
    """Loaded adapters cost requests nothing that do not use them."""
    eng = adapted_engine(path, 3)
    run(eng, submit(eng, PROMPTS[0]))
    assert not adapted_plans(eng) and here().lora is None
    run(eng, submit(eng, PROMPTS[0], with_lora("a0")))
    before = adapted_plans(eng)
    assert before and {n_rounds for _, _, n_rounds, _ in before} == {1}
    add(eng, path, "wide", seed=40)  # a larger rank: steps are recorded again, and older plans are forgotten
    run(eng, submit(eng, PROMPTS[0], with_lora("wide")), submit(eng, PROMPTS[1], with_lora("a1")))
    after = adapted_plans(eng)
    assert after and not {id(plan) for plan in before.values()} & {id(plan) for plan in after.values()}


def test_rows_are_grouped_by_adapter_in_tiles() -> None:
    def stack(*parts: tuple[int, float]) -> AdapterStack:
        return AdapterStack((), parts)

    rows = LoraRows.empty(64)
    write(rows, [stack((2, 1.0)), NO_STACK, stack((1, 0.5), (2, 3.0)), stack((2, 0.25))], (20, 3, 2, 1))
    assert rows.n_tiles.tolist() == [3, 1, 0, 0]
    assert rows.tiles[0, :3].tolist() == [[1, 0, 2], [2, 2, 16], [2, 18, 5]]
    assert sorted(rows.rows[0, :2].tolist()) == [23, 24]
    assert sorted(rows.rows[0, 2:23].tolist()) == [*range(20), 25]
    scale_of = dict(zip(rows.rows[0, :23].tolist(), rows.scales[0, :23].tolist(), strict=True))
    assert scale_of[23] == 0.5 and scale_of[0] == 1.0 and scale_of[25] == 0.25
    assert rows.rows[1, :2].tolist() == [23, 24] and rows.scales[1, :2].tolist() == [3.0, 3.0]


def test_adapters_read_at_the_same_time_come_to_one_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eng = engine(path)
    made = eng.executor.backend.lora_bank

    def slow_bank(*args: object) -> object:
        time.sleep(0.05)
        return made(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(eng.executor.backend, "lora_bank", slow_bank)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(lambda: eng.executor.adapters.bank) for _ in range(4)]
    assert len({id(each.result()) for each in found}) == 1

"""Chats about images beside everything else an engine does: the same bits as alone, each family's tower."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from backends_here import NAMES, backend, kv_store
from chat_vision_cases import BANNED, CASES
from chat_vision_runs import checkpoint, engine_for, engine_of, loaded_on, submitted
from echo_executor import EchoExecutor
from engines import greedy
from lora_files import random_adapter
from lora_runs import target_of
from pseudo_tower import replies
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import AdapterError, ConfigError
from tahr.loading import builder
from tahr.models.loader import load, open_model

BACKEND = "cpu" if "cpu" in NAMES else "reference"
PROMPTS = ["between", "three", "first", "none", "last"]
ADAPTED = ["gemma3", "mistral3", "pixtral"]  # run with adapters of their text models
PATIENT = ["qwen3_5", "gemma3"]  # texts are let in when there is room for all of them, in states or windows
SHORT = greedy(12, logprobs=2, banned_tokens=BANNED)
Making = Callable[..., Engine]


def submit(engine: Engine, case: str, prompt: str, params: SamplingParams = SHORT) -> Sequence:
    return submitted(engine, case, prompt, loaded_on(case, BACKEND).config, params)


def alone(case: str, prompt: str, params: SamplingParams = SHORT, make: Making = engine_of) -> list[object]:
    """The reply of an engine that has seen nothing else."""
    engine = make(case, BACKEND, prefix_cache=False)
    return replies(engine, submit(engine, case, prompt, params))


def each_alone(case: str, params: SamplingParams = SHORT, make: Making = engine_of) -> list[object]:
    return [reply for prompt in PROMPTS for reply in alone(case, prompt, params, make)]


def pages(case: str, n: int) -> int:
    """Memory of so many pages."""
    shapes = loaded_on(case, BACKEND).decoder.memory
    return n * kv_store(backend(BACKEND), shapes, [1], 8, "f32").n_bytes


@pytest.mark.parametrize("n_tokens", [7, 64, 512])
@pytest.mark.parametrize("case", CASES)
def test_chunks_of_a_batch(case: str, n_tokens: int) -> None:
    engine = engine_of(case, BACKEND, prefill_chunk_size=n_tokens)
    assert replies(engine, *(submit(engine, case, prompt) for prompt in PROMPTS)) == each_alone(case)


@pytest.mark.parametrize("case", CASES)
def test_hits_before_inside_and_behind_images(case: str) -> None:
    """Of all pages, of those that have not been dropped, and of none."""
    engine = engine_of(case, BACKEND, kv_bytes=pages(case, 24), context_size=128)
    for _ in range(3):
        for prompt in PROMPTS:
            assert replies(engine, submit(engine, case, prompt)) == alone(case, prompt)


@pytest.mark.parametrize("case", [case for case in CASES if case not in PATIENT])
def test_preempted_chats(case: str) -> None:
    longer = replace(SHORT, max_tokens=40)
    engine = engine_of(case, BACKEND, kv_bytes=pages(case, 18), context_size=128, prefill_chunk_size=16)
    assert replies(engine, *(submit(engine, case, prompt, longer) for prompt in PROMPTS)) == each_alone(case, longer)
    assert engine.snapshot().preemptions


@pytest.mark.parametrize("case", PATIENT)
def test_preempted_chats_of_layers_with_states(case: str) -> None:
    """Only a test takes away the room that these were given."""
    engine = engine_of(case, BACKEND, prefill_chunk_size=16)
    asked = [submit(engine, case, prompt) for prompt in PROMPTS]
    for _ in range(6):
        for _ in range(4):
            engine.step()
        if engine.scheduler.running:
            engine.scheduler._preempt(engine.scheduler.running[0])  # as when pages run out
    assert replies(engine, *asked) == each_alone(case)
    assert engine.scheduler.n_preempted >= 4


@pytest.mark.parametrize("case", CASES)
def test_choices(case: str) -> None:
    three = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=7, n=3, logprobs=1)
    engine = engine_of(case, BACKEND)
    assert replies(engine, *(submit(engine, case, prompt, three) for prompt in PROMPTS)) == each_alone(case, three)


@pytest.mark.parametrize("case", CASES)
def test_guesses_from_the_text(case: str) -> None:
    """Models whose layers keep states refuse them, with images or without."""
    if case == "qwen3_5":
        with pytest.raises(ConfigError, match="leave speculation out"):
            engine_of(case, BACKEND, spec_ngram=True)
        return
    longer = replace(SHORT, max_tokens=80)
    engine = engine_of(case, BACKEND, spec_ngram=True)
    assert engine.speculator
    engine.speculator.adapts = False
    assert replies(engine, *(submit(engine, case, prompt, longer) for prompt in PROMPTS)) == each_alone(case, longer)
    assert engine.snapshot().spec_accepted_tokens


@pytest.mark.parametrize("case", [case for case in CASES if case not in ADAPTED])
def test_adapters_are_refused(case: str) -> None:
    """Neither the tower nor its text model has been run with any."""
    family = loaded_on(case, BACKEND).config.family
    with pytest.raises(AdapterError, match=f"Tahr does not run adapters of {family} models yet"):
        random_adapter(target_of(loaded_on(case, BACKEND)), seed=3)


@pytest.mark.parametrize("case", ADAPTED)
def test_adapters_of_text_models_leave_towers_alone(case: str) -> None:
    """These are run with adapters of their text models; there are none of a tower."""
    target = target_of(loaded_on(case, BACKEND))
    assert not [name for name in target.linears if "vision" in name]
    adapter = random_adapter(target, seed=3)

    def adaptable(**options: object) -> Engine:
        loaded = load(open_model([], checkpoint(case)), backend(BACKEND, deterministic=True), lora_rows=4)
        engine = engine_for(loaded, BACKEND, **options)
        engine.adapters.add("a", engine.executor.adapters.bring(adapter))
        return engine

    asked = [replace(SHORT, lora=lora) for lora in ((), (("a", 1.0),))]
    engine = adaptable(prefill_chunk_size=16)
    found = replies(engine, *(submit(engine, case, "three", params) for params in asked))
    wanted = []
    for params in asked:
        single = adaptable(prefix_cache=False)
        wanted += replies(single, submit(single, case, "three", params))
    assert found == wanted and found[0] != found[1]


def test_rows_stay_with_the_salt_they_came_with() -> None:
    engine = engine_of("qwen3_vl", BACKEND)
    cached = []
    for salt in ("a", "b", "a"):
        seq = submit(engine, "qwen3_vl", "three", replace(SHORT, cache_salt=salt))
        assert replies(engine, seq) == alone("qwen3_vl", "three")
        cached.append(seq.result.stats.n_cached_tokens)
    assert cached[:2] == [0, 0] and cached[2] > 0


def test_two_models_in_turns() -> None:
    """Each has its own tower and its own rows, of the same images."""
    engines = {case: engine_of(case, BACKEND) for case in CASES}
    asked = {case: submit(engine, case, "three") for case, engine in engines.items()}
    while any(not seq.done for seq in asked.values()):
        for engine in engines.values():
            if engine.busy:
                engine.step()
    for case, engine in engines.items():
        assert replies(engine, asked[case]) == alone(case, "three")


@pytest.mark.parametrize("case", CASES)
def test_towers_run_behind_bytes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = each_alone(case)
    before = EchoExecutor.n_launched
    monkeypatch.setattr(builder, "LocalExecutor", EchoExecutor)
    engine = engine_of(case, BACKEND, prefill_chunk_size=16)
    assert replies(engine, *(submit(engine, case, prompt) for prompt in PROMPTS)) == wanted
    assert EchoExecutor.n_launched > before

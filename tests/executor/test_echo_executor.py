"""Steps that pass through bytes give the texts of steps that do not: nothing of the engine leaks into an executor."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_executor import PROGRAM, ROOT, EchoExecutor
from engines import engine, greedy, run, submit
from lora_files import random_adapter
from speculating import speculating
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.step.in_flight import InFlight
from tahr.executor.local import LocalExecutor
from tahr.library.embeddings import EmbeddingJob, Pooling
from tahr.loading import builder
from test_engine import prompts
from test_lora_engine import target_of

Kind = Callable[[Path, bool], object]


def texts(eng: Engine, sequences: list[Sequence]) -> object:
    run(eng, *sequences, *(fork for seq in sequences for fork in seq.queueing.forks))
    return [
        (seq.tokens, seq.result.logprobs, seq.result.prompt_logprobs)
        for seq in sequences
        for seq in (seq, *seq.queueing.forks)
    ]


def batched(path: Path, late: bool) -> object:
    eng = engine(path, late=late, prefill_chunk_size=7)
    return texts(eng, [submit(eng, prompt) for prompt in prompts(path)])


def preempted(path: Path, late: bool) -> object:
    longest = max(map(len, prompts(path))) + 16
    eng = engine(path, late=late, context_size=longest, max_batch_size=6, kv_bytes=1 << 16)
    found = texts(eng, [submit(eng, prompt) for prompt in prompts(path)])
    assert eng.snapshot().preemptions
    return found


def forked(path: Path, late: bool) -> object:
    eng = engine(path, late=late)
    sampled = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=7, n=3)
    return texts(eng, [submit(eng, prompts(path)[0], sampled), submit(eng, prompts(path)[1])])


def sampled(path: Path, late: bool) -> object:
    eng = engine(path, late=late)
    shared = {"temperature": 0.9, "max_tokens": 12, "ignore_eos": True, "seed": 3}
    options = [{"top_k": 20, "top_p": 0.9}, {"repetition_penalty": 1.3}, {"mirostat": 2}, {"logit_bias": {5: 3.0}}]
    requests = [SamplingParams(**shared, **each) for each in options]  # type: ignore[arg-type]
    return texts(eng, [submit(eng, prompt, each) for prompt, each in zip(prompts(path), requests, strict=False)])


def scored(path: Path, late: bool) -> object:
    eng = engine(path, late=late)
    return texts(eng, [submit(eng, prompt, greedy(8, logprobs=2, prompt_logprobs=1)) for prompt in prompts(path)[:3]])


def adapted(path: Path, late: bool) -> object:
    eng = engine(path, late=late)
    for seed in range(3):
        eng.adapters.add(f"a{seed}", eng.executor.adapters.bring(random_adapter(target_of(path), seed, rank=4)))
    requests = [greedy(lora=(("a0", 1.0),)), greedy(lora=(("a1", 0.5), ("a2", 1.0))), greedy()]
    return texts(eng, [submit(eng, prompt, each) for prompt, each in zip(prompts(path), requests, strict=False)])


def drafted(path: Path, late: bool, kind: str = "ngram") -> object:
    eng = speculating(path, kind, 3, late=late)
    return texts(eng, [submit(eng, prompt) for prompt in prompts(path)])


def drafted_by_a_model(path: Path, late: bool) -> object:
    return drafted(path, late, "another")


def embedded(path: Path, late: bool) -> object:
    eng = engine(path, late=late, prefill_chunk_size=16)
    job = EmbeddingJob(eng, prompts(path), Pooling.MEAN)
    replies = texts(eng, [submit(eng, prompts(path)[0])])
    while not job.finished:
        eng.step()
    return replies, job.vectors().tobytes()


KINDS = [batched, preempted, forked, sampled, scored, adapted, drafted, drafted_by_a_model, embedded]


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_bytes_give_the_same_texts(stories: Path, kind: Kind, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = kind(stories, late)
    made: list[EchoExecutor] = []

    def echoing(*args: object, **options: object) -> EchoExecutor:
        made.append(EchoExecutor(*args, **options))
        return made[-1]

    monkeypatch.setattr(builder, "LocalExecutor", echoing)
    assert kind(stories, late) == wanted
    assert sum(each.n_echoes for each in made) > 5


@pytest.mark.parametrize("kind", [LocalExecutor, EchoExecutor])
def test_three_steps_of_different_sequences_in_flight_give_the_texts_of_one(
    stories: Path, kind: type[LocalExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = engine(stories)
    wanted = run(plain, *(submit(plain, prompt) for prompt in prompts(stories)))
    monkeypatch.setattr(builder, "LocalExecutor", kind)
    eng = engine(stories, late=True, max_batch_size=6, max_decode_batch=1, max_prefill_batch=1)
    eng.n_in_flight = 2  # beside the one that is launched
    launch, widths = eng.steps.launch, []

    def watched(step: InFlight, *rest: object) -> None:
        """Note how many different sequences are in flight, this step's among them."""
        widths.append(len({seq.id for each in (*eng._in_flight, step) for seq in each.work.sequences}))
        launch(step, *rest)  # type: ignore[arg-type]

    eng.steps.launch = watched  # type: ignore[method-assign]
    sequences = [submit(eng, prompt) for prompt in prompts(stories)]
    assert run(eng, *sequences) == wanted
    assert widths.count(3) > len(widths) / 2 and eng.executor.facts.overlaps


def test_adapter_rows_of_a_step_that_was_never_launched_are_sent_again(
    stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(fails: bool) -> list[int]:
        eng = engine(stories, prefix_cache=False)
        eng.adapters.add("a", eng.executor.adapters.bring(random_adapter(target_of(stories), 1, rank=4)))
        eng.adapters.apply(eng.adapters.stack([("a", 1.0)]))
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(eng.steps.sampler, "prepare", lambda *_: 1 / 0)
                lost = submit(eng, prompts(stories)[0])
                eng.step()
                assert lost.result.error
        return run(eng, submit(eng, prompts(stories)[0]))[0]

    wanted = reply(fails=False)
    monkeypatch.setattr(builder, "LocalExecutor", EchoExecutor)
    assert reply(fails=True) == wanted


def test_bytes_are_decoded_where_a_machine_adds_to_python(tmp_path: Path) -> None:
    """Systems have modules that every interpreter imports: they are none that the records need."""
    (tmp_path / "sitecustomize.py").write_text("import only_here")
    (tmp_path / "only_here.py").write_text("")
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, str(PROGRAM)], env=environ, input=b"", check=True)

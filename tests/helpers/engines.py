"""Engines around a real small model, in any shape a test wants."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from pytest import MonkeyPatch

from backends_here import NAMES, backend, kv_store
from late_backend import LateBackend, blank_free_pages
from tahr.backends.api import Backend, Tensor
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.executor.protocol import StepRequest
from tahr.loading.builder import build_engine
from tahr.models.loader.load import Loaded, load, open_model
from tahr.text.tokens.tokenizer import Tokenizer

BACKEND = "cpu" if "cpu" in NAMES else NAMES[0]


def here() -> Backend:
    """What engines run on in tests: replies are compared to the last token, so it is deterministic."""
    return backend(BACKEND, deterministic=True)


class Tally:
    """A writer that counts; `fault` is called with each token and may raise."""

    stopped = is_cut = False
    forced: tuple[int, ...] = ()
    n_reasoning_tokens = 0
    matched_stop: str | None = None

    def __init__(self, fault: Callable[[int], object] = lambda token: None):
        self.fault = fault

    def push(self, token: int) -> tuple[str, ...]:
        self.fault(token)
        return (f"{token} ",)

    def flush(self) -> tuple[str, ...]:
        return ()


@cache
def loaded(path: Path) -> tuple[Loaded, Tokenizer]:
    source = open_model([path])
    return load(source, here()), Tokenizer.from_gguf(source.config)


def engine(path: Path, late: bool = False, **options: object) -> Engine:
    """An engine of its own for every test; the model is loaded once. A `late` one has steps in flight, as a GPU has."""
    config = EngineConfig(**{"context_size": 256, "page_size": 8, **options})  # type: ignore[arg-type]
    device = LateBackend(here()) if late and not here().overlaps else here()
    return build_engine(device, loaded(path)[0].decoder, config)[0]  # type: ignore[arg-type]


def watch_steps(eng: Engine, watch: Callable[[StepWork, Tensor], Tensor], patch: Callable[..., None] = setattr) -> None:
    """From now on `watch` gets what each step computed and its logits; the engine goes on with what it returns."""
    fill, replay = eng.steps.fill, eng.executor.run
    filled: list[StepWork] = []

    def noted(work: StepWork, *args: bool) -> StepRequest:
        filled[:] = [work]
        return fill(work, *args)

    patch(eng.steps, "fill", noted)
    patch(eng.executor, "run", lambda plan: watch(filled[0], replay(plan)))


def poison(eng: Engine, is_victim: Callable[[Sequence], bool], patch: Callable[..., None] = setattr) -> None:
    """From now on the model says nonsense to some sequences."""
    backend = eng.executor.backend

    def poisoned(work: StepWork, result: Tensor) -> Tensor:
        logits, at = np.array(backend.read(result)), 0
        for seq, n_rows in zip(work.sequences, work.n_rows, strict=True):
            if is_victim(seq):
                logits[at : at + n_rows] = np.nan
            at += n_rows
        return backend.tensor(logits)

    watch_steps(eng, poisoned, patch)


def logits_of(eng: Engine, *sequences: Sequence) -> dict[tuple[int, int], bytes]:
    """Every row of logits while these run, by place in the list of sequences and position."""
    rows: dict[tuple[int, int], bytes] = {}
    places = {seq.id: place for place, seq in enumerate(sequences)}

    def kept(work: StepWork, result: Tensor) -> Tensor:
        logits, at = np.array(eng.executor.backend.read(result)), 0
        for seq, begin, n, _, n_rows in work:
            for row in range(n_rows):
                rows[places[seq.id], begin + n - n_rows + row] = logits[at + row].tobytes()
            at += n_rows
        return result

    with MonkeyPatch.context() as patch:
        watch_steps(eng, kept, patch.setattr)
        run(eng, *sequences)
    return rows


def page_bytes(path: Path, page_size: int = 8, dtype: str | None = None) -> int:
    """What a page of that many tokens takes, to ask for a pool of so many pages."""
    shapes = loaded(path)[0].decoder.memory
    return kv_store(here(), shapes, [1], page_size, dtype or here().kv_dtypes[0]).n_bytes


def greedy(max_tokens: int = 16, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)  # type: ignore[arg-type]


def submit(eng: Engine, prompt: list[int], params: SamplingParams | None = None) -> Sequence:
    return eng.submit(ResolvedRequest(prompt, params or greedy(), Tally))


def run(eng: Engine, *sequences: Sequence) -> list[list[int]]:
    """The replies, once all are there; pages are checked after every step."""
    while not all(seq.done for seq in sequences) or (eng.busy and not eng.scheduler.has_work):
        eng.step()
        for group, pool in enumerate(eng.scheduler.pools):
            pool.check(seq.memory.tables[group].held for seq in eng.scheduler.running)
        if isinstance(eng.executor.backend, LateBackend):
            blank_free_pages(eng)
    for seq in sequences:
        if seq.result.error:
            raise seq.result.error
    return [seq.tokens[seq.n_prompt :] for seq in sequences]


def alone(path: Path, prompt: list[int], params: SamplingParams | None = None) -> list[int]:
    """The reply of an engine that has never seen anything else."""
    eng = engine(path, prefix_cache=False)
    return run(eng, submit(eng, prompt, params))[0]

"""Texts that constrained requests follow in place of a model, which random weights are not.

A model of random weights says what no model says, and a grammar's masks cost many times more there. So masks are
filled, sent and applied, tokens are sampled and collected as always, and then the next token of a text takes the
sampled one's place.
"""

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tahr.backends.sampling.sample_rows import SampledTokens
from tahr.engine.engine import Engine
from tahr.engine.sampling.sample_batch import SampleBatch
from tahr.engine.sampling.sampler import ReadyBatch
from tahr.engine.sampling.sampling_state import Sample, SampleRequest
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.step.steps import Steps
from tahr.executor.local import LocalExecutor
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.text.tokens.tokenizer import Tokenizer

WORDS = ["amber", "birch", "clay", "dune", "elm", "fern", "gorse", "heath", "iris", "kelp", "moss", "nettle", "quartz"]
N_LETTERS = 1000  # of a text that are encoded at once

Path = list[int]  # tokens


def records(seed: int) -> str:
    """Records as a model writes them; plain ASCII, so that a place in the text is one in its bytes."""
    rng = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))

    return json.dumps(
        [
            {"name": words(1, 3), "kind": rng.choice(["animal", "plant", "stone"]), "size": rng.randint(0, 1000),
             "note": words(8, 20)}
            for _ in range(60)
        ]
    )  # fmt: skip


def path_of(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, text: str, n: int) -> Path:
    """The first n tokens of a text as an engine generates them: forced ones where the grammar leaves no choice."""
    state = compiler.state(grammar)
    found: list[int] = []
    while len(found) < n:
        said = b"".join(map(tokenizer.token_bytes, found)).decode()
        for token in tokenizer.encode(text[len(said) :][:N_LETTERS], add_special=False, parse_special=False):
            state.advance(token)
            found.append(token)
            if forced := state.forced_tokens():
                for each in forced:
                    state.advance(each)
                found += forced
                break  # they may end inside a token of the text: the rest of it is encoded anew
    return found


@contextmanager
def following(paths: Mapping[int, Path]) -> Iterator[None]:
    """Requests with a path, by the identity of their sampling state, get its tokens instead of those sampled."""
    true_results = ReadyBatch.results

    def told(request: SampleRequest, sampled: Sample) -> Sample:
        path = paths.get(id(request.sampling))
        return path[len(request.tokens) - request.n_prompt] if path else sampled

    def results(ready: ReadyBatch, sampled: SampledTokens) -> list[Sample]:
        return list(map(told, ready.batch.requests, true_results(ready, sampled)))

    ReadyBatch.results = results  # type: ignore[method-assign]
    try:
        yield
    finally:
        ReadyBatch.results = true_results  # type: ignore[method-assign]


def parts_of_step() -> dict[str, tuple[Any, str]]:
    """The parts of an engine's step on the host, in the order of their time, as methods."""
    return {
        "waits for the device": (LocalExecutor, "collect"),
        "accepts tokens": (Engine, "_hand_out"),
        "begins masks": (Steps, "begin_masks"),
        "schedules": (Scheduler, "schedule"),
        "fills the inputs": (Steps, "fill"),
        "waits for masks": (SampleBatch, "finish_masks"),
        "begins to sample": (LocalExecutor, "sample"),
        "launches the forward pass": (LocalExecutor, "launch"),
        "the rest": (Engine, "step"),
    }

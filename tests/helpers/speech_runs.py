"""Tiny models that write down recordings, on an engine: what they make of frames and of a prompt."""

from functools import cache
from pathlib import Path

import numpy as np

import backends_here
from folders import new_folder
from model_files import write_hf
from speech_cases import CASES, frames_of, make_weights, next_token
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows, RowSource, rows_of_input
from tahr.engine.sequences.sequence import Sequence
from tahr.loading.builder import build_engine
from tahr.models.loader import Loaded, load, open_model
from tahr.speech.audio.rows import input_rows


@cache
def checkpoint(case: str) -> Path:
    return write_hf(new_folder("speech"), CASES[case], make_weights(case))


@cache
def loaded_on(case: str, name: str, quantize: str | None = None) -> Loaded:
    return load(open_model([], checkpoint(case)), backends_here.backend(name, deterministic=True), quantize=quantize)


def engine_of(case: str, name: str, **settings: object) -> Engine:
    backend = backends_here.backend(name, deterministic=True)
    config = EngineConfig(**{"page_size": 8, "kv_dtype": "f32", **settings})  # type: ignore[arg-type]
    return build_engine(backend, loaded_on(case, name).decoder, config)[0]


def recording(case: str, seed: int = 3) -> PromptRows:
    source = RowSource(input_rows(frames_of(case, seed)))
    return rows_of_input(bytes([seed]) * 16, source)


class Greedy:
    """The likeliest tokens after a prompt, and the logits of all."""

    def __init__(self, engine: Engine, prompt: list[int], rows: PromptRows, n_new: int):
        self.logits: list[np.ndarray] = []
        self.n_new = n_new
        self.sequence: Sequence = engine.submit_rows(prompt, self._take, first_row=0, rows=rows)

    def _take(self, rows: np.ndarray) -> None:
        self.logits += [row.copy() for row in rows]
        tokens = self.sequence.tokens
        if len(self.logits) == len(tokens) and self.sequence.n_generated < self.n_new - 1:
            tokens.append(next_token(rows[-1], tokens))

    @property
    def tokens(self) -> list[int]:
        return [*self.sequence.tokens, next_token(self.logits[-1], self.sequence.tokens)]


def run(engine: Engine, *texts: Greedy) -> None:
    while not all(text.sequence.done for text in texts):
        engine.step()
    for text in texts:
        if text.sequence.result.error:
            raise text.sequence.result.error

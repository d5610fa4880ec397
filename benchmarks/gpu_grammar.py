"""Constrained beside free requests on a GPU: a Qwen3 shape with random bf16 weights and Qwen's vocabulary.

usage: benchmarks/gpu_grammar.py VOCAB.gguf [0.6B|8B] [N]      (N requests at once, default 64)

VOCAB.gguf is a GGUF with a vocabulary of 151,936 tokens or fewer (`ggml-vocab-qwen2.gguf` of the tests' data).

A model of random weights says what no model says, and a grammar's masks cost many times more there. So the constrained
requests follow texts of their own: masks are filled, sent and applied, tokens are sampled and collected as always, and
then the next token of the text takes the sampled one's place. Beside them stand the same requests without texts.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_cells import N_VOCAB, PLAIN, SHAPES, RandomBackend, make_decoder
from grammar import RECORDS, tokenizer_of
from silent import Silent
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.builder import build_engine
from tahr.engine.engine import Engine
from tahr.engine.sampler import PendingTokens, SampledToken, SampleRequest
from tahr.errors import TahrError
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.text.tokenizer import Tokenizer

N_IN, N_OUT, N_ROUNDS = 256, 128, 4
WORDS = ["amber", "birch", "clay", "dune", "elm", "fern", "gorse", "heath", "iris", "kelp", "moss", "nettle", "quartz"]


@dataclass
class Text:
    """A text that a request follows, and how far it has come."""

    tokenizer: Tokenizer
    text: str
    by_offset: dict[int, tuple[int, int]] = field(default_factory=dict)  # the token that begins at a place, and its end
    offset: int = 0
    n_tokens: int = 0
    told: int = -1

    def __post_init__(self) -> None:
        self.plan()

    def plan(self) -> None:
        at = self.offset
        for token in self.tokenizer.encode(self.text[at:], add_special=False, parse_special=False):
            end = at + len(self.tokenizer.token_bytes(token))
            self.by_offset[at] = token, end
            at = end

    def next(self, tokens: ListOf[int], n_prompt: int) -> int:
        """The token after those generated, of which some may have been forced."""
        n_tokens = len(tokens) - n_prompt
        if n_tokens == self.n_tokens + 1 and tokens[-1] == self.told:
            self.offset = self.by_offset[self.offset][1]
        else:
            for token in tokens[n_prompt + self.n_tokens :]:
                self.offset += len(self.tokenizer.token_bytes(token))
            if self.offset not in self.by_offset:  # forced tokens ended inside one of the text's
                self.plan()
        self.n_tokens = n_tokens
        self.told = self.by_offset[self.offset][0]
        return self.told


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


@contextmanager
def following(texts: dict[int, Text]) -> Iterator[None]:
    """Requests with a text, by the identity of their random numbers' state, say what it says."""
    true_collect = PendingTokens.collect

    def told(request: SampleRequest) -> SampledToken | None:
        text = texts.get(id(request.sampling))
        return SampledToken(text.next(request.tokens, request.n_prompt)) if text else None

    def collect(pending: PendingTokens) -> list[SampledToken | TahrError]:
        said = list(map(told, pending._batch.requests))  # while the device computes: a model needs no such lookup
        return [text or sampled for text, sampled in zip(said, true_collect(pending), strict=True)]

    PendingTokens.collect = collect  # type: ignore[method-assign]
    try:
        yield
    finally:
        PendingTokens.collect = true_collect  # type: ignore[method-assign]


def rate(
    engine: Engine,
    compiler: GrammarCompiler,
    params: SamplingParams,
    n_requests: int,
    tokenizer: Tokenizer | None = None,
) -> tuple[float, float]:
    """Tokens per second of requests submitted at once, and tokens per sequence and step; with a tokenizer, of texts."""
    rng = np.random.default_rng(time.perf_counter_ns())
    prompts = rng.integers(0, 100_000, (n_requests, N_IN)).tolist()
    states = [compiler.state(params.grammar) if params.grammar else None for _ in prompts]
    n_steps = engine.scheduler.n_steps
    sequences = [engine.submit(prompt, params, Silent, state) for prompt, state in zip(prompts, states, strict=True)]
    requests = [seq.request for seq in sequences if seq.request and tokenizer]
    with following({id(r.sampling): Text(tokenizer, records(i)) for i, r in enumerate(requests) if tokenizer}):
        began = time.perf_counter()
        while not all(seq.done for seq in sequences):
            engine.step()
    for seq in sequences:
        if seq.error:
            raise seq.error
    n_tokens = sum(seq.n_generated for seq in sequences)
    return n_tokens / (time.perf_counter() - began), n_tokens / n_requests / (engine.scheduler.n_steps - n_steps)


def main(vocabulary: str, shape: str = "0.6B", n: str = "64") -> None:
    n_requests = int(n)
    tokenizer = tokenizer_of(vocabulary)
    assert tokenizer.n_vocab <= N_VOCAB, "the shape has fewer tokens than this vocabulary"
    backend = RandomBackend()
    decoder, _ = make_decoder(SHAPES[shape], backend)
    config = EngineConfig(context_size=1024, max_batch_size=n_requests, prefix_cache=False)
    engine, note = build_engine(backend, decoder, config, tokenizer.eos_ids, n_vocab=tokenizer.n_vocab)
    compiler = GrammarCompiler(tokenizer)
    print(note)
    free = replace(PLAIN, max_tokens=N_OUT)
    bound = replace(free, ignore_eos=False, grammar=Grammar("json_schema", RECORDS))
    loads = {"free": (free, None), "JSON records": (bound, tokenizer), "JSON of random tokens": (bound, None)}
    best: dict[str, tuple[float, float]] = {}
    for _ in range(N_ROUNDS):
        for name, (params, texts) in loads.items():
            best[name] = max(best.get(name, (0.0, 0.0)), rate(engine, compiler, params, n_requests, texts))
    for name, (found, per_step) in best.items():
        share = 100 * found / best["free"][0]
        print(f"{n_requests} requests, {name}: {found:.0f} tokens/s ({share:.1f} %), {per_step:.2f} tokens per step")
    compiler.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])

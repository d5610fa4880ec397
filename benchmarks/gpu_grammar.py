"""Constrained beside free requests on a GPU: a Qwen3 shape with random bf16 weights and Qwen's vocabulary.

usage: benchmarks/gpu_grammar.py VOCAB.gguf [0.6B|8B] [N]      (N requests at once, default 64)

VOCAB.gguf is a GGUF with a vocabulary of 151,936 tokens or fewer (`ggml-vocab-qwen2.gguf` of the tests' data).
"""

import sys
import time
from dataclasses import replace

import numpy as np

from gpu_cells import N_VOCAB, PLAIN, SHAPES, RandomBackend, make_decoder
from grammar import RECORDS, tokenizer_of
from silent import Silent
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.builder import build_engine
from tahr.engine.engine import Engine
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler

N_IN, N_OUT, N_ROUNDS = 256, 128, 4


def rate(engine: Engine, compiler: GrammarCompiler, params: SamplingParams, n_requests: int) -> tuple[float, float]:
    """Tokens per second of requests submitted at once, and tokens per sequence and step."""
    rng = np.random.default_rng(time.perf_counter_ns())
    prompts = rng.integers(0, 100_000, (n_requests, N_IN)).tolist()
    states = [compiler.state(params.grammar) if params.grammar else None for _ in prompts]
    began, n_steps = time.perf_counter(), engine.scheduler.n_steps
    sequences = [engine.submit(prompt, params, Silent, state) for prompt, state in zip(prompts, states, strict=True)]
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
    token_by_token = replace(bound, grammar=Grammar("regex", r"[^\n]{2000,4000}"))
    best: dict[str, tuple[float, float]] = {}
    for _ in range(N_ROUNDS):
        for name, params in (("free", free), ("JSON records", bound), ("a line of text", token_by_token)):
            best[name] = max(best.get(name, (0.0, 0.0)), rate(engine, compiler, params, n_requests))
    for name, (found, per_step) in best.items():
        share = 100 * found / best["free"][0]
        print(f"{n_requests} requests, {name}: {found:.0f} tokens/s ({share:.1f} %), {per_step:.2f} tokens per step")
    compiler.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])

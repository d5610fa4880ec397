"""Constrained beside free requests on a GPU: a Qwen3 shape with random bf16 weights and Qwen's vocabulary.

usage: benchmarks/gpu_grammar.py VOCAB.gguf [0.6B|8B] [N] [--parts]      (N requests at once, default 64)

VOCAB.gguf is a GGUF with a vocabulary of 151,936 tokens or fewer (`ggml-vocab-qwen2.gguf` of the tests' data).
--parts prints how long the parts of a step take, on the host and on the device, free and constrained.

The constrained requests follow texts of their own (see `told_texts.py`), or what a model of random weights says.
"""

import sys
import time
from dataclasses import replace

import numpy as np

from gpu_cells import N_VOCAB, PLAIN, SHAPES, RandomBackend, make_decoder
from grammar import RECORDS, tokenizer_of
from silent import Silent
from step_parts import DeviceParts, StepParts
from tahr.backends.cuda.sampling import CudaSampler, KeptFields
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.executor.local import LocalExecutor
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.loading.builder import build_engine
from told_texts import Path, following, parts_of_step, path_of, records

N_IN, N_OUT, N_ROUNDS = 256, 128, 4
SAMPLE_PARTS = {
    "sends fields and masks": (KeptFields, "send"),
    "launches the kernels of sampling": (CudaSampler, "_run"),
}
ON_DEVICE = {"forward pass": (LocalExecutor, "run"), "sample": (CudaSampler, "sample")}


def rate(
    engine: Engine,
    compiler: GrammarCompiler,
    params: SamplingParams,
    n_requests: int,
    paths: list[Path] | None = None,
    parts: StepParts | None = None,
) -> tuple[float, float]:
    """Tokens per second of requests submitted at once, and tokens per sequence and step; with paths, of their texts."""
    rng = np.random.default_rng(time.perf_counter_ns())
    prompts = rng.integers(0, 100_000, (n_requests, N_IN)).tolist()
    states = [compiler.state(params.grammar) if params.grammar else None for _ in prompts]
    n_steps = engine.scheduler.n_steps
    sequences = [
        engine.submit(ResolvedRequest(prompt, params, Silent), state)
        for prompt, state in zip(prompts, states, strict=True)
    ]
    requests = [seq.reply.request for seq in sequences if seq.reply.request]
    with following({id(r.sampling): path for r, path in zip(requests, paths or (), strict=False)}):
        began = time.perf_counter()
        while not all(seq.done for seq in sequences):
            engine.step()
            if parts:
                parts.end_step()
    for seq in sequences:
        if seq.result.error:
            raise seq.result.error
    n_tokens = sum(seq.n_generated for seq in sequences)
    return n_tokens / (time.perf_counter() - began), n_tokens / n_requests / (engine.scheduler.n_steps - n_steps)


def main(vocabulary: str, shape: str, n_requests: int, shows_parts: bool) -> None:
    tokenizer = tokenizer_of(vocabulary)
    assert tokenizer.n_vocab <= N_VOCAB, "the shape has fewer tokens than this vocabulary"
    backend = RandomBackend()
    decoder, _ = make_decoder(SHAPES[shape], backend)
    config = EngineConfig(context_size=1024, max_batch_size=n_requests, prefix_cache=False)
    engine, note = build_engine(backend, decoder, config, tokenizer.eos_ids, n_vocab=tokenizer.n_vocab)
    compiler, grammar = GrammarCompiler(tokenizer), Grammar("json_schema", RECORDS)
    print(note)
    free = replace(PLAIN, max_tokens=N_OUT)
    bound = replace(free, ignore_eos=False, grammar=grammar)
    paths = [path_of(compiler, tokenizer, grammar, records(i), 2 * N_OUT) for i in range(n_requests)]
    loads = {"free": (free, None), "JSON records": (bound, paths), "JSON of random tokens": (bound, None)}
    best: dict[str, tuple[float, float]] = {}
    for _ in range(N_ROUNDS):
        for name, (params, texts) in loads.items():
            best[name] = max(best.get(name, (0.0, 0.0)), rate(engine, compiler, params, n_requests, texts))
    for name, (found, per_step) in best.items():
        share = 100 * found / best["free"][0]
        print(f"{n_requests} requests, {name}: {found:.0f} tokens/s ({share:.1f} %), {per_step:.2f} tokens per step")
    for name, (params, texts) in loads.items() if shows_parts else ():
        host, device = StepParts(), DeviceParts()
        with host.watching(parts_of_step() | SAMPLE_PARTS):
            rate(engine, compiler, params, n_requests, texts, host)
        with device.watching(ON_DEVICE):
            rate(engine, compiler, params, n_requests, texts)
        print(f"{name}, on the host:\n{host.table()}\n{name}, on the device:\n{device.table()}")
    compiler.close()


if __name__ == "__main__":
    shows = "--parts" in sys.argv
    given = [each for each in sys.argv[1:] if each != "--parts"]
    if not given:
        sys.exit(__doc__)
    main(given[0], given[1] if given[1:] else "0.6B", int(given[2]) if given[2:] else 64, shows)

"""How much of what an engine gives reaches clients over HTTP, on a device that only takes time.

usage: benchmarks/served_share.py VOCAB.gguf [--clients 1,32,256] [--slower 1]      (PYTHONPATH says of which checkout)

Everything but the device is real: the engine, whose steps overlap, the server and `tahr bench-serve`. A step takes
about as long as one of a 0.6B model on an H200, times `--slower`. VOCAB.gguf is a GGUF with Qwen's vocabulary.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine_host import NullDecoder
from grammar_host import TimedBackend
from server_process import cpu_s
from tahr import LLM, AsyncLLM, SamplingParams
from tahr.backends.api import MemoryLayout, Plan, StepLimits, Tensor
from tahr.backends.sampling.sample_rows import SampledTokens, SampleRows
from tahr.engine.engine import Engine
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.executor.local import LocalExecutor
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache
from tahr.weights.formats import FORMATS
from tahr.weights.gguf import open_gguf
from tahr.weights.gguf_write import Entry, stored_metadata, write_gguf

PAGE_SIZE, N_PAGES_PER_SEQ, CONTEXT, N_SEQS = 32, 40, 1024, 256
N_IN, N_OUT = 256, 128  # tokens of a request, as of bench-serve
WIDTH, HEAD_DIM, N_VOCAB = 64, 32, 151936
STEP_S, DECODE_S, PREFILL_S, SAMPLE_S = 0.9e-3, 4e-6, 3e-6, 0.1e-3  # of a step; of each sequence and prompt token in it
N_CALLS = 6  # of torch and Triton in running a step, and in sampling, about: they let go of the interpreter's lock
SOME_IDS = (1000, 4000)  # as many words as texts have


class Device(TimedBackend):
    """Steps take their time by what is in them; tokens are random."""

    def __init__(self, slower: float):
        super().__init__(0.0, SAMPLE_S * slower)
        self._slower, self._rng = slower, np.random.default_rng(0)

    def record(self, step: object, inputs: Any) -> Plan:
        return DevicePlan(self, inputs, self._slower, self._result)

    def sample(self, logits: object, rows: SampleRows) -> "RandomSamples":  # type: ignore[override]
        let_go()
        return RandomSamples(self.take(self._sample_s), self._rng.integers(*SOME_IDS, len(rows), np.int32))


def let_go() -> None:
    """Let other threads have the interpreter, as calls of torch do: one that is busy keeps it for a while."""
    for _ in range(N_CALLS):
        time.sleep(0)


class DevicePlan:
    """A step whose time depends on its inputs."""

    def __init__(self, device: Device, inputs: Any, slower: float, result: Tensor):
        self._device, self._inputs, self._slower, self.result = device, inputs, slower, result

    def run(self) -> None:
        let_go()
        n_rows = self._inputs.n_rows
        n_prefilled = self._inputs.n_tokens - n_rows
        self._device.take(self._slower * (STEP_S + DECODE_S * n_rows + PREFILL_S * n_prefilled))


class RandomSamples:
    """Samples that are there at a time."""

    def __init__(self, ends: float, tokens: Any):
        self._ends, self._result = ends, SampledTokens(tokens, np.ones(len(tokens)))

    def collect(self) -> SampledTokens:
        time.sleep(max(0.0, self._ends - time.perf_counter()))
        return self._result


def zeros(shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    yield np.zeros(shape, np.float32).reshape(-1).view(np.uint8)


def write_model(path: Path, vocabulary: Path) -> None:
    """A model of one small layer, for its tokenizer's sake."""
    stored = stored_metadata(open_gguf(vocabulary))
    tokenizer = {key: value for key, value in stored.items() if key.startswith("tokenizer.")}
    keys = {
        "block_count": 1, "context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": WIDTH,
        "attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": N_VOCAB,
    }  # fmt: skip
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (N_VOCAB, WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in square}
    shapes |= {f"blk.0.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.{name}": (HEAD_DIM,) for name in ("attn_q_norm", "attn_k_norm")}
    entries = [Entry(f"{name}.weight", FORMATS["F32"], shape, partial(zeros, shape)) for name, shape in shapes.items()]
    facts = {"general.architecture": "qwen3", **{f"qwen3.{key}": value for key, value in keys.items()}}
    write_gguf(path, {**facts, **tokenizer}, entries)


def timed_llm(model: str, slower: float) -> LLM:
    """A model whose engine runs on the device."""
    llm = LLM(model)
    sizes = SchedulerLimits(N_SEQS, N_SEQS, N_SEQS, prefill_chunk=4096, n_prefill_tokens=8192)
    limits = StepLimits(sizes.n_tokens, N_SEQS, sizes.n_rows, N_PAGES_PER_SEQ)
    backend, pool = Device(slower), PagePool(N_SEQS * N_PAGES_PER_SEQ, PAGE_SIZE)
    kv = backend.kv_store(MemoryLayout((), (pool.n_pages,), PAGE_SIZE, "f32"))
    executor = LocalExecutor(backend, NullDecoder(), kv, limits, llm.tokenizer.n_vocab)  # type: ignore[arg-type]
    llm.engine = llm.driver.engine = Engine(
        Scheduler([pool], sizes, PrefixCache([pool])), executor, CONTEXT, llm.tokenizer.eos_ids
    )
    return llm


def serve(model: str, slower: float) -> None:
    """In a process of its own."""
    from tahr.server.lifecycle import HttpServer
    from tahr.server.models.llm_engine import LlmEngine
    from tahr.server.models.registry import ServedModel
    from tahr.server.state.settings import Settings

    def load() -> list[ServedModel]:
        llm = AsyncLLM(llm=timed_llm(model, slower), stream_interval_s=settings.stream_interval_s)
        return [ServedModel(("timed",), LlmEngine(llm))]

    settings = Settings(port=0, log_interval_s=0)
    HttpServer(settings, load, lambda address, _: print(address, flush=True)).run()


def library(llm: LLM, n: int) -> float:
    """Tokens per second of n requests at once, without a server; the second time counts."""
    rng, params = np.random.default_rng(n), SamplingParams(temperature=0, max_tokens=N_OUT, ignore_eos=True)
    for _ in range(2):
        prompts = rng.integers(*SOME_IDS, (n, N_IN)).tolist()
        began = time.perf_counter()
        llm.generate(prompts, params, progress=False)
        taken = time.perf_counter() - began
    return n * N_OUT / taken


def served(address: str, pid: int, n: int, folder: Path) -> None:
    """Print what bench-serve measures with n clients, and the CPU time of server and client."""
    out, n_prompts = folder / "report.json", 16 + 8 * n
    load = ["--concurrency", n, "--num-prompts", n_prompts, "--warmup", n, "--fail-on-error"]
    command = [sys.executable, "-m", "tahr", "bench-serve", "--base-url", address, "--output", "json", "--out", out]
    before = cpu_s(pid)
    with subprocess.Popen([*map(str, command + load)], stderr=subprocess.DEVNULL) as client:
        _, _, used = os.wait4(client.pid, 0)
        client.returncode = 0
    found = json.loads(out.read_text())[0]["distributions"]
    n_tokens = (n + n_prompts) * N_OUT
    cpus = [1e6 * seconds / n_tokens for seconds in (cpu_s(pid) - before, used.ru_utime + used.ru_stime)]
    print(f"{n} clients: {found['output_throughput']['mean']:,.0f} tokens/s, first token p50 "
          f"{found['ttft_ms']['p50']:.0f} ms; CPU per token: server {cpus[0]:.1f} us, client {cpus[1]:.1f} us, "
          "its start included", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--clients", default="1,32,256")
    parser.add_argument("--slower", type=float, default=1.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(str(args.vocabulary), args.slower)
    with tempfile.TemporaryDirectory() as folder:
        model, counts = Path(folder) / "timed.gguf", list(map(int, args.clients.split(",")))
        write_model(model, args.vocabulary)
        llm = timed_llm(str(model), args.slower)
        for n in counts:
            print(f"{n} requests in the library: {library(llm, n):,.0f} tokens/s", flush=True)
        command = [sys.executable, __file__, str(model), "--serve", "--slower", str(args.slower)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            try:
                address = server.stdout.readline().strip()
                for n in counts:
                    served(address, server.pid, n, Path(folder))
            finally:
                server.terminate()
    return None


if __name__ == "__main__":
    main()

"""A GPU behind `tahr run` and `tahr serve`: seconds until the first token, and tokens/s over HTTP.

usage: benchmarks/gpu_serve.py VOCAB.gguf [0.6B|8B] [--clients 1,32,256] [--skip-cold] [--at-once] [--bursts]

VOCAB.gguf is a GGUF with Qwen's vocabulary (`ggml-vocab-qwen2.gguf` of the tests' data). The model is a file of random
bf16 weights in the page cache. Cold means that no kernel has been compiled before, warm that all have.
Clients come when the server has compiled and captured its steps; with --at-once they come before, and wait for that.
--bursts compares bursts of 128 requests after a long prompt with the same before the first one.
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
from statistics import median

import numpy as np

from gpu_cells import HEAD_DIM, N_VOCAB, SHAPES, Shape, tensors
from server_process import cpu_s, read_metric, serving, wait_until_warm
from tahr.models.loader.requantise import gguf_name_of
from tahr.weights.formats import FORMATS
from tahr.weights.gguf import open_gguf
from tahr.weights.gguf_write import Entry, stored_metadata, write_gguf
from tahr.weights.tensor import HostTensor

PIECE = 1 << 22  # values written at a time
LONG_PROMPT, N_BURSTS = 20_000, 5
TAHR = [sys.executable, "-m", "tahr"]
SAMPLING = {"temp": 0.6, "top_k": 20, "top_p": 0.95}  # the defaults of Qwen3


def metadata(shape: Shape) -> dict[str, object]:
    """What a GGUF says of a Qwen3 model."""
    keys = {
        "block_count": shape.n_layers, "context_length": 40960, "embedding_length": shape.width,
        "feed_forward_length": shape.n_ffn, "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": N_VOCAB,
    }  # fmt: skip
    sampling = {f"general.sampling.{key}": value for key, value in SAMPLING.items()}
    return {"general.architecture": "qwen3", **sampling, **{f"qwen3.{key}": value for key, value in keys.items()}}


def pieces(tensor: HostTensor, some: np.ndarray) -> Iterator[np.ndarray]:
    if tensor.format.name == "F32":
        yield tensor.data
        return
    for at in range(0, tensor.n_values, PIECE):
        yield some[: min(PIECE, tensor.n_values - at)].view(np.uint8)


def write_model(path: Path, vocabulary: Path, shape: Shape) -> None:
    stored = stored_metadata(open_gguf(vocabulary))
    tokenizer = {key: value for key, value in stored.items() if key.startswith("tokenizer.")}
    values = (0.02 * np.random.default_rng(0).standard_normal(PIECE, np.float32)).view(np.uint32) >> 16
    some = values.astype(np.uint16)
    entries = [
        Entry(gguf_name_of(t.name, {}), FORMATS[t.format.name], t.shape, partial(pieces, t, some))
        for t in tensors(shape)
    ]
    write_gguf(path, {**metadata(shape), **tokenizer}, entries)


def first_token_s(model: Path) -> float:
    """Seconds from the start of a process until it has printed one token and ended."""
    began = time.perf_counter()
    command = [*TAHR, "run", str(model), "--raw", "-p", "Hi", "-n", "1", "--backend", "cuda"]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def burst(address: str) -> float:
    """Output tokens/s of 128 requests that come at once."""
    load = ["--concurrency", "128", "--num-prompts", "128", "--warmup", "0", "--fail-on-error", "--output", "json"]
    done = subprocess.run([*TAHR, "bench-serve", "--base-url", address, *load], check=True, capture_output=True)
    return float(json.loads(done.stdout)[0]["distributions"]["output_throughput"]["mean"])


def read_long_prompt(address: str) -> None:
    load = ["--concurrency", "1", "--num-prompts", "1", "--warmup", "0", "--fail-on-error"]
    lengths = ["--input-len", str(LONG_PROMPT), "--output-len", "1"]
    command = [*TAHR, "bench-serve", "--base-url", address, *load, *lengths]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_bursts(shape: str, address: str) -> None:
    """Bursts before any long prompt, then as many, each after one; steps that compiled or captured in them."""
    fresh = [burst(address) for _ in range(N_BURSTS + 1)][1:]  # the first makes the connections' buffers
    before = read_metric(address, "tahr_slow_steps_total")
    after = []
    for _ in range(N_BURSTS):
        read_long_prompt(address)
        after.append(burst(address))
    share = median(after) / median(fresh)
    n_slow = read_metric(address, "tahr_slow_steps_total") - before
    print(f"{shape}: bursts {median(fresh):,.0f} tokens/s, after a prompt of {LONG_PROMPT:,} {median(after):,.0f}, "
          f"{share:.1%}; {n_slow:.0f} slow steps", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("shape", nargs="?", default="0.6B", choices=SHAPES)
    parser.add_argument("--clients", default="1,32,256")
    parser.add_argument("--skip-cold", action="store_true")
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--bursts", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"qwen3-{args.shape}.gguf"
        write_model(model, args.vocabulary, SHAPES[args.shape])
        subprocess.run(["cat", str(model)], stdout=subprocess.DEVNULL, check=True)  # into the page cache
        if not args.skip_cold:
            os.environ["TRITON_CACHE_DIR"] = f"{folder}/kernels"
            for state in ("cold", "warm"):
                print(f"{args.shape}: start to first token, {state}: {first_token_s(model):.1f} s", flush=True)
        began = time.perf_counter()
        with serving(str(model), "--backend", "cuda") as server:
            print(f"{args.shape}: the server is ready after {time.perf_counter() - began:.1f} s", flush=True)
            if not args.at_once:
                print(f"{args.shape}: all steps are prepared {wait_until_warm(server.address):.1f} s later", flush=True)
            if args.bursts:
                measure_bursts(args.shape, server.address)
            for n in map(int, filter(None, args.clients.split(","))):
                load = [
                    "--concurrency",
                    str(n),
                    "--num-prompts",
                    str(max(24, 8 * n)),  # whole rounds: in a part of one, few clients would be left
                    "--warmup",
                    str(n),
                    "--fail-on-error",
                    "--default-sampling",
                ]
                before = cpu_s(server.pid)
                subprocess.run([*TAHR, "bench-serve", "--base-url", server.address, *load], check=True)
                print(f"{n} clients: {cpu_s(server.pid) - before:.2f} s of the server's CPU time", flush=True)


if __name__ == "__main__":
    main()

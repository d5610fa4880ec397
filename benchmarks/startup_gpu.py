"""Starting on a GPU: seconds until `tahr run` has written its first token, and what they go to.

usage: benchmarks/startup_gpu.py VOCAB.gguf [0.6B] [8B] [--plain] [--bytecode]

VOCAB.gguf is a GGUF with Qwen's vocabulary (`ggml-vocab-qwen2.gguf` of the tests' data). Models are files of random
bf16 weights in memory (or in the page cache). Cold means that no kernel has been compiled before, warm that all have.
The command is timed as it is first, then, unless --plain is given, again with marks: seconds since the start of the
process, and what just ended.
The processes that compile ahead are not marked, but the wait for them is. With --bytecode, Python's own cache is filled
before anything is timed, as pip does when it installs; an image may be without it, and each start then compiles torch.
"""

import argparse
import functools
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

TRACE, BEGAN = "--trace", "TAHR_STARTUP_BEGAN"
ARGUMENTS = ["--raw", "-p", "Hi", "-n", "1", "--backend", "cuda"]
N_WARM = 3
LEAST_MARKED = 0.001  # seconds
SHARED_MEMORY = Path("/dev/shm")
N_SLOWEST = 12  # modules named


# ---- in the process that starts ---------------------------------------------------------------------------------


def mark(what: str) -> None:
    print(f"  {time.time() - float(os.environ[BEGAN]):7.3f}  {what}", file=sys.stderr, flush=True)


def marked(where: Any, name: str) -> None:
    """Replace a function by one that says when it ended, and how long it took."""
    function = getattr(where, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            if (seconds := time.perf_counter() - began) > LEAST_MARKED:
                mark(f"{getattr(where, '__name__', where)}.{name}: {seconds:.3f} s")

    setattr(where, name, timed)


def compiled(src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
    stages = ", ".join(f"{stage} {us / 1e6:.2f}" for stage, us in times.lowering_stages)
    how = "from the cache" if cache_hit else f"compiled: AST {times.ir_initialization / 1e6:.2f}, {stages}"
    mark(f"    {src.name} {how}, {times.total / 1e6:.2f} s")


def open_marked(n_threads: int | None, deterministic: bool, logits: Any) -> Any:
    """`open_cuda`, with marks between its imports."""
    ahead = importlib.import_module("tahr.backends.cuda.ahead")
    marked(ahead, "make_context")
    marked(ahead.Ahead, "__init__")
    marked(ahead.Ahead, "wait")
    begun = ahead.Ahead(*logits)
    import torch

    mark("torch imported")
    from triton import knobs

    knobs.compilation.listener = compiled
    mark("triton imported")
    backend = importlib.import_module("tahr.backends.cuda.backend")
    mark("backend imported")
    torch.zeros(1, device="cuda")
    mark("first allocation")
    mark_steps()
    opened = backend.open_device(deterministic, begun)
    mark("device opened")
    return opened


def mark_steps() -> None:
    from triton.compiler import CompiledKernel

    steps, sampling = (importlib.import_module(f"tahr.backends.cuda.{name}") for name in ("steps", "sampling"))
    marked(CompiledKernel, "_init_handles")
    marked(importlib.import_module("tahr.backends.cuda.compiling").Compiler, "wait")
    marked(steps.GraphPlan, "run")
    marked(sampling.CudaSampler, "_load_kernels")
    marked(sampling.CudaSampler, "sample")
    marked(sampling.PendingSamples, "collect")


def trace(model: str) -> None:
    """`tahr run` in this process, with marks."""
    mark("python has started")
    from tahr import backends
    from tahr.cli.main import main
    from tahr.loading import builder

    mark("tahr imported")
    for name in ("open_model", "open_tokenizer", "open_backend", "load", "build_engine", "assemble"):
        marked(builder, name)
    backends.BACKENDS["cuda"] = open_marked
    status = main(["run", model, *ARGUMENTS])
    mark("first token printed")
    sys.exit(status)


# ---- in the process that measures -------------------------------------------------------------------------------


def run(command: list[str], kernels: Path) -> tuple[float, float, str]:
    """Seconds until a process has written something to stdout, until it has ended, and what it wrote to stderr."""
    began = time.time()
    environ = {**os.environ, "TRITON_CACHE_DIR": str(kernels), BEGAN: str(began)}
    with tempfile.TemporaryFile("w+") as notes:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=notes, stdin=subprocess.DEVNULL, env=environ, bufsize=0
        )
        assert process.stdout
        written, first_s = process.stdout.read(1), time.time() - began
        written += process.stdout.read()
        status, all_s = process.wait(), time.time() - began
        notes.seek(0)
        printed = notes.read()
    if status or not written.strip():
        sys.exit(f"{' '.join(command)} failed:\n{written.decode()}\n{printed}")
    return first_s, all_s, printed


def measure(shape: str, model: Path, folder: Path, args: argparse.Namespace) -> None:
    """Print the times of one model."""
    plain = [sys.executable, "-m", "tahr", "run", str(model), *ARGUMENTS]
    if args.bytecode:
        run(plain, folder / "untimed")
    traced = [sys.executable, __file__, TRACE, str(model)]
    ways = (("plain", plain, N_WARM), ("with marks", traced, 1))
    for how, command, n_warm in ways[:1] if args.plain else ways:
        for state in ("cold", *["warm"] * n_warm):
            first_s, all_s, printed = run(command, folder / f"kernels-{shape}-{how}")
            print(f"{shape}, {state}, {how}: first token after {first_s:.2f} s, end after {all_s:.2f} s", flush=True)
            if command is traced:
                print(printed, flush=True)


def show_imports() -> None:
    """Print how long imports take alone, and the modules that take most of it themselves."""
    torch = find_spec("torch")
    has_cache = torch and torch.origin and Path(cache_from_source(torch.origin)).exists()
    print(f"torch's bytecode is {'' if has_cache else 'not '}cached", flush=True)
    for _ in range(2):  # the first reads them from disk, and writes bytecode where it may
        began = time.perf_counter()
        code = [sys.executable, "-X", "importtime", "-c", "import torch, triton"]
        done = subprocess.run(code, capture_output=True, text=True, check=True)
        print(f"import torch, triton: {time.perf_counter() - began:.2f} s", flush=True)
    lines = [line.split("|") for line in done.stderr.splitlines() if line.count("|") == 2]
    own = sorted(((int(line[0].split(":")[1]), line[2].strip()) for line in lines[1:]), reverse=True)
    print("of it: " + ", ".join(f"{name} {us / 1e6:.2f}" for us, name in own[:N_SLOWEST]), flush=True)


@contextmanager
def memory_folder(n_bytes: int) -> Iterator[Path]:
    """A folder in memory if there is room, else on disk, whose files the page cache holds."""
    has_room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > n_bytes
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if has_room else None) as folder:
        yield Path(folder)


def main() -> None:
    from gpu_cells import SHAPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []], metavar="SHAPE")  # argparse checks no shapes, too
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--bytecode", action="store_true")
    args = parser.parse_args()
    if not args.plain:
        show_imports()
    with tempfile.TemporaryDirectory() as folder:
        if args.bytecode:
            os.environ |= {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        measure_all(args)


def measure_all(args: argparse.Namespace) -> None:
    from gpu_cells import SHAPES
    from gpu_serve import write_model

    for shape in args.shapes or ["0.6B", "8B"]:
        with memory_folder(32 << 30) as folder:
            began, model = time.perf_counter(), folder / f"qwen3-{shape}.gguf"
            write_model(model, args.vocabulary, SHAPES[shape])
            with model.open("rb") as file:
                while file.read(1 << 26):
                    pass
            print(f"{model}: {model.stat().st_size / 1e9:.1f} GB in {time.perf_counter() - began:.1f} s", flush=True)
            measure(shape, model, folder, args)


if __name__ == "__main__":
    trace(sys.argv[2]) if sys.argv[1:2] == [TRACE] else main()

"""Seconds from nothing to a model that has answered, in fresh processes: Tahr and llama.cpp in turn, files in memory.

usage: benchmarks/load_time.py MODEL.gguf ... [--peer-python PYTHON] [-r N]

`load` is the call that loads a model, `first token` what the first token takes after it, `process` everything from the
start of the process to that token. The first run of each warms the page cache and Python's bytecode, and is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tahr.cli.bench.bench import say
from tahr.tools.environment import environment, line

FIGURES = ("load", "first token", "process")
TAHR = """
from tahr import LLM, SamplingParams
begin = time.time()
llm = LLM(sys.argv[1])
loaded = time.time()
llm.generate(["Hi"], SamplingParams(max_tokens=1, temperature=0), progress=False)
"""
LLAMA_CPP = """
import llama_cpp as lc
lc.llama_backend_init()
begin = time.time()
model = lc.llama_model_load_from_file(sys.argv[1].encode(), lc.llama_model_default_params())
params = lc.llama_context_default_params()
params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
params.n_ctx = 4096
context = lc.llama_init_from_model(model, params)
loaded = time.time()
tokens = (lc.llama_token * 1)(1)
assert lc.llama_decode(context, lc.llama_batch_get_one(tokens, 1)) == 0
"""
FRAME = """
import json, os, sys, time
{body}
done = time.time()
os.write({out}, json.dumps([loaded - begin, done - loaded, done - float(sys.argv[2])]).encode())
"""


def run_once(python: str, body: str, model: str) -> list[float]:
    """The figures of one fresh process."""
    read, write = os.pipe()
    # Some build machines forbid bytecode files; without them every start compiles every module, as nobody else's does.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [python, "-c", FRAME.format(body=body, out=write), model, repr(time.time())]
    with os.fdopen(read) as answer:
        subprocess.run(command, check=True, pass_fds=[write], capture_output=True, env=environ)
        os.close(write)
        found: list[float] = json.load(answer)
        return found


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f})"


def main() -> None:
    """Print a row for each model and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer-python", help="a Python that has the module llama_cpp")
    parser.add_argument("-r", "--reps", type=int, default=5)
    args = parser.parse_args()
    engines = {"tahr": (sys.executable, TAHR)}
    if args.peer_python:
        engines["llama.cpp"] = (args.peer_python, LLAMA_CPP)
    print(f"{line(environment())}; seconds, median of {args.reps} (least-most)")
    print(f"| {'model':24} | {'engine':9} | " + " | ".join(f"{name:20}" for name in FIGURES) + " |")
    print("|---|---|---|---|---|")
    for model in args.models:
        runs: dict[str, list[list[float]]] = {name: [] for name in engines}
        for i in range(args.reps + 1):
            for name, (python, body) in engines.items():
                say(f"{model.name}, {name}: {i} of {args.reps}")
                runs[name].append(run_once(python, body, str(model)))
        say("")
        for name, found in runs.items():
            cells = [shown([run[i] for run in found[1:]]) for i in range(len(FIGURES))]
            print(f"| {model.name:24} | {name:9} | " + " | ".join(f"{cell:20}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()

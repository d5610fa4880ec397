"""`tahr batch` beside the library: the same prompts, one after the other, tokens per second without loading.

usage: benchmarks/batch_file.py MODEL [-n 5000] [--tokens-in 50] [--tokens-out 32] [--turns 3] [--cpu-time] [--kill 0]

--cpu-time compares CPU seconds instead, less those of a batch of one request, where others use the machine too.

With --kill the batch is killed so many times at random moments and begun again; every line is looked for afterwards.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from tahr import LLM, SamplingParams

SPEED = re.compile(r"([\d.]+) tokens/s$")


def write_requests(path: Path, model: str, args: argparse.Namespace) -> list[list[int]]:
    """Prompts of random tokens, in a file and as the library takes them."""
    rng = random.Random(0)
    n_vocab = LLM(model).tokenizer.n_vocab
    prompts = [[rng.randrange(300, n_vocab) for _ in range(args.tokens_in)] for _ in range(args.n)]
    with path.open("w") as file:
        for i, prompt in enumerate(prompts):
            body = {"prompt": prompt, "max_tokens": args.tokens_out, "temperature": 0, "ignore_eos": True}
            line = {"custom_id": f"request-{i}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return prompts


def by_library(model: str, prompts: list[list[int]], n_out: int) -> float:
    llm = LLM(model)
    params = SamplingParams(max_tokens=n_out, temperature=0.0, ignore_eos=True)
    llm.generate(prompts[:1], params)
    began = time.perf_counter()
    replies = llm.generate(prompts, params, progress=False)
    n_tokens = sum(len(reply.token_ids) for reply in replies)
    return n_tokens / (time.perf_counter() - began)


def cpu_seconds(model: str, requests: Path, folder: Path, prompts: list[list[int]], n_out: int) -> tuple[float, float]:
    """CPU seconds of the library and of the batch, without loading."""
    began = time.process_time()
    by_library(model, [prompts[0]], n_out)
    alone = time.process_time()
    by_library(model, prompts, n_out)
    library = time.process_time() - alone - (alone - began)
    one = folder / "one.jsonl"
    one.write_text(requests.read_text().partition("\n")[0])
    spent = []
    for path in (one, requests):
        before = children_s()
        by_batch(model, path, folder)
        spent.append(children_s() - before)
    return library, spent[1] - spent[0]


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(model: str, requests: Path, replies: Path) -> list[str]:
    return [sys.executable, "-m", "tahr", "batch", str(requests), str(replies), model]


def by_batch(model: str, requests: Path, folder: Path) -> float:
    for path in folder.glob("replies*"):
        path.unlink()
    done = subprocess.run(
        command(model, requests, folder / "replies.jsonl"), check=True, stderr=subprocess.PIPE, text=True
    )
    found = SPEED.search(done.stderr.strip())
    assert found, done.stderr
    return float(found[1])


def kill_and_go_on(model: str, requests: Path, folder: Path, n_kills: int, n_lines: int) -> None:
    """Killed at random moments, every line has one result in the end."""
    for path in folder.glob("replies*"):
        path.unlink()
    rng = random.Random(1)
    replies = folder / "replies.jsonl"
    for _ in range(n_kills):
        before = replies.stat().st_size if replies.exists() else 0
        with subprocess.Popen(command(model, requests, replies), stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and (replies.stat().st_size if replies.exists() else 0) == before:
                time.sleep(0.01)
            time.sleep(rng.random() * 2)
            process.kill()
        n_whole = replies.read_bytes().count(b"\n")
        print(f"killed after {n_whole} replies", flush=True)
    subprocess.run(command(model, requests, replies), check=True)
    lines = [*replies.read_text().splitlines(), *(folder / "replies.errors.jsonl").read_text().splitlines()]
    names = Counter(json.loads(line)["custom_id"] for line in lines)
    assert names == Counter(f"request-{i}" for i in range(n_lines)), "a line is missing or there twice"
    print(f"all {n_lines} lines have one result", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=5000)
    parser.add_argument("--tokens-in", type=int, default=50)
    parser.add_argument("--tokens-out", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--kill", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        requests = folder / "requests.jsonl"
        prompts = write_requests(requests, args.model, args)
        ratios = []
        for _ in range(args.turns):
            if args.cpu_time:
                library_s, batch_s = cpu_seconds(args.model, requests, folder, prompts, args.tokens_out)
                ratios.append(library_s / batch_s)
                print(f"library {library_s:.2f} CPU s, batch {batch_s:.2f}: {library_s / batch_s:.1%}", flush=True)
                continue
            library = by_library(args.model, prompts, args.tokens_out)
            batch = by_batch(args.model, requests, folder)
            ratios.append(batch / library)
            print(f"library {library:,.1f} tokens/s, batch {batch:,.1f}: {batch / library:.1%}", flush=True)
        if ratios:
            print(f"median {median(ratios):.1%}", flush=True)
        if args.kill:
            kill_and_go_on(args.model, requests, folder, args.kill, args.n)


if __name__ == "__main__":
    main()

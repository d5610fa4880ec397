"""What the server costs: 8 streams over HTTP against the library alone, turn by turn, and the server when idle.

Both have a process of their own with the model loaded, and only one of them works at a time. The client runs on the
same machine, so what it takes counts as the server's; it hardly looks at what it gets.

usage: benchmarks/serve_overhead.py [MODEL] [--streams N] [--tokens N] [--runs N]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from statistics import median

import uvloop

from lean_client import Connection, connect, ended_well, events_of, request
from server_process import Server, cpu_s, serving

OPENINGS = ("Once upon a time", "The history of bread", "In the mountains", "A recipe for", "The old clock", "Winter",
            "My favourite book", "The first train")  # fmt: skip
IDLE_S = 5.0
MOST_SLOWER = 0.05
MOST_IDLE = 0.01


def prompts(n: int) -> list[str]:
    return [f"{OPENINGS[i % len(OPENINGS)]} {i}" for i in range(n)]


def library(args: argparse.Namespace) -> None:
    """In a process of its own: a line in, a run, its seconds out."""
    from tahr import LLM, SamplingParams

    llm = LLM(args.model)
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    texts = prompts(args.streams)
    for _ in sys.stdin:
        began = time.perf_counter()
        made = llm.generate(texts, params, progress=False)
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, [each.text for each in made]]), flush=True)


def bodies(args: argparse.Namespace) -> list[bytes]:
    options = {"temperature": 0, "max_tokens": args.tokens, "ignore_eos": True, "stream": True}
    return [request("/v1/completions", {"prompt": text, **options}) for text in prompts(args.streams)]


async def stream_all(connections: list[Connection], data: list[bytes]) -> tuple[float, list[str]]:
    """Seconds of one run over HTTP, and its texts."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(each.ask(body) for each, body in zip(connections, data, strict=True)))
    seconds = time.perf_counter() - began
    assert all(map(ended_well, answers))
    return seconds, ["".join(event["choices"][0]["text"] for event in events_of(answer)) for answer in answers]


async def bench(server: Server, child: "subprocess.Popen[str]", args: argparse.Namespace) -> tuple[float, float]:
    """Tokens per second over HTTP and of the library."""
    connections = [await connect(server.address) for _ in range(args.streams)]
    data, rates = bodies(args), ([], [])
    assert child.stdin and child.stdout
    for run in range(args.runs + 1):
        http_s, texts = await stream_all(connections, data)
        print("go", file=child.stdin, flush=True)
        library_s, wanted = json.loads(child.stdout.readline())
        assert texts == wanted, "both write the same"
        for list_of, seconds in zip(rates, (http_s, library_s), strict=True):
            list_of.append(args.streams * args.tokens / seconds)
        if not run:
            [each.clear() for each in rates]  # warm
    for name, values in zip(("over HTTP", "library"), rates, strict=True):
        print(f"{name}: median {median(values):.1f} tokens/s ({min(values):.1f} to {max(values):.1f})")
    return median(rates[0]), median(rates[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--library", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library:
        library(args)
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--library"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with serving(args.model) as server, subprocess.Popen(command, text=True, **pipes) as child:
        http, alone = uvloop.run(bench(server, child, args))
        slower = 1 - http / alone
        before = cpu_s(server.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(server.pid) - before) / IDLE_S
    print(f"the server costs {slower:.1%} of the tokens per second; idle, it takes {idle:.2%} of a core")
    return slower > MOST_SLOWER or idle > MOST_IDLE


if __name__ == "__main__":
    sys.exit(main())

"""What the server costs: 8 streams over HTTP against the library alone, turn by turn, and the server when idle.

Both have a process of their own with the model loaded, and only one of them works at a time. The client runs on the
same machine, so what it takes counts as the server's. Woken for every packet it would take as much as the server does,
so it looks at its sockets a hundred times a second instead, and at what it got when all is over. Replies are long,
because over HTTP requests come one after the other: the first is read alone, which in a short run counts for much.

usage: benchmarks/serve_overhead.py [MODEL] [--streams N] [--tokens N] [--runs N]
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from statistics import median
from urllib.parse import urlsplit

from lean_client import ended_well, events_of, request
from server_process import Server, cpu_s, serving

OPENINGS = ("Once upon a time", "The history of bread", "In the mountains", "A recipe for", "The old clock", "Winter",
            "My favourite book", "The first train")  # fmt: skip
LOOK_EVERY_S = 0.01
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


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    made = socket.create_connection((parts.hostname, parts.port))
    made.setblocking(False)
    return made


def stream_all(address: str, data: list[bytes]) -> tuple[float, list[str]]:
    """Seconds of one run over HTTP, and its texts."""
    connections = [connect(address) for _ in data]
    received = [bytearray() for _ in data]
    began = time.perf_counter()
    for connection, body in zip(connections, data, strict=True):
        connection.sendall(body)
    while not all(each.endswith(b"\r\n0\r\n\r\n") for each in received):
        time.sleep(LOOK_EVERY_S)
        for connection, so_far in zip(connections, received, strict=True):
            with suppress(BlockingIOError):
                so_far += connection.recv(1 << 20)
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    answers = [bytes(each) for each in received]
    assert all(map(ended_well, answers))
    return seconds, ["".join(event["choices"][0]["text"] for event in events_of(answer)) for answer in answers]


def bench(server: Server, child: "subprocess.Popen[str]", args: argparse.Namespace) -> tuple[float, float]:
    """Tokens per second over HTTP and of the library."""
    data, rates = bodies(args), ([], [])
    assert child.stdin and child.stdout
    for run in range(args.runs + 1):
        http_s, texts = stream_all(server.address, data)
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
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--library", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library:
        library(args)
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--library"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with serving(args.model) as server, subprocess.Popen(command, text=True, **pipes) as child:
        http, alone = bench(server, child, args)
        slower = 1 - http / alone
        before = cpu_s(server.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(server.pid) - before) / IDLE_S
    print(f"the server costs {slower:.1%} of the tokens per second; idle, it takes {idle:.2%} of a core")
    return slower > MOST_SLOWER or idle > MOST_IDLE


if __name__ == "__main__":
    sys.exit(main())

"""What the server costs: 8 streams over HTTP against the library alone, turn by turn, and the server when idle.

Both are one process with one loaded model, or where it lies in memory would decide: the same call to the library can
differ by more between two processes than what is measured here. Each run over HTTP has a run of the library beside it,
first after it, then before it, and it is the ratio of these two that counts: the machine's speed changes over minutes.
A pair during which other virtual machines took some of the processor is left out, as long as enough others remain.

The client is a process of its own on the same machine, so what it takes would count as the server's. Woken for every
packet it takes as much as the server does, so it looks at its sockets ten times a second, often only near the end, and
at what it got when all is over. Replies are long, because over HTTP requests come one after the other: the first is
read alone, which in a short run counts for much.

usage: benchmarks/serve_overhead.py [MODEL] [--streams N] [--tokens N] [--pairs N] [--stream-interval S]
"""

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from lean_client import ended_well, events_of, request
from server_process import cpu_s
from tahr.tools.environment import Neighbours

OPENINGS = ("Once upon a time", "The history of bread", "In the mountains", "A recipe for", "The old clock", "Winter",
            "My favourite book", "The first train")  # fmt: skip
SELDOM_S, OFTEN_S, NEAR_END = 0.1, 0.005, 0.97  # how long the client looks away, and from which share of its bytes on
IDLE_S = 5.0
MOST_SLOWER = 0.05
MOST_IDLE = 0.01


def prompts(n: int) -> list[str]:
    return [f"{OPENINGS[i % len(OPENINGS)]} {i}" for i in range(n)]


# ---- server and library -------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> None:
    """In a process of its own: a server, and for every line that comes a run of the library."""
    from tahr import LLM, AsyncLLM
    from tahr.server.lifecycle import HttpServer
    from tahr.server.models.llm_engine import LlmEngine
    from tahr.server.models.registry import ServedModel
    from tahr.server.state.settings import Settings

    llm, settings = LLM(args.model), Settings(port=0, log_interval_s=0, stream_interval_s=args.stream_interval)
    served = [ServedModel(("model",), LlmEngine(AsyncLLM(llm=llm, stream_interval_s=settings.stream_interval_s)))]
    threading.Thread(target=run_library, args=(llm, args), daemon=True).start()
    HttpServer(settings, lambda: served, lambda address, _: print(address, flush=True)).run()


def run_library(llm: Any, args: argparse.Namespace) -> None:
    """The server has nothing to do meanwhile, so nobody else touches the model."""
    from tahr import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    texts = prompts(args.streams)
    for _ in sys.stdin:
        began = time.perf_counter()
        made = llm.generate(texts, params, progress=False)
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, [each.text for each in made]]), flush=True)


# ---- client -------------------------------------------------------------------------------------------------------


def bodies(args: argparse.Namespace) -> list[bytes]:
    options = {"temperature": 0, "max_tokens": args.tokens, "ignore_eos": True, "stream": True}
    return [request("/v1/completions", {"prompt": text, **options}) for text in prompts(args.streams)]


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    made = socket.create_connection((parts.hostname, parts.port))
    made.setblocking(False)
    return made


def stream_all(address: str, data: list[bytes], n_expected: int) -> tuple[float, list[bytes]]:
    """Seconds of one run over HTTP, and its answers, of about so many bytes."""
    connections = [connect(address) for _ in data]
    received = [bytearray() for _ in data]
    began = time.perf_counter()
    for connection, body in zip(connections, data, strict=True):
        connection.sendall(body)
    while not all(each.endswith(b"\r\n0\r\n\r\n") for each in received):
        time.sleep(SELDOM_S if sum(map(len, received)) < NEAR_END * n_expected else OFTEN_S)
        for connection, so_far in zip(connections, received, strict=True):
            with suppress(BlockingIOError):
                so_far += connection.recv(1 << 20)
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return seconds, [bytes(each) for each in received]


def text_of(answer: bytes) -> str:
    assert ended_well(answer)
    return "".join(event["choices"][0]["text"] for event in events_of(answer))


class Bench:
    """Runs of both, in turn."""

    def __init__(self, child: "subprocess.Popen[str]", args: argparse.Namespace):
        assert child.stdin and child.stdout
        self.child, self.stdin, self.stdout = child, child.stdin, child.stdout
        self.address = self.stdout.readline().strip()
        self.data = bodies(args)
        self.n_tokens = args.streams * args.tokens
        self.n_bytes = 0  # of the last run over HTTP
        self.loop_s: list[float] = []  # what the event loop's thread computed in each

    def http(self) -> tuple[float, list[str]]:
        before = thread_s(self.child.pid)
        seconds, answers = stream_all(self.address, self.data, self.n_bytes)
        self.loop_s.append(thread_s(self.child.pid) - before)
        self.n_bytes = sum(map(len, answers))
        return seconds, [text_of(answer) for answer in answers]

    def library(self) -> tuple[float, list[str]]:
        print("go", file=self.stdin, flush=True)
        seconds, texts = json.loads(self.stdout.readline())
        return seconds, texts

    def pair(self, http_first: bool) -> tuple[float, float]:
        """Tokens per second over HTTP and of the library."""
        if http_first:
            http, library = self.http(), self.library()
        else:
            library, http = self.library(), self.http()
        assert http[1] == library[1], "both write the same"
        return self.n_tokens / http[0], self.n_tokens / library[0]


def undisturbed(both: Bench, n: int) -> tuple[list[tuple[float, float]], int]:
    """So many pairs, and how many were left out on the way; at most as many as are wanted."""
    pairs: list[tuple[float, float]] = []
    n_disturbed = 0
    while len(pairs) < n:
        neighbours = Neighbours()
        pair = both.pair(http_first=(len(pairs) + n_disturbed) % 2 == 0)
        if neighbours.warning() and n_disturbed < n:
            n_disturbed += 1
        else:
            pairs.append(pair)
    return pairs, n_disturbed


def thread_s(pid: int) -> float:
    """Seconds the first thread of a process has computed: here it runs the event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def bench(child: "subprocess.Popen[str]", args: argparse.Namespace) -> float:
    """Which share of the tokens per second the server costs."""
    both = Bench(child, args)
    both.pair(True)  # warm
    both.loop_s.clear()
    pairs, n_disturbed = undisturbed(both, args.pairs)
    for name, rates in zip(("over HTTP", "library"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: median {median(rates):.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f})")
    print(f"the event loop computes {median(both.loop_s) / both.n_tokens * 1e6:.1f} us per token")
    if n_disturbed:
        print(f"{n_disturbed} more pairs were disturbed by other virtual machines")
    costs = sorted(1 - http / library for http, library in pairs)
    quarter = len(costs) // 4
    print(f"the server costs {median(costs):.1%} of the tokens per second, ", end="")
    print(f"half of {len(costs)} pairs say {costs[quarter]:.1%} to {costs[-1 - quarter]:.1%}")
    return median(costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--stream-interval", type=float, default=0.025)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            slower = bench(child, args)
            before = cpu_s(child.pid)
            time.sleep(IDLE_S)
            idle = (cpu_s(child.pid) - before) / IDLE_S
        finally:
            child.terminate()
    print(f"idle, it takes {idle:.2%} of a core")
    return slower > MOST_SLOWER or idle > MOST_IDLE


if __name__ == "__main__":
    sys.exit(main())

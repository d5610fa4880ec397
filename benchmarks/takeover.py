"""Upgrades under load: does a client that never retries and opens a connection per request lose one?

usage: benchmarks/takeover.py MODEL [--times 20] [--streams 16] [--rate 0] [--cold] [--seed N] [OPTIONS OF SERVE]
       benchmarks/takeover.py --reuseport [--times 20]

Each time a new server is started with --takeover and killed (SIGKILL) at a random moment before it has taken over, then
another takes over, while so many streams and so many short requests a second go on. Without --rate it is half of what
the server sustains beside the streams. Exits with 1 if a request failed, or the running server did not go on. With
--reuseport no Tahr is run: connections are counted that a plain listener loses when it closes beside another that was
opened with SO_REUSEPORT, which is why the socket itself is passed on.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

from lean_client import request
from server_process import READY

PROMPTS = ("Once upon a time", "The dog had a", "One day, a little goat", "The sun was")
N_STREAM, N_SHORT = 120, 4  # tokens of a stream, and of a short request
MEASURE_S = 4.0
WHOLE = ("length", "stop")


@dataclass
class Load:
    """What the clients saw."""

    n_streams: int = 0
    n_short: int = 0
    failures: list[str] = field(default_factory=list)
    short_s: list[float] = field(default_factory=list)
    stops: asyncio.Event = field(default_factory=asyncio.Event)


class Process:
    """A `tahr serve`, and what it says."""

    def __init__(self, *options: str):
        command = [sys.executable, "-m", "tahr", "serve", *options, "--no-request-log", "--log-interval", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.address = ""
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line)
            if found := READY.match(line):
                self.address = found[1]
                self.ready.set()
        self.ready.set()

    def wait_until_ready(self) -> float:
        """Seconds until it serves."""
        began = time.monotonic()
        if not self.ready.wait(300) or not self.address:
            sys.exit("The server did not start:\n" + "".join(self.lines))
        return time.monotonic() - began

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def body(prompt: str, n_tokens: int) -> bytes:
    sampling = {"temperature": 0, "max_tokens": n_tokens, "ignore_eos": True}
    return request("/v1/completions", {"prompt": prompt, "stream": True, **sampling})


async def ask(address: str, data: bytes) -> str:
    """Why a request failed; empty if its reply is whole. One connection, one attempt."""
    url = urlsplit(address)
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            writer.write(data.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
            reply = await reader.read()
        finally:
            writer.close()
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    status = reply[9:12]
    if status != b"200":
        return f"status {status.decode('ascii', 'replace')}: {reply[-120:]!r}"
    events = [line[6:] for line in reply.splitlines() if line.startswith(b"data: {")]
    reason = json.loads(events[-1])["choices"][0]["finish_reason"] if events else "no event"
    return "" if reason in WHOLE and b"data: [DONE]" in reply else f"ended by {reason}"


async def stream(address: str, number: int, load: Load) -> None:
    """One stream after the other."""
    while not load.stops.is_set():
        why = await ask(address, body(PROMPTS[number % len(PROMPTS)], N_STREAM))
        load.n_streams += 1
        if why:
            load.failures.append(f"stream: {why}")


async def one_short(address: str, load: Load) -> None:
    began = time.monotonic()
    why = await ask(address, body(random.choice(PROMPTS), N_SHORT))
    load.n_short += 1
    load.short_s.append(time.monotonic() - began)
    if why:
        load.failures.append(f"request: {why}")


async def short_ones(address: str, rate: float, load: Load) -> None:
    """Requests at a steady rate, whether those before have ended or not."""
    running: set[asyncio.Task[None]] = set()
    began, n = time.monotonic(), 0
    while not load.stops.is_set():
        await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
        n += 1
        task = asyncio.create_task(one_short(address, load))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


async def sustained(address: str) -> float:
    """Short requests a second that a server answers to eight clients."""
    load = Load()

    async def client() -> None:
        while time.monotonic() < end:
            await one_short(address, load)

    end = time.monotonic() + MEASURE_S
    await asyncio.gather(*[client() for _ in range(8)])
    return load.n_short / MEASURE_S


async def upgrade(
    running: Process, options: list[str], kind: str, times_s: list[float], pick: random.Random
) -> Process:
    """Kill a new server at a random moment of its start, then let another take over."""
    if times_s and kind == "warm":
        doomed = Process(*options, "--takeover")
        await asyncio.sleep(pick.uniform(0, 0.9 * min(times_s)))
        doomed.kill()
        if doomed.ready.wait(1) and doomed.address:
            print("  (it had taken over already: its own requests were lost with it)")
        if running.process.poll() is not None:
            sys.exit("The running server has ended, although the new one was killed.")
    new = Process(*options, f"--takeover={kind}")
    times_s.append(await asyncio.to_thread(new.wait_until_ready))
    code = await asyncio.to_thread(running.process.wait, 120)
    if code:
        sys.exit(f"The old server ended with {code}:\n" + "".join(running.lines))
    return new


async def measure(args: argparse.Namespace, options: list[str]) -> bool:
    """Whether no request failed."""
    kind = "cold" if args.cold else "warm"
    running = Process(*options, "--port", "0")
    running.wait_until_ready()
    address = running.address
    options = [*options, "--port", str(urlsplit(address).port)]
    load = Load()
    pick = random.Random(args.seed)
    streams = [asyncio.create_task(stream(address, i, load)) for i in range(args.streams)]
    rate = args.rate or await sustained(address) / 2
    shorts = asyncio.create_task(short_ones(address, rate, load))
    print(f"{args.streams} streams, {rate:.1f} requests a second")
    times_s: list[float] = []
    try:
        for i in range(args.times):
            running = await upgrade(running, options, kind, times_s, pick)
            print(
                f"{i + 1}: {load.n_streams} streams, {load.n_short} requests, {len(load.failures)} failed", flush=True
            )
        load.stops.set()
        await asyncio.gather(*streams, shorts)
    finally:
        running.process.terminate()
        await asyncio.to_thread(running.process.wait)
    n_kills = max(0, args.times - 1) if kind == "warm" else 0
    print(f"{args.times} {kind} takeovers, {n_kills} new servers killed, {median(times_s):.1f} s each to take over")
    print(f"{load.n_streams} streams and {load.n_short} requests, {len(load.failures)} failed")
    print(f"a request took {median(load.short_s) * 1e3:.0f} ms, {max(load.short_s) * 1e3:.0f} ms at most")
    for why, n in Counter(load.failures).most_common(8):
        print(f"  {n} times {why}")
    return not load.failures


# ---- the other way ------------------------------------------------------------------------------------------


def reuseport_losses(times: int) -> tuple[int, int]:
    """Connections that were begun, and those that a listener lost by closing beside another on the same port."""

    def listener(port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
        made.listen(128)
        return made

    n_lost = n_begun = 0
    for _ in range(times):
        old = listener(0)
        new = listener(old.getsockname()[1])
        clients = [socket.create_connection(new.getsockname()) for _ in range(64)]
        old.close()  # what it has not accepted yet is reset
        for client in clients:
            n_begun += 1
            client.setblocking(False)
            try:
                client.recv(1)
            except BlockingIOError:
                pass
            except ConnectionResetError:
                n_lost += 1
            client.close()
        new.close()
    return n_begun, n_lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.0, help="short requests a second (0: measured, then half)")
    parser.add_argument("--cold", action="store_true", help="--takeover=cold")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which new servers are killed")
    parser.add_argument("--reuseport", action="store_true")
    args, options = parser.parse_known_args()
    if args.reuseport:
        n_begun, n_lost = reuseport_losses(args.times)
        print(f"SO_REUSEPORT: {n_lost} of {n_begun} connections that waited were reset when the old listener closed")
        return 0
    if args.model is None:
        parser.error("name a MODEL")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder  # servers of others are none of ours
        return 0 if asyncio.run(measure(args, [args.model, *options])) else 1


if __name__ == "__main__":
    sys.exit(main())

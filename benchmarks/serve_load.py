"""Many streaming clients at once, some of which leave: no error, no leak, no text in the wrong stream, a quick /health.

Every client asks one of many questions, greedily. Whatever comes to its end must be what the same question gets when
the server has nothing else to do. A part of the clients hang up at a random moment: while waiting, reading or writing.

usage: benchmarks/serve_load.py [MODEL] [--clients N] [--requests N] [--tokens N] [--leave SHARE]
"""

import argparse
import asyncio
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import uvloop

from lean_client import Connection, body_of, connect, ended_well, request, text_of
from server_process import Server, resident_mb, serving

SUBJECTS = ("the sea", "a goat", "old maps", "the moon", "bread", "a clock", "rivers", "glass", "winter", "a violin")
QUESTIONS = ("What is {}?", "Write a line about {}.", "Why do people like {}?", "Where does one find {}?")
LEAVE_WITHIN_S = 3.0
HEALTH_EVERY_S = 0.05
MOST_HEALTH_S = 0.05
GONE = re.compile(rb"^tahr_(requests_running|requests_waiting|requests_active|kv_cache_usage_ratio)\S* (\S+)$", re.M)


class Question(NamedTuple):
    """A request, by its number."""

    number: int
    data: bytes


@dataclass
class Tally:
    """What became of the requests."""

    texts: list[tuple[int, str]] = field(default_factory=list)  # of those that came to their end
    errors: list[str] = field(default_factory=list)
    n_left: int = 0
    health_s: list[float] = field(default_factory=list)


def questions(n_tokens: int) -> list[Question]:
    texts = [question.format(subject) for question in QUESTIONS for subject in SUBJECTS]
    bodies = (
        {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": n_tokens, "stream": True}
        for text in texts
    )
    return [Question(i, request("/v1/chat/completions", body)) for i, body in enumerate(bodies)]


async def alone(address: str, requested: list[Question]) -> list[str]:
    """What each question gets when it is the only one."""
    connection = await connect(address)
    return [text_of(await connection.ask(question.data)) for question in requested]


async def client(address: str, left: Iterator[int], requested: list[Question], leave: float, tally: Tally) -> None:
    connection = await connect(address)
    for number in left:
        dice = random.Random(number)
        question = dice.choice(requested)
        if dice.random() < leave:
            await hang_up(connection, question, dice.uniform(0, LEAVE_WITHIN_S))
            tally.n_left += 1
            connection = await connect(address)
            continue
        answer = await connection.ask(question.data)
        if ended_well(answer):
            tally.texts.append((question.number, text_of(answer)))
        else:
            tally.errors.append(answer[-300:].decode(errors="replace"))
            connection = await connect(address)
    connection.transport.close()


async def hang_up(connection: Connection, question: Question, after_s: float) -> None:
    answer = connection.ask(question.data)
    await asyncio.wait({answer}, timeout=after_s)
    connection.transport.abort()


async def watch_health(address: str, tally: Tally) -> None:
    connection, data = await connect(address), request("/health")
    while True:
        began = time.perf_counter()
        if not ended_well(await connection.ask(data)):
            tally.errors.append("/health was not 200")
        tally.health_s.append(time.perf_counter() - began)
        await asyncio.sleep(HEALTH_EVERY_S)


async def press(address: str, requested: list[Question], args: argparse.Namespace) -> Tally:
    tally, left = Tally(), iter(range(args.requests))
    health = asyncio.create_task(watch_health(address, tally))
    await asyncio.gather(*(client(address, left, requested, args.leave, tally) for _ in range(args.clients)))
    health.cancel()
    return tally


async def held(address: str) -> dict[str, float]:
    """What the server still holds, a moment after everybody has gone."""
    connection = await connect(address)
    for _ in range(50):
        found = GONE.findall(body_of(await connection.ask(request("/metrics"))))
        values = {name.decode(): float(value) for name, value in found}
        if not any(values.values()):
            break
        await asyncio.sleep(0.1)
    return values


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(tally: Tally, wanted: list[str], seconds: float) -> list[str]:
    """Print the figures; what is wrong with them."""
    health = [1e3 * value for value in tally.health_s]
    wrong = [(number, text) for number, text in tally.texts if text != wanted[number]]
    n = len(tally.texts) + tally.n_left
    print(f"{n} requests in {seconds:.1f} s: {len(tally.texts)} answered, {tally.n_left} left, "
          f"{len(tally.errors)} errors, {len(wrong)} with another text than alone")  # fmt: skip
    print(f"/health: {len(health)} asked, median {statistics.median(health):.1f} ms, "
          f"p99 {percentile(health, 0.99):.1f} ms, worst {max(health):.1f} ms")  # fmt: skip
    faults = [f"an error: {error}" for error in tally.errors[:1]]
    faults += [f"question {number} got {text!r} instead of {wanted[number]!r}" for number, text in wrong[:1]]
    slow = percentile(tally.health_s, 0.99) > MOST_HEALTH_S
    return faults + [f"p99 of /health is above {MOST_HEALTH_S * 1e3:.0f} ms"] * slow


async def bench(server: Server, args: argparse.Namespace) -> list[str]:
    requested = questions(args.tokens)
    wanted = await alone(server.address, requested)
    before_mb, began = resident_mb(server.pid), time.perf_counter()
    tally = await press(server.address, requested, args)
    faults = report(tally, wanted, time.perf_counter() - began)
    values = await held(server.address)
    print(f"held afterwards: {values}; memory {before_mb:.0f} MB before, {resident_mb(server.pid):.0f} MB after")
    return faults + [f"{name} is {value} when all is over" for name, value in values.items() if value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--leave", type=float, default=0.2)
    args = parser.parse_args()
    with serving(args.model) as server:
        faults = uvloop.run(bench(server, args))
    for fault in faults:
        print("FAIL", fault)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

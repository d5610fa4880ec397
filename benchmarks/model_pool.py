"""Random requests for three models or more, with memory for all but one: who answers, and what it takes.

usage: benchmarks/model_pool.py MODEL MODEL MODEL [--minutes 10] [--clients 8] [--kv 8m]
Every model replies to some prompts alone first; then clients send these prompts at random, streamed or whole, and some
leave early. Exits with 1 if a reply is not that of the model asked for, if one is lost, or if models take more memory
than the budget.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from server_process import Server, resident_mb, serving

PROMPTS = [f"{begin} {what}" for begin in ("Once upon a time", "The best way to") for what in ("a cat", "in the", "we")]
N_TOKENS = 12
LEAVES = 0.1  # this part of the clients does not wait for the end


@dataclass
class PoolTally:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    most_bytes: int = 0
    most_mb: float = 0.0


def body(model: str, prompt: str, stream: bool = False) -> dict[str, object]:
    return {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": N_TOKENS, "stream": stream}


def alone(paths: list[str], options: list[str]) -> tuple[dict[tuple[str, str], str], list[int]]:
    """What every model says to every prompt, and how much memory each takes."""
    with serving(*options) as server, httpx.Client(base_url=server.address, timeout=600) as client:
        said = {}
        for i in range(len(paths)):
            for prompt in PROMPTS:
                reply = client.post("/v1/completions", json=body(f"m{i}", prompt)).raise_for_status().json()
                said[f"m{i}", prompt] = reply["choices"][0]["text"]
        sizes = [each["n_bytes"] for each in client.get("/admin/models").json()["data"]]
    return said, sizes


async def one_request(
    client: httpx.AsyncClient, rng: random.Random, said: dict[tuple[str, str], str], tally: PoolTally
) -> None:
    (model, prompt), wanted = rng.choice(list(said.items()))
    stream, leaves = rng.random() < 0.5, rng.random() < LEAVES
    began = time.perf_counter()
    try:
        sent = client.post("/v1/completions", json=body(model, prompt, stream))
        reply = await asyncio.wait_for(sent, rng.uniform(0, 0.3) if leaves else None)
    except (TimeoutError, httpx.TimeoutException):
        tally.counts["left"] += 1
        if not leaves:
            tally.wrong.append(f"{model} never answered")
        return
    tally.slowest_s = max(tally.slowest_s, time.perf_counter() - began)
    tally.counts[model] += 1
    text = text_of(reply, stream)
    if reply.status_code != 200 or text != wanted:
        tally.wrong.append(f"{model} said {reply.status_code} {text!r} where {wanted!r} was expected")


def text_of(reply: httpx.Response, stream: bool) -> str:
    if reply.status_code != 200:
        return reply.text
    if not stream:
        return str(reply.json()["choices"][0]["text"])
    parts = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for part in parts for choice in part.get("choices", ()))


async def traffic(server: Server, said: dict[tuple[str, str], str], seconds: float, n_clients: int) -> PoolTally:
    tally, ends = PoolTally(), time.monotonic() + seconds

    async def client_loop(i: int, client: httpx.AsyncClient) -> None:
        rng = random.Random(i)
        while time.monotonic() < ends and not tally.wrong:
            await one_request(client, rng, said, tally)

    async def watch(client: httpx.AsyncClient) -> None:
        while True:
            pool = (await client.get("/admin/models")).json()
            tally.most_bytes = max(tally.most_bytes, pool["n_bytes"])
            tally.most_mb = max(tally.most_mb, resident_mb(server.pid))
            await asyncio.sleep(0.05)

    async with httpx.AsyncClient(base_url=server.address, timeout=120) as client:
        watching = asyncio.create_task(watch(client))
        await asyncio.gather(*(client_loop(i, client) for i in range(n_clients)))
        watching.cancel()
        for line in (await client.get("/metrics")).text.splitlines():
            if line.startswith(("tahr_model_loads", "tahr_model_unloads", "tahr_model_load_failures")):
                name, value = line.split()
                tally.counts[name] = int(float(value))
        idle = (await client.get("/admin/models")).json()["data"]
        if any(each["active_requests"] or each["waiting_requests"] for each in idle):
            tally.wrong.append("requests are left over")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kv", default="8m")
    args = parser.parse_args()
    options = [part for i, each in enumerate(args.models) for part in ("--model", f"m{i}={each},kv_bytes={args.kv}")]
    options += ["-t", "1", "-c", "256"]
    said, sizes = alone(args.models, options)
    budget = sum(sorted(sizes)[1:])
    print(f"sizes {[round(size / 1e6, 1) for size in sizes]} MB, budget {budget / 1e6:.1f} MB")
    with serving(*options, "--models-budget", str(budget)) as server:
        tally = asyncio.run(traffic(server, said, args.minutes * 60, args.clients))
    if tally.most_bytes > budget:
        tally.wrong.append(f"models took {tally.most_bytes} bytes")
    print(f"{dict(tally.counts)}, slowest {tally.slowest_s:.2f} s")
    print(f"models took {tally.most_bytes / 1e6:.1f} MB at most, the process {tally.most_mb:.0f} MB")
    for each in tally.wrong[:10]:
        print("WRONG:", each)
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main())

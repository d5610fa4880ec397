"""Eight keys at a server that has too much to do: each gets the same part, also one that sends ten times as much."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import pytest

from keyed_server import by, many_keys
from serve_process import served
from tahr.cli.main import main

N_REPLIES = 240
BODY = {"prompt": "Once upon a time", "max_tokens": 96, "ignore_eos": True}
AT_ONCE = {"greedy": 60, **{f"key {i}": 6 for i in range(7)}}


async def overload(address: str, keys: dict[str, str]) -> Counter[str]:
    """How many replies each key has had when there were enough."""
    counts: Counter[str] = Counter()
    enough = asyncio.Event()
    limits = httpx.Limits(max_connections=200)

    async def ask(client: httpx.AsyncClient, name: str) -> None:
        while True:
            reply = await client.post("/v1/completions", json=BODY, headers=by(keys[name]))
            assert reply.status_code == 200, reply.text
            counts[name] += 1
            if counts.total() >= N_REPLIES:
                enough.set()

    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        # The greedy key comes first, and all of its requests wait before the others send any.
        tasks = [asyncio.create_task(ask(client, name)) for name, n in AT_ONCE.items() for _ in range(n)]
        stopping = asyncio.create_task(enough.wait())
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, *tasks):
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, AssertionError)]
    return counts


def test_eight_keys_get_equal_parts(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = many_keys(tmp_path, list(AT_ONCE))
    options = ("--state-dir", str(tmp_path), "--max-batch-size", "2", "--no-request-log")
    with served(str(stories), *options) as server:
        counts = asyncio.run(overload(server.address, keys))
        assert max(counts.values()) <= 1.1 * min(counts.values()), counts
        server.process.terminate()
        server.process.wait(20)
    capsys.readouterr()
    assert main(["usage", "--state-dir", str(tmp_path), "--format", "json"]) == 0
    tokens = {row["key"]: row["output_tokens"] for row in json.loads(capsys.readouterr().out)}
    assert max(tokens.values()) <= 1.1 * min(tokens.values()), tokens
    assert all(tokens[name] >= 96 * counts[name] for name in keys)

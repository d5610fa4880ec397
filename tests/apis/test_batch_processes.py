"""Batches of a real server: killed and started again, and beside a client's stream."""

import re
import signal
import time
from pathlib import Path

import httpx
import openai

from batch_server import TEXT, line, lines_of
from serve_process import ServeProcess, served


def client_of(server: ServeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60)


def begun(client: openai.OpenAI, n_lines: int, n_tokens: int) -> str:
    lines = [
        line(f"r{i}", prompt=f"Once upon a time {i}", max_tokens=n_tokens, temperature=0, ignore_eos=True)
        for i in range(n_lines)
    ]
    sent = client.files.create(file=("in.jsonl", "".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=sent.id, endpoint=TEXT, completion_window="24h").id


def n_completed(client: openai.OpenAI, id: str) -> int:
    counts = client.batches.retrieve(id).request_counts
    assert counts and not counts.failed
    return counts.completed


def wait_for(client: openai.OpenAI, id: str, n: int) -> None:
    until = time.monotonic() + 120
    while n_completed(client, id) < n:
        assert time.monotonic() < until
        time.sleep(0.005)


def n_preempted(server: ServeProcess) -> int:
    metrics = httpx.get(f"{server.address}/metrics").text
    found = re.search(r"^tahr_preemptions_total\S* (\d+)", metrics, re.MULTILINE)
    assert found
    return int(found[1])


def test_kills_lose_and_repeat_nothing(stories: Path, tmp_path: Path) -> None:
    options = (str(stories), "--state-dir", str(tmp_path / "state"))
    n_lines = 60
    with served(*options) as server:
        client = client_of(server)
        id = begun(client, n_lines, 40)
        wait_for(client, id, 5)
        server.signal(signal.SIGKILL)
        server.process.wait(20)
    for n in (20, 35):
        with served(*options) as server:
            wait_for(client_of(server), id, n)
            server.signal(signal.SIGKILL if n == 20 else signal.SIGTERM)
            server.process.wait(20)
    with served(*options) as server:
        client = client_of(server)
        wait_for(client, id, n_lines)
        until = time.monotonic() + 30
        while (batch := client.batches.retrieve(id)).status != "completed":
            assert time.monotonic() < until
            time.sleep(0.01)
        replies = lines_of(client.files.content(batch.output_file_id or "").text)  # each is there once
        assert set(replies) == {f"r{i}" for i in range(n_lines)} and not batch.error_file_id
        for i in (0, 33, 59):
            asked = {"prompt": f"Once upon a time {i}", "max_tokens": 40, "temperature": 0}
            alone = client.completions.create(model="", extra_body={"ignore_eos": True}, **asked)
            assert replies[f"r{i}"]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text


def test_a_stream_goes_before_a_batch(stories: Path, tmp_path: Path) -> None:
    """All places are taken by lines when it comes; it ends while most of them still wait, and they go on."""
    with served(str(stories), "--state-dir", str(tmp_path / "state"), "--max-batch-size", "4") as server:
        client = client_of(server)
        id = begun(client, 400, 60)
        wait_for(client, id, 4)
        asked = {"prompt": "Once", "max_tokens": 120, "stream": True}
        for _ in range(20):  # most find all places taken, but a line may have ended in that moment
            stream = client.completions.create(model="", extra_body={"ignore_eos": True}, **asked)
            assert sum(bool(chunk.choices) for chunk in stream) > 1
            if n_preempted(server):
                break
        after = n_completed(client, id)
        assert n_preempted(server) and after < 400, "lines went before it"
        wait_for(client, id, after + 4)
        client.batches.cancel(id)

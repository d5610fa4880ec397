"""A server that keeps files and batches, and openai's client of it."""

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from scripted_engine import ScriptedEngine, serving
from tahr.server.state.settings import Settings

CHAT, TEXT, EMBED, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
BODIES = {CHAT: HELLO, TEXT: {"prompt": "hello"}, EMBED: {"input": "hello"}, RESPONSES: {"input": "hello"}}


def line(name: str, url: str = TEXT, method: str = "POST", **body: Any) -> str:
    return json.dumps({"custom_id": name, "method": method, "url": url, "body": body or BODIES[url]}) + "\n"


def lines_of(content: str) -> dict[str, dict[str, Any]]:
    found = [json.loads(each) for each in content.splitlines()]
    named = {each["custom_id"]: each for each in found}
    assert len(named) == len(found), "a line has two results"
    return named


class Served:
    """A server with a folder for its state, and a client for each key."""

    def __init__(self, address: str):
        self.address = address
        self.client = openai.OpenAI(base_url=f"{address}/v1", api_key="one", max_retries=0, timeout=20)
        self.other = self.client.with_options(api_key="two")
        self.http = httpx.Client(base_url=address, headers={"authorization": "Bearer one"}, timeout=20)

    def upload(self, *lines: str, name: str = "in.jsonl") -> str:
        sent = (name, io.BytesIO("".join(lines).encode()))
        return self.client.files.create(file=sent, purpose="batch").id

    def begin(self, *lines: str, endpoint: Any = TEXT) -> openai.types.Batch:
        file_id = self.upload(*lines)
        return self.client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h")

    def until(self, id: str, *statuses: str) -> openai.types.Batch:
        """The batch, as soon as it has one of these."""
        until = time.monotonic() + 30
        while (found := self.client.batches.retrieve(id)).status not in statuses:
            assert time.monotonic() < until, found
            time.sleep(0.01)
        return found

    def ended(self, *lines: str, endpoint: str = TEXT) -> openai.types.Batch:
        return self.until(self.begin(*lines, endpoint=endpoint).id, "completed", "failed", "expired", "cancelled")

    def content(self, id: str | None) -> dict[str, dict[str, Any]]:
        return lines_of(self.client.files.content(id).text) if id else {}


@contextmanager
def served(folder: Path, engine: Any = None, **settings: Any) -> Iterator[Served]:
    options = {"port": 0, "log_interval_s": 0, "api_keys": ("one", "two"), "state_dir": str(folder), **settings}
    with serving(engine or ScriptedEngine(), settings=Settings(**options)) as running:
        made = Served(running.address)
        with made.client, made.http:
            yield made

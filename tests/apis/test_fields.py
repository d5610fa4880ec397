"""The tables of fields are what the server does: what changes nothing is taken, the rest is refused by name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import field_tables  # noqa: E402

HELLO = [{"role": "user", "content": "hello"}]
# Where a kind of body is sent, and the least it must have.
SENT: dict[str, tuple[str, dict[str, Any]]] = {
    "`/v1/chat/completions`": ("/v1/chat/completions", {"messages": HELLO}),
    "`/v1/completions`": ("/v1/completions", {"prompt": "x"}),
    "`/v1/responses`": ("/v1/responses", {"input": "x"}),
    "`/v1/messages`": ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    "`/api/chat`": ("/api/chat", {"model": "scripted", "messages": HELLO, "stream": False}),
    "`/api/generate`": ("/api/generate", {"model": "scripted", "prompt": "x", "stream": False}),
    "`options`": ("/api/chat", {"model": "scripted", "messages": HELLO, "stream": False}),
    "`/completion`": ("/completion", {"prompt": "x"}),
}
# What asks for something, where no object can.
ASKING: dict[str, Any] = {
    "images": ["aGVsbG8="], "template": "x", "context": [1], "truncate": True, "shift": True, "tfs_z": 0.5,
    "penalize_newline": False, "logits_all": True, "vocab_only": True, "dynatemp_range": 0.5,
    "post_sampling_probs": True, "min_keep": 1, "timings_per_token": True, "n_cmpl": 2, "truncation": "auto",
    "context_management": {"edits": [{}]},
    "include": ["message.output_text.logprobs"], "background": True, "top_logprobs": 3,
}  # fmt: skip
BODIES = {fields.title: fields for tables in field_tables.TABLES.values() for fields in tables if fields.title in SENT}
INERT = [(title, name) for title, fields in BODIES.items() for name in field_tables.sort(fields).inert]
REFUSED = [
    (title, name)
    for title, fields in BODIES.items()
    for name in [*field_tables.sort(fields).refused, *field_tables.sort(fields).only]
]
ALLOWED = [
    (title, name, value)
    for title, fields in BODIES.items()
    for name, values in field_tables.sort(fields).only.items()
    for value in values
]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_of(ScriptedEngine()) as made:
        yield made


def send(client: httpx.Client, title: str, name: str, value: Any) -> httpx.Response:
    path, body = SENT[title]
    given = {name: value}
    return client.post(path, json={**body, "options": given} if title == "`options`" else {**body, **given})


def test_the_tables_are_true() -> None:
    text = field_tables.PAGE.read_text(encoding="utf-8")
    assert text == field_tables.page(text), "run: python scripts/field_tables.py"


def test_every_kind_of_field_is_tried() -> None:
    assert len(BODIES) == len(SENT) and len(INERT) > 30 and len(REFUSED) > 20 and len(ALLOWED) > 15


def test_fields_that_change_nothing_are_taken(client: httpx.Client) -> None:
    refused = {
        f"{title} {name}: {reply.text}"
        for title, name in INERT
        if (reply := send(client, title, name, {"x": 1})).status_code != 200
    }
    assert refused == set()


def test_fields_are_refused_by_name(client: httpx.Client) -> None:
    wrong = set()
    for title, name in REFUSED:
        reply = send(client, title, name, ASKING.get(name, {"x": 1}))
        if reply.status_code != 400 or name not in reply.text:
            wrong.add(f"{title} {name}: {reply.status_code} {reply.text}")
    assert wrong == set()


def test_values_that_ask_for_nothing_are_taken(client: httpx.Client) -> None:
    refused = {
        f"{title} {name}: {reply.text}"
        for title, name, value in ALLOWED
        if (reply := send(client, title, name, value)).status_code != 200
    }
    assert refused == set()

"""One engine, every API at once: no error, no leak, no mixing, whoever hangs up."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from scripted_engine import ScriptedEngine, reply_to, serving
from tahr.server.state.settings import Settings

N_CLIENTS, N_REQUESTS = 16, 2  # of each API, and of each client
Json = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """How an API is asked, and where its text stands in a whole reply and in an event of a stream."""

    path: str
    body: Callable[[str], Json]
    whole: Callable[[Json], str]
    piece: Callable[[Json], str]
    line: str = "data: "  # what stands before an event


def messages(text: str, **more: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], **more}


APIS = {
    "chat": Api(
        "/v1/chat/completions",
        lambda text: messages(text, max_tokens=300),
        lambda made: made["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content") or "",
    ),
    "completions": Api(
        "/v1/completions",
        lambda text: {"prompt": text, "max_tokens": 300},
        lambda made: made["choices"][0]["text"],
        lambda event: event["choices"][0]["text"],
    ),
    "responses": Api(
        "/v1/responses",
        lambda text: {"input": text},
        lambda made: made["output"][0]["content"][0]["text"],
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "ollama": Api(
        "/api/chat",
        lambda text: messages(text, model="scripted", stream=False),
        lambda made: made["message"]["content"],
        lambda event: event["message"]["content"],
        line="",
    ),
    "messages": Api(
        "/v1/messages",
        lambda text: messages(text, max_tokens=300),
        lambda made: made["content"][0]["text"],
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
    ),
}


async def ask(client: httpx.AsyncClient, api: Api, text: str, dice: random.Random) -> int:
    """One request, whole, streamed or broken off; 1 if it was answered to the end."""
    body, way = api.body(text), dice.choice(("whole", "stream", "stream", "leave"))
    if way == "whole":
        made = (await client.post(api.path, json=body)).raise_for_status().json()
        assert api.whole(made) == reply_to(text), (api.path, text, made)
        return 1
    said = ""
    async with client.stream("POST", api.path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith(api.line + "{"):
                said += api.piece(json.loads(line.removeprefix(api.line)))
            if way == "leave" and said:
                return 0
    assert said == reply_to(text), (api.path, text, said)
    return 1


async def talk(client: httpx.AsyncClient, name: str, number: int) -> int:
    dice = random.Random(f"{name} {number}")
    texts = [f"{name} {number} {i} {'word ' * dice.randrange(4)}end" for i in range(N_REQUESTS)]
    return sum([await ask(client, APIS[name], text, dice) for text in texts])


async def talk_all(address: str) -> int:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        return sum(await asyncio.gather(*(talk(client, name, i) for name in APIS for i in range(N_CLIENTS))))


def test_every_api_at_once() -> None:
    engine = ScriptedEngine()
    with serving(engine, settings=Settings(port=0, log_interval_s=0)) as server:
        n_answered = asyncio.run(talk_all(server.address))
        n_all = len(APIS) * N_CLIENTS * N_REQUESTS
        assert n_all / 2 < n_answered < n_all
        until = time.monotonic() + 10
        while engine.live and time.monotonic() < until:
            time.sleep(0.02)
        assert not engine.live and not server.state.admission.active
        assert len(engine.seen) >= n_all
        counted = httpx.get(server.address + "/metrics").text
        assert 'status="5xx"' not in counted and 'status="4xx"' not in counted

"""Something breaks in one request of 32, at every stage in turn: the other 31 get the same bytes as without it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines import poison
from scripted_engine import TEMPLATE, serving
from tahr import AsyncLLM, EngineConfig
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.server.http.request import HttpRequest
from tahr.server.lifecycle import HttpServer
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.openai import chat as chat_route
from tahr.text.templates.chat import ChatTemplate

CHAT = "/v1/chat/completions"
N, VICTIM = 32, 13
WORD = "victim"
OWN = re.compile(r'"id":"chatcmpl-[0-9a-f]+"|"created":\d+')  # what no two answers share


class Broken(Exception):
    """No error of ours: nobody expects it."""


@pytest.fixture(scope="module")
def engine(stories: Path) -> LlmEngine:
    made = LlmEngine(AsyncLLM(str(stories), config=EngineConfig(n_threads=1, max_batch_size=N)))
    made.template = ChatTemplate(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def server(engine: LlmEngine) -> Iterator[HttpServer]:
    with serving(engine) as running:
        yield running


# ---- what breaks, and where -------------------------------------------------------------------------------------

Breaking = Callable[[LlmEngine, pytest.MonkeyPatch], None]


def breaks(found: bool) -> None:
    if found:
        raise Broken(WORD)


def before(owner: Any, name: str, is_victim: Callable[..., bool], patch: pytest.MonkeyPatch) -> None:
    """Whatever has that name breaks for the victim, and works as ever for the others."""
    sound = getattr(owner, name)

    def method(*args: Any, **options: Any) -> Any:
        breaks(is_victim(*args, **options))
        return sound(*args, **options)

    patch.setattr(owner, name, method)


def in_tokenizer(engine: LlmEngine, patch: pytest.MonkeyPatch) -> None:
    before(type(engine.tokenizer), "encode", lambda _, text, **more: WORD in text, patch)


def in_template(engine: LlmEngine, patch: pytest.MonkeyPatch) -> None:
    before(ChatTemplate, "render", lambda _, messages, **more: WORD in str(messages), patch)


def in_checks(engine: LlmEngine, patch: pytest.MonkeyPatch) -> None:
    before(chat_route, "options_of", lambda body: WORD in str(body.messages), patch)


def is_victims(engine: LlmEngine, seq: Sequence) -> bool:
    return WORD in engine.tokenizer.decode(seq.tokens[: seq.n_prompt])


def at_admission(engine: LlmEngine, patch: pytest.MonkeyPatch) -> None:
    inner = engine._llm.llm.engine
    before(inner, "submit", lambda resolved, *more: WORD in engine.tokenizer.decode(resolved.tokens), patch)


def in_model(engine: LlmEngine, patch: pytest.MonkeyPatch, n_generated: int) -> None:
    """The model says nonsense to one sequence."""
    poison(
        engine._llm.llm.engine, lambda seq: seq.n_generated >= n_generated and is_victims(engine, seq), patch.setattr
    )


def in_detokenizer(engine: LlmEngine, patch: pytest.MonkeyPatch) -> None:
    inner = engine._llm.llm.engine
    sound = inner.submit

    def submit(resolved: ResolvedRequest, *more: Any) -> Sequence:
        seq = sound(resolved, *more)
        if is_victims(engine, seq):
            before(seq.reply.writer, "push", lambda token: seq.n_generated > 3, patch)
        return seq

    patch.setattr(inner, "submit", submit)


def in_writing(engine: LlmEngine, patch: pytest.MonkeyPatch) -> None:
    for name in ("send", "respond"):
        before(HttpRequest, name, lambda request, *more: WORD.encode() in request.data, patch)


STAGES: dict[str, Breaking] = {
    "parse": lambda engine, patch: None,  # the victim's body is cut short
    "check": in_checks,
    "template": in_template,
    "tokenise": in_tokenizer,
    "admit": at_admission,
    "prefill": lambda engine, patch: in_model(engine, patch, 0),
    "decode": lambda engine, patch: in_model(engine, patch, 3),
    "detokenise": in_detokenizer,
    "write": in_writing,
}


# ---- 32 requests ------------------------------------------------------------------------------------------------


def body(i: int, cut: bool) -> bytes:
    text = f"The {WORD} said" if i == VICTIM else f"There were {i} goats"
    made = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8 + i % 5}
    if i % 4 == 3:
        made |= {"logprobs": True, "top_logprobs": 2}
    data = json.dumps({**made, "stream": is_streamed(i)}).encode()
    return data[:-2] if cut and i == VICTIM else data


def is_streamed(i: int) -> bool:
    return bool(i % 2)


def ask_all(server: HttpServer, cut: bool = False) -> list[tuple[int, str]]:
    """Status and body of all answers, without what is different each time."""

    async def one(client: httpx.AsyncClient, i: int) -> tuple[int, str]:
        answer = await client.post(CHAT, content=body(i, cut))
        return answer.status_code, joined(answer.text) if is_streamed(i) else OWN.sub("", answer.text)

    async def main() -> list[tuple[int, str]]:
        limits = httpx.Limits(max_connections=N)
        async with httpx.AsyncClient(base_url=server.address, timeout=60, limits=limits) as client:
            pending: list[Awaitable[tuple[int, str]]] = [one(client, i) for i in range(N)]
            return await asyncio.gather(*pending)

    return asyncio.run(main())


def joined(stream: str) -> str:
    """A stream however its tokens were grouped: the text, the logprobs, the end."""
    parts = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for part in parts for choice in part.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    logprobs = [each for choice in choices for each in (choice["logprobs"] or {}).get("content", ())]
    errors = [part["error"]["type"] for part in parts if "error" in part]
    assert stream.endswith("data: [DONE]\n\n") or not parts
    return json.dumps([text, logprobs, errors, [c["finish_reason"] for c in choices if c["finish_reason"]]])


@pytest.fixture(scope="module")
def sound(server: HttpServer) -> list[tuple[int, str]]:
    made = ask_all(server)
    assert all(status == 200 for status, _ in made)
    return made


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("streamed", [False, True])
def test_the_others_get_the_same_bytes(
    stage: str, streamed: bool, server: HttpServer, engine: LlmEngine, sound: list[tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(f"{__name__}.is_streamed", lambda i: streamed if i == VICTIM else bool(i % 2))
    STAGES[stage](engine, monkeypatch)
    made = ask_all(server, cut=stage == "parse")
    status, text = made.pop(VICTIM)
    wanted = [each for i, each in enumerate(sound) if i != VICTIM]
    assert made == wanted
    failed = status == (400 if stage == "parse" else 500) or (status == 200 and "server_error" in text)
    assert failed, (status, text)
    assert WORD not in text, "an error does not quote what was said"
    monkeypatch.undo()
    snapshot = engine.snapshot()
    assert (snapshot.requests_running, snapshot.requests_waiting, snapshot.pages_used) == (0, 0, 0)
    assert ask_all(server) == sound, "nothing of it is left"

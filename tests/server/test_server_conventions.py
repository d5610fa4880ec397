"""What clients of other servers take for granted: conventional values, names, ids, progress, typed deltas."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scripted_engine import BOS, ScriptedEngine, ScriptedReply, pick_of, serving
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.generation.outputs import Chunk
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import ServedModel
from tahr.server.routes import ROUTES
from tahr.server.state.settings import Settings
from tahr.text.replies.deltas import Delta, ReasoningDelta, ToolCallDelta

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[HttpServer]:
    models = [ServedModel(("Main-Model", "alias"), engine), ServedModel(("second",), ScriptedEngine("second"))]
    with serving(load=lambda: models) as running:
        while httpx.get(running.address + "/health").status_code != 200:
            pass
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=20) as made:
        yield made


def ask(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def error(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]  # type: ignore[no-any-return]


def events(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    lines = client.post(path, json={**body, "stream": True}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


# ---- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path, body", [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "hello"})])
def test_conventional_values(client: httpx.Client, engine: ScriptedEngine, path: str, body: dict[str, Any]) -> None:
    ask(client, path, **body, top_k=-1, seed=-1, top_p=0, max_tokens=-1)
    params = engine.seen[-1].params
    assert params.top_k == 0 and params.seed is None and params.top_p and params.top_p < 1e-3
    assert params.max_tokens == engine.context_size - len(engine.seen[-1].tokens), "as long as it fits"


def test_the_field_that_was_sent_is_the_one_that_is_named(client: httpx.Client) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        long = error(client, CHAT, messages=HELLO, **{name: 5000})
        assert (long["param"], long["code"]) == (name, "context_length_exceeded")
        assert "maximum context length is 512 tokens" in long["message"] and name in long["message"]
        assert error(client, CHAT, messages=HELLO, **{name: -7})["param"] == name
    assert error(client, TEXT, prompt="x", repeat_penalty=-1)["param"] == "repeat_penalty"
    assert "maximum context length is 512 tokens" in error(client, TEXT, prompt="x" * 600)["message"]
    assert "maximum context length is 512 tokens" in error(client, "/v1/embeddings", input="x" * 600)["message"]


def test_embeddings_of_objects(client: httpx.Client) -> None:
    plain = ask(client, "/v1/embeddings", input=["a", "bc"])["data"]
    assert ask(client, "/v1/embeddings", input=[{"text": "a"}, {"text": "bc"}])["data"] == plain
    assert ask(client, "/v1/embeddings", input=["a", {"text": "bc"}])["data"] == plain
    assert ask(client, "/v1/embeddings", input={"text": "a"})["data"] == plain[:1]
    both = error(client, "/v1/embeddings", input=[{"text": "a", "image": "b"}])
    assert both["param"] == "input" and "image" in both["message"]
    assert error(client, TEXT, prompt=[{"text": "a"}])["param"].startswith("prompt")


def test_tokenize_as_llama_cpp_spells_it(client: httpx.Client) -> None:
    assert ask(client, "/tokenize", content="a", add_special=False)["tokens"] == [97]
    assert ask(client, "/tokenize", content="a", add_special=True, tools=None)["tokens"] == [BOS, 97]
    assert error(client, "/tokenize", content="a", tools=[{"type": "function"}])["param"] == "tools"
    made = ask(client, "/tokenize", content="aé", add_special=False, with_pieces=True)["tokens"]
    assert made == [{"id": 97, "piece": "a"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


# ---- names and ids ------------------------------------------------------------------------------------------


def test_a_reply_names_what_was_asked_for(client: httpx.Client) -> None:
    for name in ("Main-Model", "alias", "main-model", "MAIN-MODEL", "Alias"):
        assert ask(client, CHAT, model=name, messages=HELLO, max_tokens=1)["model"] == name
        assert events(client, TEXT, model=name, prompt="x", max_tokens=1)[0]["model"] == name
        assert ask(client, "/v1/embeddings", model=name, input="x")["model"] == name
        assert client.get(f"/v1/models/{name}").status_code == 200
    assert ask(client, CHAT, messages=HELLO, max_tokens=1)["model"] == "Main-Model"
    assert client.post(CHAT, json={"model": "absent", "messages": HELLO}).status_code == 404


def test_a_system_fingerprint(client: httpx.Client) -> None:
    first = ask(client, CHAT, messages=HELLO, max_tokens=1)["system_fingerprint"]
    assert re.fullmatch(r"b[1-9]\d*-[0-9a-f]{8}", first), "as llama.cpp writes its own"
    assert ask(client, TEXT, prompt="x", max_tokens=1)["system_fingerprint"] == first
    assert {each["system_fingerprint"] for each in events(client, CHAT, messages=HELLO, max_tokens=3)} == {first}
    assert ask(client, CHAT, model="second", messages=HELLO, max_tokens=1)["system_fingerprint"] != first


def test_every_response_has_a_request_id(
    client: httpx.Client, server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.state, "drain", lambda: None)  # the server is needed for more
    paths = [(route.method, route.path) for route in ROUTES] + [("GET", "/nowhere"), ("DELETE", "/health")]
    found = [client.request(method, path).headers.get("x-request-id") for method, path in paths]
    assert all(found) and len(set(found)) == len(found)


# ---- progress -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": True}])
def test_progress_has_a_beginning_and_an_end(client: httpx.Client, more: dict[str, Any]) -> None:
    made = events(client, CHAT, messages=HELLO, max_tokens=3, return_progress=True, **more)
    found = [(i, each["prompt_progress"]) for i, each in enumerate(made) if "prompt_progress" in each]
    first_text = next(i for i, each in enumerate(made) for c in each["choices"] if c["delta"].get("content"))
    (_, first), (last_at, last) = found[0], found[-1]
    assert len(found) >= 2 and first["processed"] < first["total"]
    assert last["processed"] == last["total"] == len("[user]hello\n[assistant]") + 1 and last_at < first_text


# ---- typed deltas -------------------------------------------------------------------------------------------

DELTAS: tuple[tuple[Delta, ...], ...] = (
    (ReasoningDelta("Hm, "),),
    (ReasoningDelta("yes."), "I "),
    ("look.",),
    (ToolCallDelta(0, id="call_1", name="find"), ToolCallDelta(0, '{"q":')),
    (ToolCallDelta(0, '"goat"}'),),
    (ToolCallDelta(1, "{}", "call_2", "now"),),
)
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q":"goat"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
]


class TypedReply(ScriptedReply):
    def answer(self, index: int) -> Iterator[Chunk]:
        picks = self.engine.picks if self.params.logprobs is not None else ()  # type: ignore[attr-defined]
        for at, deltas in enumerate(self.engine.deltas):  # type: ignore[attr-defined]
            self.stats.n_generated_tokens = at + 1
            reason = "stop" if at == len(self.engine.deltas) - 1 else None  # type: ignore[attr-defined]
            yield Chunk(deltas, [65], reason, self.completion(reason) if reason else None, index, picks)


class TypedEngine(ScriptedEngine):
    """Writes what it is told to."""

    deltas: tuple[tuple[Delta, ...], ...] = DELTAS

    async def submit(self, resolved: ResolvedRequest, whole: bool = False) -> ScriptedReply:
        self.picks = (pick_of(65, 1),)
        return TypedReply(self, list(resolved.tokens), resolved.params)


@pytest.fixture(scope="module")
def typed() -> Iterator[httpx.Client]:
    settings = Settings(port=0, log_interval_s=0)
    with serving(TypedEngine(), settings=settings) as server, httpx.Client(base_url=server.address) as client:
        yield client


def test_reasoning_and_tool_calls_in_a_message(typed: httpx.Client) -> None:
    choice = ask(typed, CHAT, messages=HELLO)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "I look." and message["tool_calls"] == CALLS
    assert message["reasoning_content"] == message["reasoning"] == "Hm, yes."


@pytest.mark.parametrize("logprobs", [False, True])
def test_reasoning_and_tool_calls_in_a_stream(typed: httpx.Client, logprobs: bool) -> None:
    made = events(typed, CHAT, messages=HELLO, logprobs=logprobs)
    choices = [choice for each in made for choice in each["choices"]]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["tool_calls"]
    assert "".join(each.get("content", "") for each in deltas) == "I look."
    for name in ("reasoning_content", "reasoning"):
        assert "".join(each.get(name, "") for each in deltas) == "Hm, yes."
    calls: dict[int, dict[str, Any]] = {}
    for piece in (piece for each in deltas for piece in each.get("tool_calls", ())):
        call = calls.setdefault(piece["index"], {"id": piece.get("id"), "type": piece.get("type"), "function": {}})
        for key, value in piece["function"].items():
            call["function"][key] = call["function"].get(key, "") + value
    assert [calls[i] for i in sorted(calls)] == CALLS
    if logprobs:
        assert sum(len((choice["logprobs"] or {}).get("content", ())) for choice in choices) == len(DELTAS)


def test_a_reply_of_calls_alone_has_no_content(typed: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TypedEngine, "deltas", DELTAS[-1:])
    message = ask(typed, CHAT, messages=HELLO)["choices"][0]["message"]
    assert message["content"] is None and message["tool_calls"] == CALLS[1:] and "reasoning" not in message
    monkeypatch.setattr(TypedEngine, "deltas", ((),))
    assert ask(typed, CHAT, messages=HELLO)["choices"][0]["message"]["content"] == ""


def test_completions_are_text(typed: httpx.Client) -> None:
    assert ask(typed, TEXT, prompt="x")["choices"][0]["text"] == "I look."

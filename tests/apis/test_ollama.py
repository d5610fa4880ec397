"""Ollama's API over a scripted engine: shapes, streams, fields, names, refusals."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fill_in_tokenizer import FillInTokenizer
from pooled_server import ScriptedLoader, until
from scripted_engine import ScriptedEngine, reply_to, serving
from tahr.server.http.errors import HttpError
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import ServedModel
from tahr.server.ollama.fields import keep_alive_s
from tahr.server.ollama.pull import source_of
from tahr.server.state.settings import Settings
from tool_replies import ROME, TOOL_TEMPLATE, WEATHER, hermes

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine("story")


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[HttpServer]:
    coder = ScriptedEngine("coder:7b")
    coder.tokenizer, coder.n_device_bytes = FillInTokenizer(), 800
    memory: list[ScriptedEngine] = []
    loaders = [ScriptedLoader("late", memory), ScriptedLoader("gone", memory)]
    models = [ServedModel((each.name,), each) for each in (engine, coder)]
    models += [ServedModel((loader.name,), loader=loader, on_demand=True) for loader in loaders]
    with serving(settings=Settings(port=0, log_interval_s=0), load=lambda: models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=20) as made:
        until(lambda: made.get("/ready").status_code == 200)
        yield made


def lines(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = client.post(path, json={"model": "story", **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


def whole(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json={"model": "story", "stream": False, **body})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def refused(client: httpx.Client, path: str, status: int = 400, **body: Any) -> str:
    reply = client.post(path, json={"model": "story", **body})
    assert reply.status_code == status and reply.json().keys() == {"error"}, reply.text
    return str(reply.json()["error"])


# ---- chat and generate --------------------------------------------------------------------------------------


def test_a_chat_has_the_shape_clients_expect(client: httpx.Client) -> None:
    made = whole(client, "/api/chat", messages=USER)
    durations = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert all(type(made.pop(name)) is int for name in durations) and made.pop("created_at").endswith("Z")
    assert made == {
        "model": "story",
        "message": {"role": "assistant", "content": reply_to("[user]hi\n[assistant]")},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 21,
        "eval_count": len(reply_to("[user]hi\n[assistant]").encode()) + 1,
    }


@pytest.mark.parametrize("options", [{}, {"num_predict": 5}, {"stop": [","]}])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_stream_is_the_whole_reply_in_lines(client: httpx.Client, path: str, options: dict[str, Any]) -> None:
    body: dict[str, Any] = {"options": options} | ({"messages": USER} if "chat" in path else {"prompt": "hi"})
    one, parts = whole(client, path, **body), lines(client, path, **body)
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]

    def text(part: dict[str, Any]) -> str:
        return str(part["message"]["content"] if "chat" in path else part["response"])

    assert "".join(map(text, parts)) == text(one) and text(parts[-1]) == ""
    same = ("done_reason", "prompt_eval_count", "eval_count", "model")
    assert {name: parts[-1][name] for name in same} == {name: one[name] for name in same}
    assert (one["done_reason"] == "length") == ("num_predict" in options)


def test_a_prompt_is_a_message_raw_is_not(client: httpx.Client, engine: ScriptedEngine) -> None:
    whole(client, "/api/generate", prompt="hi", system="be kind")
    assert engine.seen[-1].text == "[system]be kind\n[user]hi\n[assistant]"
    whole(client, "/api/generate", prompt="hi", raw=True)
    assert engine.seen[-1].text == "hi"


def test_a_base_model_continues_prompts() -> None:
    base = ScriptedEngine("base", template=None)
    with serving(base) as running:
        body = {"model": "base", "prompt": "hi", "stream": False}
        assert httpx.post(running.address + "/api/generate", json=body).json()["done"]
        assert base.seen[-1].text == "hi"
        assert httpx.post(running.address + "/api/generate", json={**body, "system": "x"}).status_code == 400


def test_names_of_a_model_are_bounded(client: httpx.Client) -> None:
    made = [client.post("/api/copy", json={"source": "coder:7b", "destination": f"n{i}"}) for i in range(70)]
    assert [each.status_code for each in made].count(200) == 63
    assert len(refused(client, "/api/chat", 404, model="llama3", messages=USER)) < 500
    for i in range(63):
        client.request("DELETE", "/api/delete", json={"model": f"n{i}"})


def test_what_stands_between_two_texts(client: httpx.Client, server: HttpServer) -> None:
    made = whole(client, "/api/generate", model="coder:7b", prompt="def f(", suffix="return x")
    assert made["done"]
    coder: Any = server.state.models.models[1].engine
    assert coder.seen[-1].tokens == [256, 300, *b"def f(", 301, *b"return x", 302]
    assert "take one made for code" in refused(client, "/api/generate", prompt="a", suffix="b")


def test_options_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    given = {"temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "repeat_last_n": 5}
    given |= {"repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 3, "num_predict": 4}
    given |= {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "num_ctx": 512, "num_gpu": 9, "use_mmap": True}
    given |= {"speculative": False}
    whole(client, "/api/chat", messages=USER, options=given)
    params = engine.seen[-1].params
    kept = {name: value for name, value in given.items() if not name.startswith(("num_", "use_", "repeat_pen"))}
    assert {name: getattr(params, name) for name in kept} == kept
    assert params.max_tokens == 4 and params.repetition_penalty == 1.2
    whole(client, "/api/chat", messages=USER)
    assert engine.seen[-1].params.max_tokens == 512 - 21  # as long as it fits


def test_logprobs(client: httpx.Client) -> None:
    one = whole(client, "/api/chat", messages=USER, logprobs=True, top_logprobs=2, options={"num_predict": 3})
    assert [len(each["top_logprobs"]) for each in one["logprobs"]] == [2, 2, 2]
    parts = lines(client, "/api/chat", messages=USER, logprobs=True, top_logprobs=2, options={"num_predict": 3})
    assert [each for part in parts for each in part.get("logprobs", ())] == one["logprobs"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_whole_and_their_arguments_objects(client: httpx.Client, stream: bool) -> None:
    engine = ScriptedEngine("hermes", 4096, TOOL_TEMPLATE)
    history = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
    ]
    with serving(engine) as running, httpx.Client(base_url=running.address) as other:
        engine.scripts.append("I look. " + hermes(ROME))
        body = {"model": "hermes", "messages": history, "tools": [WEATHER], "stream": stream}
        parts = [json.loads(line) for line in other.post("/api/chat", json=body).text.splitlines()]
        calls = [each for part in parts for each in part["message"].get("tool_calls", ())]
        assert [each["function"] for each in calls] == [
            {"index": 0, "name": "get_weather", "arguments": {"city": "Rome", "days": 3}}
        ]
        assert "".join(part["message"]["content"] for part in parts).strip() == "I look."
        assert (
            parts[-1]["done_reason"] == "stop" and '"a": 1' in engine.seen[-1].text and "sunny" in engine.seen[-1].text
        )


def test_thinking_is_kept_apart(client: httpx.Client) -> None:
    engine = ScriptedEngine("thinker", 4096, TOOL_TEMPLATE)
    with serving(engine) as running, httpx.Client(base_url=running.address) as other:
        for path, extra in (("/api/chat", {"messages": USER}), ("/api/generate", {"prompt": "hi"})):
            engine.scripts += ["<think>\nhm, well\n</think>\n\nHello."] * 2
            body = {"model": "thinker", "think": True, **extra}
            one = other.post(path, json={**body, "stream": False}).json()
            parts = [json.loads(line) for line in other.post(path, json=body).text.splitlines()]
            if "chat" in path:
                one, parts = one["message"], [part["message"] for part in parts]
            assert (
                "hm, well" in one["thinking"] and "".join(part.get("thinking", "") for part in parts) == one["thinking"]
            )
            name = "content" if "chat" in path else "response"
            assert one[name].strip() == "Hello." and "".join(part[name] for part in parts) == one[name]
    assert "does not think" in refused(client, "/api/chat", messages=USER, think=True)


def test_a_failure_inside_a_stream_is_a_line(client: httpx.Client) -> None:
    parts = lines(client, "/api/chat", messages=[{"role": "user", "content": "FAIL@3"}])
    assert parts[-1].keys() == {"error"} and len(parts) > 1


def test_a_client_that_leaves_frees_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    with client.stream("POST", "/api/generate", json={"model": "story", "prompt": "HANG@3"}) as reply:
        parts = reply.iter_lines()
        next(parts)
        assert engine.live
    until(lambda: not engine.live)


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["abc"]}]}, "images"),
        ("/api/generate", {"prompt": "x", "images": ["abc"]}, "images"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "s"}, "system"),
        ("/api/chat", {"messages": USER, "truncate": True}, "truncate"),
        ("/api/chat", {"messages": USER, "think": "very"}, "think"),
        ("/api/chat", {"messages": USER, "format": "xml"}, "format"),
        ("/api/chat", {"messages": USER, "options": {"num_ctx": 100_000}}, "num_ctx"),
        ("/api/chat", {"messages": USER, "options": {"tfs_z": 0.5}}, "tfs_z"),
        ("/api/chat", {"messages": USER, "options": {"surprise": 1}}, "surprise"),
        ("/api/chat", {"messages": USER, "options": {"temperature": -1}}, "temperature"),
        ("/api/chat", {"messages": USER, "surprise": 1}, "surprise"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ("/api/chat", {"messages": USER, "model": ""}, "model"),
        ("/api/pull", {"insecure": True}, "insecure"),
        ("/api/create", {}, "/api/create"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    client: httpx.Client, path: str, body: dict[str, Any], names: str
) -> None:
    assert names in refused(client, path, **body)


def test_a_format_is_a_grammar(client: httpx.Client, engine: ScriptedEngine) -> None:
    whole(client, "/api/chat", messages=USER, format="json")
    assert engine.seen[-1].params.grammar is not None
    whole(client, "/api/generate", prompt="x", format={"type": "object", "properties": {"a": {"type": "string"}}})
    assert engine.seen[-1].params.grammar is not None


# ---- models -------------------------------------------------------------------------------------------------


def test_names_may_end_with_latest(client: httpx.Client) -> None:
    made = whole(client, "/api/chat", model="story:latest", messages=USER)
    assert made["model"] == "story:latest"
    names = [each["name"] for each in client.get("/api/tags").json()["models"]]
    assert names[:4] == ["story:latest", "coder:7b", "late:latest", "gone:latest"]
    assert "is not served here" in refused(client, "/api/chat", 404, model="llama3", messages=USER)


def test_a_model_is_shown_loaded_and_unloaded(client: httpx.Client) -> None:
    def loaded() -> list[str]:
        return [each["name"] for each in client.get("/api/ps").json()["models"]]

    assert whole(client, "/api/generate", model="late")["done_reason"] == "load"
    assert "late:latest" in loaded()
    card = next(each for each in client.get("/api/ps").json()["models"] if each["name"] == "late:latest")
    assert card["details"]["parameter_size"] == "134.5M" and card["size"] == 1000 and card["context_length"] == 512
    on_gpu = {each["name"]: each["size_vram"] for each in client.get("/api/ps").json()["models"]}
    assert on_gpu == {"story:latest": 0, "coder:7b": 800, "late:latest": 0}
    shown = client.post("/api/show", json={"model": "late"}).json()
    assert shown["capabilities"][0] == "completion" and shown["model_info"]["general.parameter_count"] == 134_515_008
    assert whole(client, "/api/chat", model="late", messages=USER, keep_alive="10m")["load_duration"] == 0
    assert whole(client, "/api/chat", model="late", messages=[], keep_alive=0)["done_reason"] == "unload"
    until(lambda: "late:latest" not in loaded())
    assert whole(client, "/api/chat", model="late", messages=USER)["load_duration"] > 0
    whole(client, "/api/chat", model="late", messages=USER, keep_alive=0)
    until(lambda: "late:latest" not in loaded())


def test_copies_and_deletions(client: httpx.Client, server: HttpServer) -> None:
    assert client.post("/api/copy", json={"source": "story", "destination": "tale"}).status_code == 200
    assert whole(client, "/api/chat", model="tale", messages=USER)["done"]
    assert client.post("/api/copy", json={"source": "story", "destination": "late"}).status_code == 400
    assert client.request("DELETE", "/api/delete", json={"model": "tale"}).status_code == 200
    refused(client, "/api/chat", 404, model="tale", messages=USER)
    assert client.request("DELETE", "/api/delete", json={"model": "story"}).status_code == 409
    assert client.request("DELETE", "/api/delete", json={"name": "gone"}).status_code == 200
    refused(client, "/api/chat", 404, model="gone", messages=USER)


def test_embeddings_old_and_new(client: httpx.Client) -> None:
    made = client.post("/api/embed", json={"model": "story", "input": ["a", "bc"]}).json()
    assert len(made["embeddings"]) == 2 and made["prompt_eval_count"] == 5
    old = client.post("/api/embeddings", json={"model": "story", "prompt": "a"}).json()
    assert old == {"embedding": made["embeddings"][0]}
    for n_letters in (900, 100_000):  # are cut
        cut = client.post("/api/embed", json={"model": "story", "input": "x" * n_letters}).json()
        assert cut["prompt_eval_count"] == 512
    assert "maximum context" in refused(client, "/api/embed", input="x" * 900, truncate=False)


def test_the_version_and_the_door(client: httpx.Client) -> None:
    assert client.get("/api/version").json()["version"]
    assert client.head("/").status_code == 200


def test_a_path_without_a_route_has_an_error_of_the_same_shape(client: httpx.Client) -> None:
    assert refused(client, "/api/blobs/sha256:0", 404).startswith("There is no route /api/blobs/sha256:0:")


# ---- strangers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), ("0", 0), (5, 5), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), (-1, float("inf")), ("-1m", float("inf")),
     (1e300, float("inf")), (10**400, float("inf")), ("999999h", float("inf")), ("300", 300)],
)  # fmt: skip
def test_keep_alive_in_all_its_forms(value: Any, seconds: float) -> None:
    assert keep_alive_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "5 minutes", "m", "1h2", "∞", "9" * 100 + "s", "5m" * 1000, True, "NaN", "1e5"])
def test_keep_alive_of_nonsense(value: Any) -> None:
    with pytest.raises(HttpError, match="keep_alive"):
        keep_alive_s(value)


def test_shortening_a_models_life_is_for_admins() -> None:
    with serving(ScriptedEngine("x"), settings=Settings(port=0, log_interval_s=0, admin_key="secret")) as running:
        body = {"model": "x", "messages": USER, "stream": False, "keep_alive": 0}
        assert httpx.post(running.address + "/api/chat", json=body).status_code == 401
        assert httpx.post(running.address + "/api/chat", json={**body, "keep_alive": -1}).status_code == 200
        good = httpx.post(running.address + "/api/chat", json=body, headers={"authorization": "Bearer secret"})
        assert good.status_code == 200
        for method, path in (("DELETE", "delete"), ("POST", "pull"), ("POST", "copy"), ("POST", "create")):
            assert httpx.request(method, f"{running.address}/api/{path}", json={"model": "x"}).status_code == 401


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../../x", "http://evil.example/x", "evil.example/a/b/c", "hf.co/../..", "hf.co/a/b:../c.gguf",
     "x" * 10_000_000, "", "a b", "pypi:requests==1", "file:///etc/passwd", "./model.gguf", "m.gguf/../x", "~", "\0"],
)  # fmt: skip
def test_only_known_registries_are_asked(name: str) -> None:
    with pytest.raises(HttpError) as caught:
        source_of(name)
    assert caught.value.status == 400 and len(caught.value.message) < 400


def test_names_that_may_be_pulled() -> None:
    assert source_of("smollm2:135m") == "smollm2:135m"
    assert source_of("Llama3.2") == source_of("llama3.2:latest") == "llama3.2"
    assert source_of("Mixtral") == "ollama:Mixtral"
    assert source_of("me/model:q4") == "ollama:me/model:q4"
    assert source_of("hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M") == "hf:unsloth/Qwen3-4B-GGUF:Q4_K_M"

"""The contract of the HTTP API, against an engine that follows a script."""

import base64
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scripted_engine import BOS, EOS, ScriptedEngine, reply_to, serving
from tahr import __version__
from tahr.config import SamplingParams, sampling_names
from tahr.server.lifecycle import HttpServer
from tahr.server.openai import bodies
from tahr.server.openai.sampling import SPELLED
from tahr.server.routes import ROUTES
from tahr.server.state.route import Route

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[HttpServer]:
    with serving(engine, ScriptedEngine("other", template=None)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=20) as made:
        yield made


def ask(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def refused(client: httpx.Client, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"][0].isupper() or error["param"], error
    assert error["message"].endswith("."), error
    return error  # type: ignore[no-any-return]


# ---- whole answers ------------------------------------------------------------------------------------------


def test_a_chat_has_the_shape_clients_expect(client: httpx.Client, engine: ScriptedEngine) -> None:
    made = ask(client, CHAT, model="scripted", messages=HELLO)
    assert made["id"].startswith("chatcmpl-") and made["object"] == "chat.completion" and made["created"] > 0
    text = reply_to("hello")
    message = {"role": "assistant", "content": text, "refusal": None}
    assert made["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    n_prompt, n_new = len("[user]hello\n[assistant]") + 1, len(text.encode()) + 1  # with BOS, with EOS
    assert made["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_ids_are_unique(client: httpx.Client) -> None:
    assert len({ask(client, CHAT, messages=HELLO)["id"] for _ in range(5)}) == 5


def test_finish_reason_tells_length_from_stop(client: httpx.Client) -> None:
    short = ask(client, CHAT, messages=HELLO, max_tokens=1)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 1


def test_max_completion_tokens_wins(client: httpx.Client) -> None:
    made = ask(client, CHAT, messages=HELLO, max_tokens=2, max_completion_tokens=5)
    assert made["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("stop", ["said", ["nothing like it", "said"], ["", "said"]])
def test_stop_strings_are_cut_off(client: httpx.Client, stop: Any) -> None:
    choice = ask(client, CHAT, messages=HELLO, stop=stop)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("You ", "stop")


def test_several_answers(client: httpx.Client) -> None:
    made = ask(client, CHAT, messages=HELLO, n=3)
    assert [c["message"]["content"] for c in made["choices"]] == [reply_to("hello", i) for i in range(3)]
    assert [c["index"] for c in made["choices"]] == [0, 1, 2]
    n_bytes = sum(len(reply_to("hello", i).encode()) + 1 for i in range(3))
    assert made["usage"]["completion_tokens"] == n_bytes


def test_chat_logprobs(client: httpx.Client) -> None:
    made = ask(client, CHAT, messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=2)
    first, second = made["choices"][0]["logprobs"]["content"]
    assert first["token"] == "Y" and first["bytes"] == [ord("Y")] and first["logprob"] == -ord("Y") / 256
    assert [top["token"] for top in second["top_logprobs"]] == ["o", "p"]


def test_the_end_of_a_reply_has_no_logprob(client: httpx.Client) -> None:
    made = ask(client, CHAT, messages=HELLO, logprobs=True)
    assert len(made["choices"][0]["logprobs"]["content"]) == made["usage"]["completion_tokens"] - 1


def test_messages_in_all_their_forms(client: httpx.Client) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
        {"role": "tool", "content": "42", "tool_call_id": "x"},
    ]
    rendered = ask(client, "/apply-template", messages=messages)["prompt"]
    assert rendered == "[system]be brief\n[user]a\nb\n[assistant]\n[tool]42\n[assistant]"


def test_template_variables(client: httpx.Client) -> None:
    body = {"messages": HELLO, "chat_template_kwargs": {"mood": "calm", "enable_thinking": True}}
    assert ask(client, "/apply-template", **body)["prompt"] == "[user]hello\n(calm)(think)[assistant]"
    body["chat_template_kwargs"] = {"moon": 1}
    assert refused(client, CHAT, **body)["param"] == "chat_template_kwargs.moon"
    body["chat_template_kwargs"] = {"enable_thinking": "yes"}
    assert refused(client, CHAT, **body)["param"] == "chat_template_kwargs.enable_thinking"


# ---- completions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
def test_a_prompt_in_all_its_forms(client: httpx.Client, prompt: Any) -> None:
    made = ask(client, TEXT, prompt=prompt)
    assert made["object"] == "text_completion" and made["id"].startswith("cmpl-")
    assert made["choices"] == [{"index": 0, "text": reply_to("hi"), "logprobs": None, "finish_reason": "stop"}]


def test_several_prompts_with_several_answers(client: httpx.Client) -> None:
    made = ask(client, TEXT, prompt=["one", "two"], n=2)
    texts = [reply_to("one"), reply_to("one", 1), reply_to("two"), reply_to("two", 1)]
    assert [c["text"] for c in made["choices"]] == texts
    assert made["usage"]["prompt_tokens"] == 8  # with two BOS


def test_echo_and_logprobs(client: httpx.Client) -> None:
    choice = ask(client, TEXT, prompt="hi", echo=True, logprobs=1, max_tokens=2)["choices"][0]
    assert choice["text"] == "hiYo"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["<s>", "h", "i", "Y", "o"]
    assert logprobs["token_logprobs"] == [None, *(-ord(c) / 256 for c in "hiYo")]
    assert logprobs["top_logprobs"][1] == {"h": -ord("h") / 256}
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3]


def test_the_token_that_was_taken_is_among_the_likeliest(client: httpx.Client) -> None:
    logprobs = ask(client, TEXT, prompt="hi", echo=True, logprobs=0, max_tokens=2)["choices"][0]["logprobs"]
    taken = zip(logprobs["tokens"][1:], logprobs["token_logprobs"][1:], strict=True)
    assert logprobs["top_logprobs"] == [None, *({token: logprob} for token, logprob in taken)]


def test_reading_a_prompt_without_answering(client: httpx.Client) -> None:
    made = ask(client, TEXT, prompt="hi", echo=True, logprobs=0, max_tokens=0)
    assert made["choices"][0]["text"] == "hi"
    assert made["usage"]["completion_tokens"] == 0


def test_prompt_logprobs(client: httpx.Client) -> None:
    of_text = ask(client, TEXT, prompt="hi", prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    of_chat = ask(client, CHAT, messages=HELLO, prompt_logprobs=1)["prompt_logprobs"]  # where vLLM's clients look
    for scores in (of_text, of_chat):
        assert scores[0] is None and all(len(each) >= 1 for each in scores[1:])
    assert refused(client, TEXT, prompt="hi", prompt_logprobs=1, stream=True)["param"] == "prompt_logprobs"


# ---- every field is honoured, inert, or refused -------------------------------------------------------------

HONOURED: dict[str, Any] = {
    "temperature": 0.7, "top_k": 7, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9, "top_n_sigma": 1.5, "top_a": 0.2,
    "eta_cutoff": 0.01, "xtc_probability": 0.3, "xtc_threshold": 0.2, "dry_multiplier": 0.8, "dry_base": 2.0,
    "dry_allowed_length": 3, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["x"], "mirostat": 2,
    "mirostat_tau": 4.0, "mirostat_eta": 0.2, "repetition_penalty": 1.2, "repeat_last_n": 12, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "logit_bias": {"5": -100}, "banned_tokens": [3], "allowed_tokens": [1, 2], "seed": 11,
    "n": 2, "max_tokens": 9, "min_tokens": 2, "stop": ["zzz"], "stop_token_ids": [4], "ignore_eos": True,
    "n_indent": 4, "t_max_predict_ms": 100, "prompt_logprobs": 1, "priority": -3, "cache_salt": "mine",
    "cache_prompt": False,
    "speculative": False,
}  # fmt: skip


def plain(value: Any) -> Any:
    """As JSON has it: tuples are lists, and pairs are mappings."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return {str(key): each for key, each in value}
    return list(value) if isinstance(value, tuple) else value


def test_the_table_of_honoured_fields_is_complete() -> None:
    elsewhere = {"logprobs", "thinking_budget"}  # the one is a switch in chats, the other needs a model that thinks
    assert set(HONOURED) == set(sampling_names()) - elsewhere == set(SPELLED) - {"thinking_budget"}


@pytest.mark.parametrize("name", HONOURED)
def test_a_sampling_field_reaches_the_engine(client: httpx.Client, engine: ScriptedEngine, name: str) -> None:
    ask(client, CHAT, messages=HELLO, **{name: HONOURED[name]})
    assert plain(getattr(engine.seen[-1].params, name)) == HONOURED[name]


def test_what_is_not_said_follows_the_model(client: httpx.Client, engine: ScriptedEngine) -> None:
    ask(client, CHAT, messages=HELLO, top_p=None)
    assert engine.seen[-1].params == SamplingParams().over(engine.sampling_defaults)
    ask(client, CHAT, messages=HELLO, repeat_penalty=1.3)
    assert engine.seen[-1].params.repetition_penalty == 1.3


INERT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")


@pytest.mark.parametrize("name", [*INERT, "prediction"])
def test_inert_fields_change_nothing(client: httpx.Client, name: str) -> None:
    made = ask(client, CHAT, messages=HELLO, **{name: {"x": 1}})
    assert made["choices"][0]["message"]["content"] == reply_to("hello")


@pytest.mark.parametrize(
    "name, value",
    [
        ("tools", [{"type": "web_search"}]), ("tool_choice", "required"), ("tool_choice", "sometimes"),
        ("functions", [{"no": "name"}]), ("function_call", {"name": "absent"}), ("function_call", "required"),
        ("response_format", {"type": "xml"}), ("thinking_budget", 5), ("thinking_budget", -1),
        ("modalities", ["text", "audio"]), ("audio", {"voice": "x"}), ("web_search_options", {}),
        ("verbosity", "low"), ("reasoning_effort", "low"), ("reasoning", {}), ("thinking", "yes"),
        ("reasoning_effort", "huge"), ("enable_thinking", 0), ("parallel_tool_calls", "no"),
        ("bogus", 1), ("best_of", 2), ("max_token", 5), ("lora", "x"), ("top_logprobs", 3),
        ("stream_options", {"include_usage": True}), ("return_progress", True), ("buffer", True),
        ("temperature", "hot"), ("temperature", -1), ("top_p", -0.5), ("top_k", -2), ("top_k", 1.5), ("min_p", 2),
        ("n", 0), ("n", 100_000), ("seed", -(2**63) - 1), ("max_tokens", 0), ("max_tokens", -5), ("max_tokens", True),
        ("stop", [1]),
        ("stop", ["x"] * 10_000), ("stop", "x" * 10_000), ("stop_token_ids", list(range(1000))),
        ("logit_bias", {"x": 1}), ("logit_bias", {"1": 1000}), ("logit_bias", {str(i): 1 for i in range(5000)}),
        ("logprobs", 3), ("presence_penalty", 9), ("frequency_penalty", -9), ("repeat_penalty", 0), ("mirostat", 1),
        ("cache_salt", "x" * 5000), ("priority", 2**40), ("prompt_logprobs", 500), ("stream", "yes"),
        ("min_tokens", 400),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(client: httpx.Client, name: str, value: Any) -> None:
    error = refused(client, CHAT, messages=HELLO, **{name: value})
    assert error["param"].startswith(name) and name in error["message"] and error["type"] == "invalid_request_error"


def test_values_that_ask_for_nothing_special_are_fine(client: httpx.Client) -> None:
    ask(client, CHAT, messages=HELLO, tools=[], tool_choice="none", response_format={"type": "text"}, n=1,
        modalities=["text"], parallel_tool_calls=True, function_call="none", logprobs=False, stream=False)  # fmt: skip
    ask(client, TEXT, prompt="x", best_of=1, suffix="")


@pytest.mark.parametrize(
    "name, value",
    [("suffix", "tail"), ("best_of", 3), ("logprobs", 99), ("prompt", []), ("prompt", ""), ("prompt", [""]),
     ("prompt", ["a", 1]), ("prompt", [9999]), ("prompt", [[-1]]), ("prompt", {}), ("prompt", ["a"] * 500),
     ("prompt", None), ("messages", HELLO)],
)  # fmt: skip
def test_what_completions_refuse(client: httpx.Client, name: str, value: Any) -> None:
    assert refused(client, TEXT, **{"prompt": "hi", name: value})["param"] == name


@pytest.mark.parametrize(
    "messages",
    [
        [], None, "hi", [{"content": "x"}], [{"role": "wizard", "content": "x"}], [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
        [{"role": "user", "content": "x", "bogus": 1}],
    ],
)  # fmt: skip
def test_bad_messages(client: httpx.Client, messages: Any) -> None:
    assert "messages" in refused(client, CHAT, messages=messages)["param"]


def test_the_context_is_never_exceeded_silently(client: httpx.Client) -> None:
    long = refused(client, TEXT, prompt="x" * 600)
    assert (long["param"], long["code"]) == ("prompt", "context_length_exceeded") and "512" in long["message"]
    much = refused(client, CHAT, messages=HELLO, max_tokens=500)
    assert (much["param"], much["code"]) == ("max_tokens", "context_length_exceeded")


def test_a_default_length_is_cut_to_the_room(client: httpx.Client, engine: ScriptedEngine) -> None:
    ask(client, TEXT, prompt="x" * 500)
    assert engine.seen[-1].params.max_tokens == 512 - 501


def test_the_engines_own_refusal_is_a_400(client: httpx.Client) -> None:
    for stream in (False, True):
        assert (
            refused(client, CHAT, messages=[{"role": "user", "content": "REFUSE"}], stream=stream)["param"] == "top_k"
        )


# ---- the other routes ---------------------------------------------------------------------------------------


def test_models(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list" and [m["id"] for m in listed["data"]] == ["scripted", "other"]
    one = client.get("/v1/models/other").json()
    assert one["object"] == "model" and one["owned_by"] and one["created"] > 0
    assert client.get("/v1/models/absent").status_code == 404


def test_a_request_finds_its_model(client: httpx.Client) -> None:
    assert ask(client, TEXT, prompt="x", model="other")["model"] == "other"
    assert ask(client, TEXT, prompt="x")["model"] == "scripted"
    error = refused(client, TEXT, 404, prompt="x", model="gpt-5")
    assert error["param"] == "model" and "scripted, other" in error["message"]


def test_a_model_without_a_template_cannot_chat(client: httpx.Client) -> None:
    assert "/v1/completions" in refused(client, CHAT, messages=HELLO, model="other")["message"]


def test_embeddings(client: httpx.Client) -> None:
    made = ask(client, "/v1/embeddings", input=["a", "bc"])
    assert [d["index"] for d in made["data"]] == [0, 1] and made["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    vector = made["data"][1]["embedding"]
    coded = ask(client, "/v1/embeddings", input=["a", "bc"], encoding_format="base64")["data"][1]["embedding"]
    assert list(struct.unpack("<4f", base64.b64decode(coded))) == pytest.approx(vector)
    short = ask(client, "/v1/embeddings", input=[[98, 99]], dimensions=2, pooling="mean")["data"][0]["embedding"]
    assert len(short) == 2 and sum(x * x for x in short) == pytest.approx(1)


@pytest.mark.parametrize(
    "name, value",
    [("input", ""), ("input", []), ("input", ["a", ""]), ("input", "x" * 600), ("encoding_format", "hex"),
     ("dimensions", 0), ("dimensions", 5), ("pooling", "best"), ("bogus", 1)],
)  # fmt: skip
def test_what_embeddings_refuse(client: httpx.Client, name: str, value: Any) -> None:
    assert refused(client, "/v1/embeddings", **{"input": "a", name: value})["param"] == name


def test_tokens_and_back(client: httpx.Client) -> None:
    made = ask(client, "/tokenize", prompt="hé", return_token_strs=True)
    assert made["tokens"] == [BOS, *"hé".encode()] and made["count"] == 4 and made["token_strs"][:2] == ["<s>", "h"]
    assert ask(client, "/tokenize", content="a", add_special_tokens=False)["tokens"] == [97]
    assert bytes(ask(client, "/tokenize", messages=HELLO)["tokens"][1:]) == b"[user]hello\n[assistant]"
    assert ask(client, "/detokenize", tokens=[104, 105, EOS])["content"] == "hi</s>"
    assert ask(client, "/detokenize", tokens=[104, 105, EOS], skip_special=True)["prompt"] == "hi"
    assert refused(client, "/detokenize", tokens=[999])["param"] == "tokens"
    assert refused(client, "/tokenize")["param"] == "prompt"
    assert refused(client, "/tokenize", prompt="a", messages=HELLO)["param"] == "messages"


def test_health_and_version(client: httpx.Client) -> None:
    body = client.get("/health").json()
    assert body["status"] == "ok" and body["version"] == __version__
    assert set(body["models"]["scripted"]) >= {"active_requests", "queued_requests", "scheduler", "prefix_cache"}
    assert set(body["engine"]) == {"active_requests", "queued_requests"}
    assert {"total_requests", "successful_requests", "failed_requests", "throughput_rps", "avg_wait_time_ms"} <= set(
        body["scheduler"]
    )
    assert {"effective_max_concurrent", "queue_depth", "active_prefill", "active_decode", "current_batch_size"} <= set(
        body["admission"]
    )
    prefix_cache, session_cache = body["cache"]["prefix_cache"], body["cache"]["session_cache"]
    assert {"enabled", "position", "entries", "hits", "misses", "evictions", "saved_prefill_tokens"} <= set(
        prefix_cache
    )
    assert {"saved_prefill_tokens", "tokens", "bytes", "block_size", "kv_dtype", "source"} <= set(prefix_cache)
    assert body["auto_config"]["scripted"].keys() >= {"context_size", "max_batch_size", "kv_dtype", "kv_blocks"}
    assert {"mode", "entries", "hits", "misses", "evictions", "tokens", "max_entries"} <= set(session_cache)
    assert client.get("/ready").json() == {"status": "ready"}
    assert client.get("/version").json() == {"version": __version__}


def test_the_description_lists_every_route(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    paths = {route.path + "{id}" if route.path[-1] == "/" and len(route.path) > 1 else route.path for route in ROUTES}
    assert set(document["paths"]) == paths
    schema = document["components"]["schemas"]["ChatBody"]
    assert set(schema["properties"]) == set(bodies.ChatBody.__struct_fields__)
    assert schema["additionalProperties"] is False


def test_the_description_tells_the_bounds(client: httpx.Client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    chat, text, null = schemas["ChatBody"]["properties"], schemas["CompletionBody"]["properties"], {"type": "null"}
    assert chat["top_p"]["anyOf"] == [{"type": "number", "minimum": 0, "maximum": 1}, null]
    assert chat["n"]["anyOf"] == [{"type": "integer", "minimum": 1, "maximum": 128}, null]
    assert chat["max_completion_tokens"]["anyOf"][0]["minimum"] == -1
    for name, (written, _) in SamplingParams.CONVENTIONS.items():
        least = min(written, SamplingParams.RANGES[name].low)
        assert chat[name]["anyOf"][0]["minimum"] == text[name]["anyOf"][0]["minimum"] == least, name
    assert chat["logprobs"]["anyOf"] == [{"type": "boolean"}, null]
    assert text["logprobs"]["anyOf"] == [{"type": "integer", "minimum": 0, "maximum": 20}, null]
    assert chat["messages"]["minItems"] == 1 and "user" in schemas["Message"]["properties"]["role"]["enum"]
    assert chat["verbosity"]["enum"] == [None, "medium"] and "enum" not in chat["user"]
    assert "required" in next(way["enum"] for way in chat["tool_choice"]["anyOf"] if way.get("type") == "string")
    assert schemas["ErrorBody"]["properties"]["type"] == {"type": "string"}, "replies are not bounded like requests"
    stop = chat["stop"]["anyOf"]
    assert stop[0]["maxLength"] == 1024 and stop[1]["maxItems"] == 16


@pytest.mark.parametrize(
    "data", [b"{", b"", b"[]", b'"x"', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000, b'{"n": 1e999}']
)
@pytest.mark.parametrize("route", [route for route in ROUTES if route.takes], ids=lambda route: route.path)
def test_malformed_bodies(client: httpx.Client, route: Route, data: bytes) -> None:
    response = client.request(route.method, route.path, content=data)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"] == "invalid_request_error") if isinstance(error, dict) else error


def test_every_answer_has_an_id_to_quote(client: httpx.Client) -> None:
    fine, bad = client.post(CHAT, json={"messages": HELLO}), [client.post(CHAT, json={}) for _ in range(2)]
    assert fine.headers["x-request-id"] == fine.json()["id"]
    assert len({each.headers["x-request-id"] for each in bad}) == 2 and all(each.status_code == 400 for each in bad)


def test_unknown_routes_and_methods(client: httpx.Client) -> None:
    lost = client.get("/v2/nothing")
    assert lost.status_code == 404 and lost.json()["error"]["code"] == "route_not_found"
    wrong = client.get(CHAT)
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST" and wrong.json()["error"]["message"]
    assert client.post("/health").status_code == 405
    assert client.head("/health").status_code == 200


def test_a_body_must_hold_what_is_required(client: httpx.Client) -> None:
    assert refused(client, CHAT)["param"] == "messages"
    assert refused(client, "/v1/embeddings")["param"] == "input"


def test_metrics_move(client: httpx.Client) -> None:
    def values() -> dict[str, float]:
        response = client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = [line for line in response.text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    before = values()
    made = ask(client, CHAT, messages=HELLO, max_tokens=5)
    refused(client, CHAT, messages=[])
    after = values()
    label = '{model_name="scripted"}'
    for names, by in (
        (("tahr_generation_tokens_total", "vllm:generation_tokens_total"), 5),
        (("tahr_prompt_tokens_total", "vllm:prompt_tokens_total"), made["usage"]["prompt_tokens"]),
        (("tahr_time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_count"), 1),
        (("tahr_inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_count"), 4),
        (("tahr_request_prompt_tokens_sum", "vllm:request_prompt_tokens_sum"), made["usage"]["prompt_tokens"]),
        (("tahr_request_generation_tokens_sum", "vllm:request_generation_tokens_sum"), 5),
        (("tahr_request_seconds_count", "vllm:e2e_request_latency_seconds_count"), 1),
        (("tahr_requests_active",), 0),
    ):
        for name in names:
            assert after[name + label] - before.get(name + label, 0) == by, name
    refusals = 'tahr_http_requests_total{route="/v1/chat/completions",status="4xx"}'
    assert after[refusals] - before.get(refusals, 0) == 1
    always = ("session_cache_hits_total", "session_cache_misses_total", "session_cache_evictions_total")
    for name in (*always, "session_cache_entries", "session_cache_tokens", "admission_rejected_requests_total"):
        assert after[f"tahr_{name}"] == 0
    admission = ("effective_max_concurrent", "queue_depth", "active_prefill", "active_decode", "current_batch_size")
    for name in (*admission, "completed_requests_total", "failed_requests_total"):
        assert f"tahr_admission_{name}" + label in after
    assert "vllm:kv_cache_usage_perc" + label in after and "vllm:num_requests_waiting" + label in after


def test_every_chunk_and_reply_is_json(client: httpx.Client) -> None:
    tricky = [{"role": "user", "content": 'quote " slash \\ line \n tab \t nul \u0000 emoji 🐐'}]
    whole = ask(client, CHAT, messages=tricky)["choices"][0]["message"]["content"]
    with client.stream("POST", CHAT, json={"messages": tricky, "stream": True}) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert "".join(json.loads(e)["choices"][0]["delta"].get("content", "") for e in events[:-1]) == whole


def test_threads_take_short_turns_while_a_server_runs() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        with serving(ScriptedEngine()):
            assert sys.getswitchinterval() < 0.001
        assert sys.getswitchinterval() == 0.005
    finally:
        sys.setswitchinterval(before)

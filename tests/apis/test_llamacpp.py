"""The routes that only llama.cpp's server has, over a scripted engine."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fill_in_tokenizer import FillInTokenizer
from pooled_server import until
from scripted_engine import BOS, ScriptedEngine, client_of, reply_to
from tahr.engine.sequences.adapter_stack import LoadedAdapter


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    made = ScriptedEngine("story.gguf")
    made.stats.max_batch_size = 3
    return made


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    coder = ScriptedEngine("coder")
    coder.tokenizer = FillInTokenizer()
    with client_of(engine, coder) as made:
        yield made


def ask(client: httpx.Client, path: str = "/completion", **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(client: httpx.Client, path: str = "/completion", **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == 400 and error["message"].endswith(".")
    return error


def events(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    reply = client.post("/completion", json={**body, "stream": True})
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]


def test_lines_end_a_completion(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = "pass\n    x = 1\ny = 2\n"
    for fields in ({"n_indent": 4}, {"n_indent": 4, "stream": False, "n_predict": 100, "t_max_predict_ms": -1}):
        engine.scripts.append(body)
        made = ask(client, prompt="def f():", **fields)
        assert (made["content"], made["stop_type"]) == ("pass\n    x = 1\n", "limit")
    engine.scripts.append("SLOW\n" * 50)
    timed = ask(client, prompt="SLOW", t_max_predict_ms=60, t_max_prompt_ms=500)
    assert timed["stop_type"] == "limit" and timed["content"].endswith("\n") and len(timed["content"]) < 100
    engine.scripts.append(body)
    assert "".join(each["content"] for each in events(client, prompt="x", n_indent=4)) == "pass\n    x = 1\n"
    assert "n_indent" in refused(client, prompt="x", n_indent=-1)["message"]


def test_adapters_are_listed_and_named_by_their_numbers(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/lora-adapters").json() == []
    engine.loaded = {
        name: LoadedAdapter(name, f"/secret/{name}.gguf", "d", 1, 0.5, 4, 100, "") for name in ("first", "second")
    }
    shown = client.get("/lora-adapters").json()
    assert shown == [{"id": 0, "path": "first.gguf", "scale": 0.5}, {"id": 1, "path": "second.gguf", "scale": 0.5}]
    ask(client, prompt="x", lora=[{"id": 1, "scale": 0.25}, {"name": "first"}])
    assert engine.seen[-1].params.lora == (("second", 0.25), ("first", None))
    for wrong in ([{"id": 2}], [{"id": -1}], [{"id": 0, "name": "first"}], [{"scale": 1}]):
        assert "lora" in refused(client, prompt="x", lora=wrong)["message"]
    assert "lora" in client.post("/lora-adapters", json=[{"id": 0, "scale": 1}]).json()["error"]["message"]
    engine.loaded = {}


def test_speculation_and_lengths_may_be_asked_for(client: httpx.Client, engine: ScriptedEngine) -> None:
    ask(client, prompt="x", speculative=False)
    assert engine.seen[-1].params.speculative is False
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("completions", {"prompt": "x"}),
    ):
        made = ask(client, f"/v1/{path}", n_predict=3, **body)
        assert made["usage"]["completion_tokens"] == 3 and made["choices"][0]["finish_reason"] == "length"
        assert "n_predict" in client.post(f"/v1/{path}", json=body | {"n_predict": -7}).json()["error"]["message"]


def test_a_completion_has_the_shape_clients_expect(client: httpx.Client) -> None:
    made = ask(client, prompt="hi", n_predict=5, return_tokens=True)
    assert made["content"] == reply_to("hi").encode()[:5].decode() and made["stop"] and made["stop_type"] == "limit"
    assert made["tokens_evaluated"] == 3 and made["tokens_predicted"] == 5 and made["tokens_cached"] == 8
    assert made["prompt"] == "<s>hi" and made["generation_settings"]["n_predict"] == 5 and not made["truncated"]
    assert made["timings"]["predicted_n"] == 5 and made["timings"]["prompt_n"] + made["timings"]["cache_n"] == 3
    assert ask(client, prompt="hi")["stop_type"] == "eos" and ask(client, prompt="hi")["tokens"] == []
    word = ask(client, prompt="hi", stop=["said"])
    assert word["stop_type"] == "word" and word["stopping_word"] == "said" and word["content"] == "You "
    assert "content" in ask(client, "/completions", prompt="hi")


@pytest.mark.parametrize("options", [{}, {"n_predict": 7}, {"stop": [","]}, {"n_probs": 2, "n_predict": 4}])
def test_a_stream_is_the_whole_reply_in_parts(client: httpx.Client, options: dict[str, Any]) -> None:
    whole, parts = ask(client, prompt="hi\nthere", **options), events(client, prompt="hi\nthere", **options)
    *begun, last = parts
    assert "".join(part["content"] for part in parts) == whole["content"] and last["stop"]
    assert all(part["tokens"] and not part["stop"] for part in begun)
    same = ("stop_type", "tokens_predicted", "tokens_evaluated", "stopping_word", "has_new_line", "prompt")
    assert {name: last[name] for name in same} == {name: whole[name] for name in same}
    shown = [each for part in begun for each in part.get("completion_probabilities", ())]
    assert shown == whole.get("completion_probabilities", [])
    if "n_probs" in options:
        assert [len(each["top_logprobs"]) for each in shown] == [2] * 4


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [[BOS, 97, 98]]),
        ([97, 98], [[97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[97], "b"], [[97], [BOS, 98]]),
        ([97, "b", 99], [[97, 98, 99]]),
        ({"prompt_string": "ab"}, [[BOS, 97, 98]]),
        ([{"prompt_string": "a"}, [98]], [[BOS, 97], [98]]),
    ],
)
def test_a_prompt_in_all_its_forms(
    client: httpx.Client, engine: ScriptedEngine, prompt: Any, tokens: list[list[int]]
) -> None:
    n_before = len(engine.seen)
    made = ask(client, prompt=prompt, n_predict=2)
    assert [each.tokens for each in engine.seen[n_before:]] == tokens
    assert (len(made) if isinstance(made, list) else 1) == len(tokens)


def test_fields_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    given = {"temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "repeat_last_n": 5}
    given |= {"presence_penalty": 0.5, "seed": 3, "mirostat": 2, "dry_multiplier": 0.5, "ignore_eos": True}
    ask(client, prompt="x", n_predict=4, repeat_penalty=1.5, **given)
    params = engine.seen[-1].params
    assert {name: getattr(params, name) for name in given} == given and params.repetition_penalty == 1.5
    ask(client, prompt="x", top_k=5, top_p=0.5, samplers=["top_k", "infill"], n_indent=4, id_slot=2, n_predict=1)
    params = engine.seen[-1].params
    assert params.top_k == 5 and params.top_p == 1 and params.temperature == 1
    inert = {"speculative.n_max": 16, "speculative.n_min": 0, "speculative.p_min": 0.75}
    assert ask(client, prompt="x", n_predict=1, **inert)["tokens_predicted"] == 1


@pytest.mark.parametrize(
    ("bias", "wanted"),
    [
        ([[97, 1.5], [98, False]], {97: 1.5, 98: -100}),
        ([["ab", -2]], {97: -2, 98: -2}),
        ({"97": 1, "b": -1}, {97: 1, 98: -1}),
    ],
)
def test_biases_by_token_and_text(client: httpx.Client, engine: ScriptedEngine, bias: Any, wanted: Any) -> None:
    ask(client, prompt="x", logit_bias=bias, n_predict=1)
    assert dict(engine.seen[-1].params.logit_bias) == wanted


def test_fields_of_the_reply_can_be_chosen(client: httpx.Client) -> None:
    made = ask(client, prompt="hi", n_predict=3, response_fields=["content", "generation_settings/n_predict", "x/y"])
    assert made == {"content": "You", "generation_settings/n_predict": 3}


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": []}, {"prompt": [[]]}, {"prompt": {}}, {"prompt": {"prompt_string": 1}}, {},
        {"prompt": {"prompt_string": "x", "multimodal_data": "abc"}}, {"prompt": [None]}, {"prompt": [1.5]},
        {"prompt": [99999]}, {"prompt": [True]}, {"prompt": ["x"] * 3000}, {"prompt": [1] * 600},
        {"prompt": "x" * 9000},
        {"prompt": "x", "logit_bias": [[1]]}, {"prompt": "x", "logit_bias": [[None, 1]]},
        {"prompt": "x", "n_probs": 99},
        {"prompt": "x", "logit_bias": [[1, 1]] * 2000}, {"prompt": "x", "logit_bias": [["x" * 2000, 1]]},
        {"prompt": "x", "samplers": ["surprise"]}, {"prompt": "x", "surprise": 1}, {"prompt": "x", "min_keep": 3},
        {"prompt": "x", "post_sampling_probs": True}, {"prompt": "x", "response_fields": ["a"] * 100},
        {"prompt": "x", "timings_per_token": True}, {"prompt": "x", "n_predict": -7},
        {"prompt": "x", "lora": [{"id": 0}]},
    ],
)  # fmt: skip
def test_what_is_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    assert refused(client, **body)["type"] in ("invalid_request_error", "exceed_context_size_error")


def test_images_have_their_place_in_chats(client: httpx.Client) -> None:
    body = {"prompt": {"prompt_string": "x", "multimodal_data": ["abc"]}}
    assert "send images in a chat" in refused(client, **body)["message"]


def test_a_prompt_that_does_not_fit_says_so(client: httpx.Client) -> None:
    assert refused(client, prompt="x" * 600)["type"] == "exceed_context_size_error"
    assert ask(client, prompt="x" * 500, n_predict=100)["tokens_predicted"] == 11  # what fits


def test_infill(client: httpx.Client) -> None:
    body = {"model": "coder", "input_prefix": "a", "prompt": "b", "input_suffix": "c", "n_predict": 2}
    assert ask(client, "/infill", **body)["tokens_evaluated"] == 1 + 3 + 3
    extra = [{"filename": "f", "text": "d"}]
    assert ask(client, "/infill", **body, input_extra=extra)["tokens_evaluated"] > 7
    for wrong in ({}, {"filename": "ok"}, {"filename": 1, "text": "x"}):
        refused(client, "/infill", **body, input_extra=[wrong])
    assert "made for code" in refused(client, "/infill", **{**body, "model": "story.gguf"})["message"]


def test_props_and_slots(client: httpx.Client, engine: ScriptedEngine) -> None:
    props = client.get("/props").json()
    assert props["total_slots"] == 3 and props["default_generation_settings"]["n_ctx"] == 512
    assert props["model_path"] == "story.gguf" and props["bos_token"] == "<s>" and "messages" in props["chat_template"]
    with client.stream("POST", "/completion", json={"prompt": "HANG@2", "stream": True}) as reply:
        lines = reply.iter_lines()
        next(lines)
        slots = client.get("/slots").json()
        assert [slot["is_processing"] for slot in slots] == [True, False, False] and slots[0]["n_ctx"] == 512
    until(lambda: not engine.live)


def test_tokenize_as_llama_cpp_spells_it(client: httpx.Client) -> None:
    plain = ask(client, "/tokenize", content="hi")["tokens"]
    assert plain == [*b"hi"] and ask(client, "/tokenize", prompt="hi")["tokens"] == [BOS, *plain]
    assert ask(client, "/detokenize", tokens=plain)["content"] == "hi"
    assert ask(client, "/tokenize", content="hi", add_special=True)["tokens"] == [BOS, *plain]


def test_what_the_editor_plugins_send(client: httpx.Client) -> None:
    """The requests of llama.vim and llama.vscode."""
    body = {
        "id_slot": 0, "input_prefix": "def f(x):\n", "input_suffix": "\n", "prompt": "    ret", "n_predict": 8,
        "input_extra": [{"filename": "a.py", "text": "x = 1\n", "time": 12}], "stop": ["\n"], "n_indent": 4,
        "top_k": 40, "top_p": 0.9, "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "tokens_cached"],
    }  # fmt: skip
    made = ask(client, "/infill", model="coder", **body)
    assert made["content"] and made["timings/predicted_n"] and made["truncated"] is False
    assert (
        ask(client, "/infill", model="coder", **{**body, "n_predict": 0, "samplers": [], "response_fields": [""]}) == {}
    )

"""Grammars over HTTP and from the command line: every spelling, every refusal, and attacks beside normal requests."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serve_process import served
from tahr.cli.main import main

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "boolean"}},
    "required": ["n", "b"],
    "additionalProperties": False,
}
COMPLETIONS = "/v1/completions"


UNENFORCED = {**SCHEMA, "properties": SCHEMA["properties"] | {"b": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}


@pytest.fixture(scope="module")
def client(stories: Path) -> Iterator[httpx.Client]:
    with served("--model", f"story={stories}") as running, httpx.Client(base_url=running.address, timeout=60) as made:
        yield made


def ask(client: httpx.Client, **fields: Any) -> str:
    body = {"prompt": "Once", "temperature": 1, "seed": 3, "max_tokens": 100, **fields}
    reply = client.post(COMPLETIONS, json=body).json()
    assert "error" not in reply, reply
    assert reply["choices"][0]["finish_reason"] == "stop"
    return str(reply["choices"][0]["text"])


def refused(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 5, **fields})
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


def test_a_schema_that_is_not_strict_is_loosened(client: httpx.Client) -> None:
    """It was a 400."""
    schema = {"name": "x", "schema": UNENFORCED}
    error = refused(client, response_format={"type": "json_schema", "json_schema": schema})
    assert "The schema at #/properties/b has a oneOf" in error["message"]
    loose = {"type": "json_schema", "json_schema": schema | {"strict": False}}
    assert json.loads(ask(client, response_format=loose, max_tokens=300))["n"] in range(10)


GBNF = 'root ::= [0-9] "!"'
SAID = {
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "schema": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "guided_json": {"guided_json": SCHEMA},
    "json_schema of llama.cpp": {"json_schema": SCHEMA},
    "guided_json as text": {"guided_json": json.dumps(SCHEMA)},
    "structured json": {"structured_outputs": {"json": SCHEMA}},
}
MATCHED = {
    "guided_regex": ({"guided_regex": "[0-9]!"}, "[0-9]!"),
    "guided_choice": ({"guided_choice": ["a!", "b!"]}, "[ab]!"),
    "guided_grammar in GBNF": ({"guided_grammar": GBNF}, "[0-9]!"),
    "guided_grammar in Lark": ({"guided_grammar": 'start: /[0-9]/ "!"'}, "[0-9]!"),
    "grammar": ({"grammar": GBNF}, "[0-9]!"),
    "response_format grammar": ({"response_format": {"type": "grammar", "grammar": GBNF}}, "[0-9]!"),
    "structured regex": ({"structured_outputs": {"regex": "[0-9]!", "json": None}}, "[0-9]!"),
    "structured choice": ({"structured_outputs": {"choice": ["a!", "b!"]}}, "[ab]!"),
    "structured grammar": ({"structured_outputs": {"grammar": GBNF}}, "[0-9]!"),
}


@pytest.mark.parametrize("fields", SAID.values(), ids=SAID)
def test_a_schema_is_followed_however_it_is_spelled(client: httpx.Client, fields: dict[str, Any]) -> None:
    found = json.loads(ask(client, **fields))
    assert found.keys() == {"n", "b"} and 0 <= found["n"] <= 9 and isinstance(found["b"], bool)


@pytest.mark.parametrize("fields, pattern", MATCHED.values(), ids=MATCHED)
def test_a_text_is_in_its_language_however_that_is_spelled(
    client: httpx.Client, fields: dict[str, Any], pattern: str
) -> None:
    assert re.fullmatch(pattern, ask(client, **fields))


def test_free_text_stays_free(client: httpx.Client) -> None:
    fields = {"temperature": 0, "max_tokens": 8, "prompt": "Once upon a time"}
    free = client.post(COMPLETIONS, json=fields).json()["choices"][0]["text"]
    same = client.post(COMPLETIONS, json={**fields, "response_format": {"type": "text"}, "structured_outputs": {}})
    assert same.json()["choices"][0]["text"] == free


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": ["x"]}}, "response_format.type", "must be one of"),
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strikt": True}}},
        "response_format.json_schema.strikt",
        "leave it out",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema",
        "schema",
    ),
    ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "leave it out"),
    ({"response_format": {"type": "grammar"}}, "response_format.grammar", "text"),
    ({"guided_json": {"not": {}}}, "guided_json", "not"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    ({"guided_regex": ""}, "guided_regex", "regular expression"),
    ({"guided_choice": []}, "guided_choice", "choice"),
    ({"guided_choice": [1]}, "guided_choice[0]", "wrong type"),
    ({"grammar": "x"}, "grammar", "GBNF"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "unknown name"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"xml": 1}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"grammar": 5}}, "structured_outputs.grammar", "text"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "both"),
    ({"guided_regex": "a" * (1 << 20) + "b"}, "guided_regex", "at most"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "text"}}},
        "response_format.json_schema",
        "no JSON",
    ),
    ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json", "no JSON"),
]


@pytest.mark.parametrize("fields, param, words", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_compiled_is_a_400_that_names_it(
    client: httpx.Client, fields: dict[str, Any], param: str, words: str
) -> None:
    for stream in (False, True):
        error = refused(client, stream=stream, **fields)
        assert words in error["message"]
        assert error["param"] == param and error["type"] == "invalid_request_error"


def test_a_stream_and_choices_follow_the_schema_too(client: httpx.Client) -> None:
    sdk = openai.OpenAI(base_url=f"{client.base_url}/v1".replace("//v1", "/v1"), api_key="none", max_retries=0)
    stream = sdk.completions.create(
        model="story", prompt="Once", temperature=1, max_tokens=100, stream=True, extra_body={"guided_json": SCHEMA}
    )
    chunks = list(stream)
    assert json.loads("".join(chunk.choices[0].text for chunk in chunks)).keys() == {"n", "b"}
    assert chunks[-1].choices[0].finish_reason == "stop"
    several = sdk.completions.create(
        model="story", prompt="Once", n=3, max_tokens=100, logprobs=1, extra_body={"guided_json": SCHEMA}
    )
    for choice in several.choices:
        assert json.loads(choice.text).keys() == {"n", "b"} and choice.logprobs
        assert "".join(choice.logprobs.tokens or []).strip().startswith("{")


def buffered(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"prompt": "Once", "temperature": 1, "seed": 3, "guided_json": SCHEMA, "buffer": True, **fields}
    return client.post(COMPLETIONS, json=body)


def test_a_buffered_reply_is_one_delta(client: httpx.Client) -> None:
    events = buffered(client, max_tokens=100, n=2, logprobs=1, stream=True).text.split("\n\n")
    choices = [json.loads(event[6:])["choices"][0] for event in events if event.startswith("data: {")]
    texts = [choice for choice in choices if choice["text"]]
    assert [choice["index"] for choice in texts] == [0, 1]
    for choice in texts:
        assert json.loads(choice["text"]).keys() == {"n", "b"} and choice["logprobs"]["tokens"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop", "stop"]
    assert events[-2] == "data: [DONE]"
    assert json.loads(buffered(client, max_tokens=100).json()["choices"][0]["text"]).keys() == {"n", "b"}


def test_a_buffered_reply_that_is_cut_is_an_error(client: httpx.Client) -> None:
    whole = buffered(client, max_tokens=3)
    assert whole.status_code == 500
    error = whole.json()["error"]
    assert error["code"] == "incomplete_reply"
    assert (error["type"], error["param"], error["code"]) == (
        "internal_server_error",
        "guided_json",
        "incomplete_reply",
    )
    events = buffered(client, max_tokens=3, stream=True).text.split("\n\n")
    said = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    assert [each["error"]["param"] for each in said if "error" in each] == ["guided_json"]
    assert not any(each["choices"][0]["text"] for each in said if "choices" in each)
    assert "grammar" in refused(client, buffer=True)["message"]
    assert "stop cuts it" in refused(client, buffer=True, guided_json=SCHEMA, stop=["a"])["message"]


# ---- attacks ----------------------------------------------------------------------------------------------------

NESTED: Any = {"type": "integer"}
for _ in range(200):
    NESTED = {"type": "array", "items": NESTED}
OBJECTS = [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}} for i in range(4)]
KILLING: dict[str, dict[str, Any]] = {
    "many properties": {
        "guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(9000)}}
    },
    "deep": {"guided_json": NESTED},
    "endless": {"guided_json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}},
    "contradiction": {"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}},
    "product of choices": {"guided_json": {"allOf": [{"anyOf": OBJECTS} for _ in range(9)]}},
    "long string": {"guided_json": {"type": "string", "minLength": 10**6, "maxLength": 10**6}},
    "nested counts": {"guided_regex": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "counts and anything": {"guided_regex": "(.*a.{30}){20}"},
    "exponential states": {"guided_regex": "(a|b)*a(a|b){40}"},
    "deep groups": {"guided_regex": "(" * 3000 + "a" + ")" * 3000},
    "deep rules": {"guided_grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000},
    "no text": {"guided_regex": r"[^\s\S]"},
    "only itself": {"guided_grammar": 'start: start "a"'},
    "nothing": {"guided_regex": "a{0}"},
    "doubling": {"grammar": "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)) + '\nr60 ::= "a"\nroot ::= r0'},
    "inside a string": {"guided_json": {"type": "string", "minLength": 50}, "max_tokens": 3},
}


def test_killing_grammars_hurt_nobody_else(client: httpx.Client) -> None:
    """Each beside three normal requests, which say what they say alone, while /health answers."""
    normal = [
        {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 30},
        {"prompt": "There was", "temperature": 1, "seed": 5, "max_tokens": 30},
        {"prompt": "Once", "temperature": 1, "seed": 6, "max_tokens": 60, "guided_json": SCHEMA},
    ]

    def post(body: dict[str, Any]) -> httpx.Response:
        return client.post(COMPLETIONS, json=body)

    alone = [post(body).json()["choices"] for body in normal]
    with ThreadPoolExecutor(6) as pool:
        for name, fields in KILLING.items():
            attack = pool.submit(post, {"prompt": "x", "max_tokens": 20, **fields})
            beside = [pool.submit(post, body) for body in normal]
            assert client.get("/health").status_code == 200, name
            assert [each.result().json()["choices"] for each in beside] == alone, name
            reply = attack.result()
            if reply.status_code != 200:
                assert reply.status_code in (400, 500) and reply.json()["error"]["message"], (name, reply.text)
            else:
                assert reply.json()["choices"][0]["finish_reason"] in ("stop", "length"), name
    assert client.get("/health").json()["status"] in ("ok", "ready", "healthy")


# ---- the command line -------------------------------------------------------------------------------------------


def test_run_follows_a_grammar(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "g.gbnf").write_text(GBNF)
    ways = {
        ("--json-schema", str(tmp_path / "s.json")): r"\{[\s\S]*\}",
        ("--json-schema", json.dumps(SCHEMA)): r"\{[\s\S]*\}",
        ("--regex", "[0-9]!"): "[0-9]!",
        ("--grammar", str(tmp_path / "g.gbnf")): "[0-9]!",
        ("--choice", "red,blue"): "red|blue",
    }
    for way, pattern in ways.items():
        assert main(["run", str(stories), "--raw", "-p", "Once", "--quiet", "--temp", "1", *way]) == 0
        assert re.fullmatch(pattern, capsys.readouterr().out.strip()), way
    for way in (("--regex", "(a"), ("--grammar", str(tmp_path / "none")), ("--choice", "")):
        assert main(["run", str(stories), "--raw", "-p", "Once", "--quiet", *way]) == 3
        assert capsys.readouterr().err

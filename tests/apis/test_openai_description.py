"""Every reply and every streamed chunk validates against OpenAI's descriptions of its API."""

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from jsonschema.protocols import Validator
from openai.types import Batch, Completion, CreateEmbeddingResponse, Embedding, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from assets import find
from scripted_engine import ScriptedEngine, serving
from tahr.server.state.settings import Settings
from tool_replies import TOOL_TEMPLATE, hermes

ARCHIVE = find("openai-openapi.tar.xz")
DOCUMENT = "openai-openapi/openapi.json"
REFERENCE = "#/components/schemas/{model}"
# The package names what is inside a completion as types of their own.
INSIDE = {"CreateCompletionResponse": ("CompletionChoice", "Logprobs")}
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]
Check = Callable[[str, Any], None]

# Where the service itself departs from its description: chunks of a text carry no reason and no usage before the last,
# the first token of an echoed prompt has no probability, what was not asked for is null, base64 is a text, and a
# response that has just begun has no usage.
DEPARTURES = {
    ("CreateCompletionResponse", "finish_reason"): {"type": "null"},
    ("CreateCompletionResponse", "token_logprobs"): {"type": "array", "items": {"type": ["number", "null"]}},
    ("CreateCompletionResponse", "top_logprobs"): {
        "anyOf": [{"type": "array", "items": {"type": ["object", "null"]}}, {"type": "null"}]
    },
    ("CreateCompletionResponse", "usage"): {"type": "null"},
    ("Embedding", "embedding"): {"type": "string"},
    ("Response", "usage"): {"type": "null"},
}
Schemas = dict[str, Any]


def modern(node: Any) -> Any:
    """The description says it is 3.1, but in places it writes `nullable` as 3.0 did."""
    if isinstance(node, list):
        return [modern(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {name: modern(value) for name, value in node.items() if name != "nullable"}
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") is True else made


def allow(node: Any, field: str, more: dict[str, Any]) -> int:
    """Let `field` also be `more`, wherever it is declared below `node`; how often that was."""
    if isinstance(node, list):
        return sum(allow(each, field, more) for each in node)
    if not isinstance(node, dict):
        return 0
    n = sum(allow(value, field, more) for value in node.values())
    declared = node.get("properties")
    if isinstance(declared, dict) and field in declared:
        declared[field] = {"anyOf": [declared[field], more]}
        n += 1
    return n


def published_schemas(archive: Path) -> Schemas:
    """The schemas of OpenAI's OpenAPI document."""
    with tarfile.open(archive) as opened:
        document = opened.extractfile(DOCUMENT)
        assert document is not None
        components: Schemas = modern(json.load(document))["components"]
    return components


def package_schemas() -> Schemas:
    """The schemas of the `openai` package's response types, under the names of the document."""
    types: dict[str, type[BaseModel]] = {
        "CreateChatCompletionResponse": ChatCompletion,
        "CreateChatCompletionStreamResponse": ChatCompletionChunk,
        "CreateCompletionResponse": Completion,
        "CreateEmbeddingResponse": CreateEmbeddingResponse,
        "Embedding": Embedding,
        "Model": Model,
        "Error": ErrorObject,
        "Response": Response,
        "Batch": Batch,
        "OpenAIFile": FileObject,
        "DeleteFileResponse": FileDeleted,
    }
    _, made = models_json_schema([(each, "validation") for each in types.values()], ref_template=REFERENCE)
    schemas = {**made["$defs"], **{name: made["$defs"][each.__name__] for name, each in types.items()}}
    event = TypeAdapter(ResponseStreamEvent).json_schema(ref_template=REFERENCE)
    schemas = {**event.pop("$defs"), **schemas, "ResponseStreamEvent": event}
    schemas["ErrorResponse"] = listed("error", {"$ref": REFERENCE.format(model="Error")})
    models = {"type": "array", "items": {"$ref": REFERENCE.format(model="Model")}}
    schemas["ListModelsResponse"] = listed("data", models)
    for name, item in (("ListFilesResponse", "OpenAIFile"), ("ListBatchesResponse", "Batch")):
        schemas[name] = listed("data", {"type": "array", "items": {"$ref": REFERENCE.format(model=item)}})
    return {"schemas": schemas}


def listed(field: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [field], "properties": {field: schema}}


def departed(components: Schemas) -> Schemas:
    """The schemas with what the service itself does otherwise; each departure is declared exactly where it is used."""
    schemas = components["schemas"]
    for (schema, field), more in DEPARTURES.items():
        places = [schemas[schema], *(schemas[name] for name in INSIDE.get(schema, ()) if name in schemas)]
        assert sum(allow(place, field, more) for place in places) == 1, (schema, field)
    return components


@pytest.fixture(scope="module", params=["package", *(["published"] if ARCHIVE else [])])
def components(request: pytest.FixtureRequest) -> Schemas:
    """Two descriptions by the same hand: the types of the openai package, and the document where it is at hand."""
    return departed(published_schemas(ARCHIVE) if request.param == "published" and ARCHIVE else package_schemas())


@pytest.fixture(scope="module")
def check(components: Schemas) -> Check:
    made: dict[str, Validator] = {}

    def check(schema: str, value: Any) -> None:
        if schema not in made:
            wanted = {"$ref": f"#/components/schemas/{schema}", "components": components}
            made[schema] = jsonschema.Draft202012Validator(wanted)
        problems = [f"{error.json_path}: {error.message}" for error in made[schema].iter_errors(value)]
        assert not problems, problems

    return check


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(ScriptedEngine()) as running, httpx.Client(base_url=running.address, timeout=20) as made:
        yield made


def chunks(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, but for the last."""
    lines = client.post(path, json={**body, "stream": True}).text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


CHATS = [
    {},
    {"n": 2, "max_tokens": 3},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2, "stop": "said", "seed": 1},
]
TEXTS = [
    {"prompt": "hello"},
    {"prompt": ["a", "b"], "n": 2, "max_tokens": 2},
    {"prompt": [104, 105], "logprobs": 0},
    {"prompt": "hello", "logprobs": 2, "echo": True},
    {"prompt": "hello", "echo": True, "max_tokens": 0, "logprobs": 1},
]


@pytest.mark.parametrize("options", CHATS, ids=json.dumps)
def test_chats(client: httpx.Client, check: Check, options: dict[str, Any]) -> None:
    body = {"messages": HELLO, **options}
    check("CreateChatCompletionResponse", client.post(CHAT, json=body).json())
    body["stream_options"] = {"include_usage": True}
    made = chunks(client, CHAT, body)
    assert len(made) > 3 and made[-1]["usage"]["total_tokens"] > 0
    for chunk in made:
        check("CreateChatCompletionStreamResponse", chunk)


RESPONSES = [
    {"input": "hello"},
    {
        "input": [{"role": "user", "content": "hello"}],
        "max_output_tokens": 3,
        "instructions": "x",
        "metadata": {"a": "b"},
    },
    {"input": "CALL", "tools": [{"type": "function", "name": "now", "parameters": {}, "strict": False}]},
    {"input": "THINK"},
    {"input": "THINK", "reasoning": {"summary": "auto"}, "text": {"format": {"type": "json_object"}}},
]
SCRIPTS = {"CALL": hermes("{}", "now"), "THINK": "<think>Hm.</think>Yes."}


@pytest.mark.parametrize("options", RESPONSES, ids=json.dumps)
def test_responses(check: Check, options: dict[str, Any]) -> None:
    engine = ScriptedEngine(template=TOOL_TEMPLATE)
    engine.scripts = [SCRIPTS[options["input"]]] * 2 if options["input"] in ("CALL", "THINK") else []
    with serving(engine) as running:
        whole = httpx.post(running.address + "/v1/responses", json=options).json()
        lines = httpx.post(running.address + "/v1/responses", json={**options, "stream": True}).text.splitlines()
    check("Response", whole)
    made = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert len(made) > 6
    for event in made:
        check("ResponseStreamEvent", event)


@pytest.mark.parametrize("options", TEXTS, ids=json.dumps)
def test_completions(client: httpx.Client, check: Check, options: dict[str, Any]) -> None:
    whole = client.post(TEXT, json=options).json()
    check("CreateCompletionResponse", whole)
    assert all(choice["finish_reason"] for choice in whole["choices"])
    made = chunks(client, TEXT, {**options, "stream_options": {"include_usage": True}})
    assert sum(bool(choice["finish_reason"]) for chunk in made for choice in chunk["choices"]) == len(whole["choices"])
    for chunk in made:
        check("CreateCompletionResponse", chunk)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings(client: httpx.Client, check: Check, encoding: str) -> None:
    made = client.post(EMBED, json={"input": ["a", "b"], "encoding_format": encoding}).json()
    assert isinstance(made["data"][0]["embedding"], list if encoding == "float" else str)
    check("CreateEmbeddingResponse", made)


def test_models(client: httpx.Client, check: Check) -> None:
    made = client.get("/v1/models").json()
    check("ListModelsResponse", made)
    check("Model", client.get(f"/v1/models/{made['data'][0]['id']}").json())


def test_files_and_batches(check: Check, tmp_path: Path) -> None:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": TEXT, "body": {"prompt": "x"}})
    settings = Settings(port=0, log_interval_s=0, state_dir=str(tmp_path))
    with serving(ScriptedEngine(), settings=settings) as running, httpx.Client(base_url=running.address) as client:
        for content in (line, "no line"):
            sent = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)}).json()
            check("OpenAIFile", sent)
            asked = {"input_file_id": sent["id"], "endpoint": TEXT, "completion_window": "24h", "metadata": {"a": "b"}}
            made = client.post("/v1/batches", json=asked).json()
            while made["status"] not in ("completed", "failed"):
                check("Batch", made)
                made = client.get(f"/v1/batches/{made['id']}").json()
            check("Batch", made)
            assert made["status"] == ("completed" if content == line else "failed")
        check("ErrorResponse", client.post(f"/v1/batches/{made['id']}/cancel").json())
        check("ListBatchesResponse", client.get("/v1/batches").json())
        check("ListFilesResponse", client.get("/v1/files").json())
        check("DeleteFileResponse", client.delete(f"/v1/files/{sent['id']}").json())


def test_errors(client: httpx.Client, check: Check) -> None:
    broken = [
        client.post(CHAT, content=b"{"),
        client.post(CHAT, json={"messages": HELLO, "temperature": -1}),
        client.post(CHAT, json={"messages": HELLO, "model": "absent"}),
        client.post(TEXT, json={"prompt": "FAIL@3"}),
        client.get("/v1/models/absent"),
        client.get("/absent"),
        client.get(CHAT),
    ]
    assert [response.status_code for response in broken] == [400, 400, 404, 500, 404, 404, 405]
    for response in broken:
        check("ErrorResponse", response.json())
    check("ErrorResponse", chunks(client, CHAT, {"messages": [{"role": "user", "content": "FAIL@3"}]})[-1])


def test_a_missing_key(check: Check) -> None:
    settings = Settings(port=0, log_interval_s=0, api_keys=("secret",))
    with serving(ScriptedEngine(), settings=settings) as running:
        response = httpx.get(running.address + "/v1/models")
    assert response.status_code == 401
    check("ErrorResponse", response.json())


@pytest.mark.parametrize(
    "schema, path, wrong",
    [
        ("CreateChatCompletionResponse", ("choices", 0, "finish_reason"), "done"),
        ("CreateChatCompletionResponse", ("usage", "total_tokens"), "7"),
        ("CreateChatCompletionResponse", ("object",), "chat"),
    ],
)
def test_a_wrong_reply_is_found(
    client: httpx.Client, check: Check, schema: str, path: tuple[Any, ...], wrong: str
) -> None:
    made = client.post(CHAT, json={"messages": HELLO}).json()
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = wrong
    with pytest.raises(AssertionError, match=str(path[-1])):
        check(schema, made)

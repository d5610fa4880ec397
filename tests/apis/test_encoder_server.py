"""The routes of encoders: embeddings with the model's own prompts and pooling, rerank and score."""

import struct
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from encoder_files import write_sentence_model
from scripted_engine import ScriptedEngine, serving
from tahr import AsyncLLM
from tahr.library.embeddings import EmbeddingOptions
from tahr.models.parts.encoding import Encoding
from tahr.server.models.llm_engine import LlmEngine

PROMPTS = {"query": "q: ", "document": "d: "}


class Embedder(ScriptedEngine):
    """An embedding model whose vectors tell what it was given."""

    def __init__(self, name: str = "embedder"):
        super().__init__(name, context_size=32)
        encoding = Encoding("mean", PROMPTS, default_prompt="document")
        self.inputs = replace(self.inputs, encoding=encoding, context_size=32)
        self.given: list[list[int]] = []

    async def embed(self, texts: Any, options: EmbeddingOptions, lora: Any = (), background: bool = False) -> Any:
        self.given = list(texts)
        return await super().embed(texts, options, lora, background)


class Ranker(Embedder):
    """A cross-encoder: the more letters a pair has, the better it is."""

    def __init__(self) -> None:
        super().__init__("ranker")
        self.inputs = replace(self.inputs, encoding=Encoding(scores_pairs=True, sigmoid=False), vector_width=1)

    async def embed(self, texts: Any, options: EmbeddingOptions, lora: Any = (), background: bool = False) -> Any:
        self.given = list(texts)
        return np.array([[len(text)] for text in texts], np.float32)


ENGINES = Embedder(), Ranker(), ScriptedEngine("chatty")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(*ENGINES) as server, httpx.Client(base_url=server.address) as client:
        yield client


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    got = client.post(path, json=body)
    assert got.status_code == 200, got.text
    return got.json()


def refused(client: httpx.Client, path: str, **body: Any) -> Any:
    got = client.post(path, json=body)
    assert got.status_code == 400, got.text
    return got.json()["error"]


def read(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode()


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [({}, "d: "), ({"prompt_name": "query"}, "q: "), ({"input_type": "query"}, "q: "),
     ({"input_type": "document"}, "d: ")],
)  # fmt: skip
def test_prompts(client: httpx.Client, fields: dict[str, str], prompt: str) -> None:
    made = ask(client, "/v1/embeddings", model="embedder", input=["cat", "dog"], **fields)
    assert [read(text) for text in ENGINES[0].given] == [f"{prompt}cat", f"{prompt}dog"]
    assert made["usage"]["prompt_tokens"] == sum(map(len, ENGINES[0].given))


def test_truncation_only_as_asked(client: httpx.Client) -> None:
    long = "x" * 100
    assert refused(client, "/v1/embeddings", model="embedder", input=long)["code"] == "context_length_exceeded"
    for requested, kept in ((-1, 32), (10, 10), (32, 32)):
        ask(client, "/v1/embeddings", model="embedder", input=[long, "x"], truncate_prompt_tokens=requested)
        assert [len(text) for text in ENGINES[0].given] == [kept, 5]
    for wrong in (0, -2, 33, 10**9):
        error = refused(client, "/v1/embeddings", model="embedder", input="x", truncate_prompt_tokens=wrong)
        assert error["param"] == "truncate_prompt_tokens"


def test_numbers(client: httpx.Client) -> None:
    whole = ask(client, "/v1/embeddings", model="embedder", input="ab", normalize=False)["data"][0]["embedding"]
    assert whole[3] == 1
    cut = ask(client, "/v1/embeddings", model="embedder", input="ab", dimensions=2, encoding_format="base64")
    assert np.linalg.norm(struct.unpack("<2f", b64decode(cut["data"][0]["embedding"]))) == pytest.approx(1)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("prompt_name", {"prompt_name": "poem"}),
        ("prompt_name", {"prompt_name": "query", "input_type": "query"}),
        ("input_type", {"input_type": "image"}),
        ("dimensions", {"dimensions": 5}),
        ("model", {"model": "ranker"}),
    ],
)
def test_what_embeddings_refuse(client: httpx.Client, field: str, body: dict[str, Any]) -> None:
    assert refused(client, "/v1/embeddings", **{"input": "x", "model": "embedder"} | body)["param"] == field


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_rerank(client: httpx.Client, path: str) -> None:
    documents = ["a", {"text": "three"}, "to"]
    made = ask(client, path, model="ranker", query="q", documents=documents)
    assert [each["index"] for each in made["results"]] == [1, 2, 0]
    assert "document" not in made["results"][0] and made["usage"]["total_tokens"] == 17
    assert read(ENGINES[1].given[1]) == "qthree"
    best = ask(client, path, model="ranker", query="q", documents=documents, top_n=1, return_documents=True)
    assert best["results"] == [{"index": 1, "relevance_score": 8.0, "document": {"text": "three"}}]


def test_an_embedding_model_reranks_by_cosine(client: httpx.Client) -> None:
    made = ask(client, "/v1/rerank", model="embedder", query="x", documents=["x", "x"])
    scores = [(each["index"], each["relevance_score"]) for each in made["results"]]
    assert [index for index, _ in scores] == [0, 1] and scores[0][1] == scores[1][1] == pytest.approx(1, abs=1e-3)
    assert [read(text) for text in ENGINES[0].given] == ["q: x", "d: x", "d: x"]


def test_score(client: httpx.Client) -> None:
    made = ask(client, "/v1/score", model="ranker", text_1="a", text_2=["b", "cd"])
    assert [(each["index"], each["score"]) for each in made["data"]] == [(0, 4.0), (1, 5.0)]
    made = ask(client, "/v1/score", model="ranker", text_1=["a", "bcd"], text_2=["b", "cd"])
    assert [each["score"] for each in made["data"]] == [4.0, 7.0]
    assert len(ask(client, "/v1/score", model="ranker", text_1="a", text_2="b")["data"]) == 1


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/rerank", "documents", {"query": "q", "documents": []}),
        ("/v1/rerank", "documents", {"query": "q", "documents": ["a", ""]}),
        ("/v1/rerank", "documents", {"query": "q", "documents": ["x"] * 2049}),
        ("/v1/rerank", "documents", {"query": "q", "documents": ["x" * 40]}),
        ("/v1/rerank", "query", {"query": "", "documents": ["a"]}),
        ("/v1/rerank", "query", {"documents": ["a"]}),
        ("/v1/rerank", "top_n", {"query": "q", "documents": ["a"], "top_n": 0}),
        ("/v1/rerank", "truncate_prompt_tokens", {"query": "q", "documents": ["a"], "truncate_prompt_tokens": 0}),
        ("/v1/rerank", "query", {"query": "q" * 31, "documents": ["a"], "truncate_prompt_tokens": -1}),
        ("/v1/rerank", "query", {"query": "q" * 31, "documents": ["a"] * 2048}),
        ("/v1/rerank", "model", {"query": "q", "documents": ["a"], "model": "chatty"}),
        ("/v1/score", "text_1", {"text_1": ["a", "b"], "text_2": ["a"]}),
        ("/v1/score", "text_2", {"text_1": "a", "text_2": []}),
    ],
)
def test_what_pairs_refuse(client: httpx.Client, path: str, field: str, body: dict[str, Any]) -> None:
    assert refused(client, path, **{"model": "ranker"} | body)["param"] == field


@pytest.mark.parametrize(("model", "route"), [("embedder", "/v1/embeddings"), ("ranker", "/v1/rerank")])
def test_an_encoder_neither_chats_nor_completes(client: httpx.Client, model: str, route: str) -> None:
    for path, requested in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
        text = [{"role": "user", "content": "hi"}] if requested == "messages" else "hi"
        error = refused(client, path, model=model, **{requested: text})
        assert "generates no text" in error["message"] and route in error["message"] and error["param"] == "model"


def test_what_ollamas_clients_may_ask_of_an_encoder(client: httpx.Client) -> None:
    shown = {name: ask(client, "/api/show", model=name)["capabilities"] for name in ("embedder", "ranker", "chatty")}
    assert "completion" in shown["chatty"] and "embedding" in shown["chatty"]
    assert "completion" not in shown["embedder"] + shown["ranker"]
    assert "embedding" in shown["embedder"] and "embedding" not in shown["ranker"]


def test_two_thousand_documents(client: httpx.Client) -> None:
    made = ask(client, "/v1/rerank", model="ranker", query="q", documents=["same"] * 2048)
    assert [each["index"] for each in made["results"]] == list(range(2048))


def test_a_long_text_is_refused_by_its_beginning(tmp_path: Path) -> None:
    """WordPiece makes one token of a word of any length, so that a length alone says nothing: all was tokenised."""
    engine = LlmEngine(AsyncLLM(str(write_sentence_model(tmp_path)), n_threads=2))
    with serving(engine) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        error = refused(client, "/v1/embeddings", model=engine.name, input="a goat " * 100_000)
        assert error["code"] == "context_length_exceeded" and "no text of 700000 characters fits" in error["message"]
        ask(client, "/v1/embeddings", model=engine.name, input="x" * 100_000)

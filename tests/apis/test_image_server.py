"""Images over HTTP: every form that clients send, and what is refused, by its place."""

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from image_cases import png, png_header
from scripted_engine import ScriptedEngine, serving
from tahr import AsyncLLM
from tahr.images.data_uri import data_of
from tahr.images.errors import BadImage, ImageTooLarge
from tahr.server.models.llm_engine import LlmEngine
from vision_files import write_vision

PHOTO = png("RGB", 300, 500)
BASE64 = b64encode(PHOTO).decode()
URI = f"data:image/png;base64,{BASE64}"
N_PATCHES = 25  # of an image, by the model's numbers


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = write_vision(tmp_path_factory.mktemp("clip"), "clip")
    llm = AsyncLLM(folder, n_threads=2)
    engine = LlmEngine(llm)
    engine.name = "clip"
    with serving(engine, ScriptedEngine("chatty")) as server, httpx.Client(base_url=server.address) as client:
        yield client
    asyncio.run(llm.close())


def ask(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/embeddings", json={"model": "clip", **body})


def vectors(client: httpx.Client, **body: Any) -> np.ndarray:
    got = ask(client, **body)
    assert got.status_code == 200, got.text
    return np.array([each["embedding"] for each in got.json()["data"]])


def refused(client: httpx.Client, status: int = 400, **body: Any) -> dict[str, Any]:
    got = ask(client, **body)
    assert got.status_code == status, got.text
    error: dict[str, Any] = got.json()["error"]
    assert error["message"].endswith(".")
    return error


PART = {"type": "image_url", "image_url": {"url": URI}}
FORMS: list[dict[str, Any]] = [
    {"input": {"image": URI}},
    {"input": {"image": BASE64}},
    {"input": [{"image": URI}]},
    {"input": [{"content": [PART]}]},
    {"input": [{"content": [{"type": "image_url", "image_url": URI}]}]},
    {"input": URI, "modality": "image"},
    {"input": [URI], "modality": "image"},
    {"messages": [{"role": "user", "content": [PART]}]},
    {"messages": [{"role": "user", "content": [PART | {"image_url": {"url": URI, "detail": "low"}}]}]},
    {"input": {"image": URI.replace("image/png", "image/PNG;name=a.png")}},
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_image(client: httpx.Client, form: dict[str, Any]) -> None:
    got = ask(client, **form)
    assert got.status_code == 200, got.text
    wanted = vectors(client, input=[{"image": URI}, "cat"])[:1]
    np.testing.assert_array_equal([each["embedding"] for each in got.json()["data"]], wanted)
    assert got.json()["usage"] == {"prompt_tokens": N_PATCHES, "total_tokens": N_PATCHES}


def test_texts_and_images_in_one_request(client: httpx.Client) -> None:
    mixed = ["cat", {"image": URI}, {"text": "dog"}, [2, 57, 3], {"content": [{"type": "text", "text": "dog"}]}]
    found = vectors(client, input=mixed)
    alone = [vectors(client, input=[each])[0] for each in mixed]
    np.testing.assert_array_equal(found, alone)
    np.testing.assert_array_equal(found[2], found[4])
    np.testing.assert_array_equal(vectors(client, messages=[{"role": "user", "content": "dog"}])[0], found[2])
    usage = ask(client, input=mixed).json()["usage"]
    assert usage["prompt_tokens"] == N_PATCHES + 4 * 3
    packed = ask(client, input=mixed, encoding_format="base64", dimensions=7).json()["data"]
    short = vectors(client, input=mixed, dimensions=7)
    assert short.shape == (5, 7) and packed[1]["embedding"] == b64encode(short[1].astype("<f4").tobytes()).decode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "One of input and messages"),
        ({"input": "cat", "messages": []}, "One of input and messages"),
        ({"input": "cat", "modality": "audio"}, "modality is 'audio'"),
        ({"input": [2, 3], "modality": "image"}, "list of token ids"),
        ({"input": {"image": URI, "text": "cat"}}, "input has 2 texts and images"),
        ({"input": ["cat", {"content": [PART, {"type": "text", "text": "cat"}]}]}, r"input\[1\] has 2 texts"),
        ({"input": [{"content": []}]}, r"input\[0\] has 0 texts"),
        ({"input": [{}]}, r"input\[0\] has 0 texts"),
        ({"input": [{"text": ""}]}, "a text that is not empty"),
        ({"input": [{"content": [{"type": "input_audio"}]}]}, "must have a text"),
        ({"messages": []}, "one message of the user"),
        ({"messages": [{"role": "system", "content": [PART]}]}, "one message of the user"),
        ({"messages": [{"role": "user", "content": "a"}] * 2}, "one message of the user"),
        ({"input": [{"image": "x"}] * 33}, "33 images, but this server takes 32"),
        ({"input": {"image": URI}, "pooling": "mean"}, "pooling is of texts"),
        ({"input": {"image": ""}}, "a text that is not empty"),
        ({"input": ["cat", {"image": "data:image/png;base64,aGVsbG8="}]}, r"input\[1\]: The bytes are no image"),
        ({"input": {"image": "data:text/html;base64,aGVsbG8="}}, "of the type 'text/html'"),
        ({"input": {"image": f"data:image/png,{quote(PHOTO[:200])}"}}, "not in base64"),
        ({"input": {"image": "data:image/png;base64,a b c"}}, "no base64"),
        ({"input": {"image": "data:image/png;base64,_-_-"}}, "no base64"),
        ({"input": {"image": "data:image/png;base64," + BASE64[:-3]}}, "no base64|damaged"),
        ({"input": {"image": "http://127.0.0.1:1/cat.png"}}, "fetches none"),
        ({"input": {"image": "file:///etc/passwd"}}, "fetches none"),
        ({"input": {"image": "../../etc/passwd"}}, "no base64"),
        ({"input": {"image": "/dev/zero"}}, "no base64|no image"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "no base64"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    error = refused(client, **body)
    assert re.search(words, error["message"]), error["message"]
    assert error["param"] in ("input", "messages", "modality", "pooling")
    assert ask(client, input="cat").status_code == 200


def test_an_image_with_too_many_pixels(client: httpx.Client) -> None:
    huge = f"data:image/png;base64,{b64encode(png_header(30_000, 30_000)).decode()}"
    error = refused(client, 413, input=["cat", {"image": huge}])
    assert error["param"] == "input" and "input[1]: The image has more pixels than the 64000000" in error["message"]


def test_models_of_texts_refuse_images(client: httpx.Client) -> None:
    error = refused(client, model="chatty", input=["hello", {"image": URI}])
    assert "input[1] is an image, but the model chatty reads texts alone" in error["message"]
    got = client.post("/api/embed", json={"model": "clip", "input": ["cat"]})
    np.testing.assert_allclose(got.json()["embeddings"][0], vectors(client, input="cat")[0], atol=1e-6)
    assert client.post("/v1/chat/completions", json={"model": "clip", "messages": []}).status_code == 400


def test_sizes_are_known_before_anything_is_decoded() -> None:
    with pytest.raises(ImageTooLarge, match="more than the 100 bytes"):
        data_of("A" * 200, 100)
    assert data_of("QUJD" * 33, 100) == b"ABC" * 33
    with pytest.raises(BadImage):
        data_of("data:" + "x" * 5000 + ",", 100)

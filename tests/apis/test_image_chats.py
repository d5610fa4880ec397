"""Chats about images over HTTP: one image through each API is one prompt, and what is refused, by its place."""

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from chat_vision_files import write_chat_vision
from image_cases import png, png_header
from scripted_engine import ScriptedEngine, serving
from tahr import AsyncLLM
from tahr.engine.sequences.prompt_rows import PromptRows, RowSource
from tahr.generation.pictures import PromptImage, turned, until
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.state.settings import Settings

PHOTO = png("RGB", 300, 500)
BASE64 = b64encode(PHOTO).decode()
URI = f"data:image/png;base64,{BASE64}"
N_TOKENS = 15  # of the image
NOTHING = RowSource(np.zeros((0, 0), np.float32))
OPENAI = {"type": "image_url", "image_url": {"url": URI}}
ANTHROPIC = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = write_chat_vision(tmp_path_factory.mktemp("qwen3_vl"))
    llm = AsyncLLM(folder, n_threads=2, context_size=256, page_size=8)
    engine = LlmEngine(llm)
    engine.name = "vision"
    with serving(engine, ScriptedEngine("chatty")) as server, httpx.Client(base_url=server.address) as client:
        yield client
    asyncio.run(llm.close())


def said(client: httpx.Client, path: str, **body: Any) -> Any:
    got = client.post(path, json={"model": "vision", **body})
    assert got.status_code == 200, got.text
    return got.json()


def by_openai(client: httpx.Client, image: Any = OPENAI, **more: Any) -> tuple[str, int]:
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "cat"}]}]
    got = said(client, "/v1/chat/completions", messages=messages, max_tokens=8, temperature=0, **more)
    return got["choices"][0]["message"]["content"], got["usage"]["prompt_tokens"]


def by_responses(client: httpx.Client) -> tuple[str, int]:
    content = [{"type": "input_image", "image_url": URI}, {"type": "input_text", "text": "cat"}]
    items = [{"role": "user", "content": content}]
    got = said(client, "/v1/responses", input=items, max_output_tokens=8, temperature=0)
    return got["output"][0]["content"][0]["text"], got["usage"]["input_tokens"]


def by_anthropic(client: httpx.Client) -> tuple[str, int]:
    messages = [{"role": "user", "content": [ANTHROPIC, {"type": "text", "text": "cat"}]}]
    got = said(client, "/v1/messages", messages=messages, max_tokens=8, temperature=0)
    counted = said(client, "/v1/messages/count_tokens", messages=messages)
    assert counted["input_tokens"] == got["usage"]["input_tokens"] + got["usage"].get("cache_read_input_tokens", 0)
    return got["content"][0]["text"], counted["input_tokens"]


def by_ollama(client: httpx.Client) -> tuple[str, int]:
    options = {"num_predict": 8, "temperature": 0}
    messages = [{"role": "user", "content": "cat", "images": [BASE64]}]
    got = said(client, "/api/chat", messages=messages, stream=False, options=options)
    return got["message"]["content"], got["prompt_eval_count"]


def by_ollama_generate(client: httpx.Client) -> tuple[str, int]:
    options = {"num_predict": 8, "temperature": 0}
    got = said(client, "/api/generate", prompt="cat", images=[BASE64], stream=False, options=options)
    return got["response"], got["prompt_eval_count"]


@pytest.mark.parametrize("ask", [by_responses, by_anthropic, by_ollama, by_ollama_generate])
def test_every_api_gives_the_same_prompt(client: httpx.Client, ask: Any) -> None:
    assert ask(client) == by_openai(client)


def test_forms_of_openai(client: httpx.Client) -> None:
    wanted = by_openai(client)
    assert by_openai(client, {"type": "image_url", "image_url": URI}) == wanted
    assert by_openai(client, {"type": "image_url", "image_url": {"url": BASE64}}) == wanted
    for detail in ("auto", "low", "high", "original"):
        assert by_openai(client, {"type": "image_url", "image_url": {"url": URI, "detail": detail}}) == wanted
    blank = said(client, "/v1/chat/completions", messages=[{"role": "user", "content": "cat"}], max_tokens=1)
    assert wanted[1] - blank["usage"]["prompt_tokens"] == N_TOKENS + 2


def test_results_of_tools_may_have_images(client: httpx.Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "cat"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [OPENAI]},
    ]
    got = said(client, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert got["usage"]["prompt_tokens"] > N_TOKENS


def test_models_that_read_images_say_so(client: httpx.Client) -> None:
    assert client.get("/props").json()["modalities"] == {"vision": True, "audio": False}
    assert "vision" in said(client, "/api/show")["capabilities"]
    cards = {card["id"]: card["architecture"]["input_modalities"] for card in client.get("/v1/models").json()["data"]}
    assert cards == {"vision": ["text", "image"], "chatty": ["text"]}
    assert "vision" not in client.post("/api/show", json={"model": "chatty"}).json()["capabilities"]


@pytest.mark.parametrize("n_images", [1, 2])
def test_a_reply_that_has_begun_goes_on(client: httpx.Client, n_images: int) -> None:
    asked = {"role": "user", "content": [OPENAI] * n_images + [{"type": "text", "text": "cat"}]}
    messages = [asked, {"role": "assistant", "content": "dog"}]
    options = {"max_tokens": 4, "temperature": 0}
    how = {"continue_final_message": True, "add_generation_prompt": False}
    got = said(client, "/v1/chat/completions", messages=messages, **options, **how)
    assert 1 <= got["usage"]["completion_tokens"] <= 4
    wanted = got["choices"][0]["message"]["content"]
    by_anthropic = [
        {"role": "user", "content": [ANTHROPIC] * n_images + [{"type": "text", "text": "cat"}]},
        messages[1],
    ]
    got = said(client, "/v1/messages", messages=by_anthropic, **options)
    assert got["content"][0]["text"] == wanted


def test_a_prompt_that_goes_on_has_the_positions_of_a_longer_one() -> None:
    images = [PromptImage(NOTHING, b"a", 2, 3), PromptImage(NOTHING, b"b", 4, 1)]
    longer = turned(40, [3, 12], images)
    shorter = PromptRows(rope_positions=turned(20, [3, 12], images))
    found = until(shorter, 40).rope_positions
    assert found is not None and found.dtype == longer.dtype and np.array_equal(found, longer)
    assert until(shorter, 20) is shorter and until(shorter, 40).rope_offset == shorter.rope_offset


def test_a_stream_with_an_image(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": [OPENAI]}]
    body = {"model": "vision", "messages": messages, "max_tokens": 4, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as got:
        assert got.status_code == 200 and "[DONE]" in "".join(got.iter_text())


# ---- what is refused ----------------------------------------------------------------------------------------------


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def grey(width: int, height: int) -> bytes:
    out = BytesIO()
    Image.new("L", (width, height)).save(out, "GIF")
    return out.getvalue()


BAD: list[tuple[str, int, str]] = [
    ("https://example.com/cat.png", 400, "is a URL, and Tahr fetches none"),
    ("http://169.254.169.254/latest", 400, "is a URL"),
    ("file:///etc/passwd", 400, "is a URL"),
    ("/etc/passwd", 400, "no base64"),
    ("../../x.png", 400, "no base64"),
    ("", 400, "is empty"),
    ("data:text/html;base64,PGh0bWw+", 400, "must be of an image"),
    ("data:image/png,%89PNG", 400, "not in base64"),
    ("data:image/png;base64,@@@", 400, "no base64"),
    (uri(b"<svg/>"), 400, "SVG"),
    (uri(b"%!PS-Adobe"), 400, "PostScript"),
    (uri(PHOTO[:1000]), 400, "damaged"),
    (uri(png_header(30000, 30000)), 413, "more pixels than the 64000000"),
    (uri(png_header(1, 60000)), 413, "60000"),
    (uri(grey(2000, 5)), 400, "one side may be 200 times"),
    (uri(b"\0" * 20_000_001), 413, "but 20000000 are allowed"),
]


@pytest.mark.parametrize(("url", "status", "words"), BAD, ids=range(len(BAD)))
def test_images_that_are_refused(client: httpx.Client, url: str, status: int, words: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": "cat"}, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    got = client.post("/v1/chat/completions", json={"model": "vision", "messages": messages})
    assert got.status_code == status, got.text
    error = got.json()["error"]
    assert error["message"].startswith("messages[1].content[1]: ") and words in error["message"]
    assert error["param"] == "messages" and error["message"].endswith(".")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [{"role": "system", "content": [OPENAI]}, {"role": "user", "content": "a"}]}, "role 'system'"),
        ({"messages": [{"role": "user", "content": [OPENAI] * 33}]}, "may have 32"),
        ({"messages": [{"role": "user", "content": [OPENAI] * 20}]}, "context"),
        ({"model": "chatty", "messages": [{"role": "user", "content": [OPENAI]}]}, "reads texts alone"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has no image_url: give one"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'text' or 'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URI, "detail": "x"}}]}]},
         "detail 'x'"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    got = client.post("/v1/chat/completions", json={"model": "vision", **body})
    assert got.status_code == 400, got.text
    assert words in got.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", {"prompt": "<|image_pad|>"}, "stands for an image"),
        ("/v1/completions", {"prompt": [1, 90, 2]}, "stands for an image"),
        ("/api/generate", {"prompt": "a", "images": [BASE64], "raw": True}, "needs the model's template"),
        ("/v1/messages",
         {"max_tokens": 4, "messages": [{"role": "user", "content": [
             {"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
         "messages[0].content[0].source must hold the image"),
        ("/v1/messages",
         {"max_tokens": 4, "messages": [{"role": "user", "content": [
             {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}]}]},
         "messages[0].content[0]: The image is a URL"),
        ("/v1/responses",
         {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
         "input[0].content[0] must hold the image"),
        ("/v1/responses",
         {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.b/c.png"}]}]},
         "input[0].content[0]: The image is a URL"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["no base64!"]}]},
         "messages[0].images[0]: The image is no base64"),
        ("/api/generate", {"prompt": "a", "images": ["/etc/passwd"]}, "images[0]: The image is no base64"),
    ],
)  # fmt: skip
def test_other_apis_refuse_by_place(client: httpx.Client, path: str, body: dict[str, Any], words: str) -> None:
    got = client.post(path, json={"model": "vision", **body})
    assert got.status_code == 400, got.text
    assert words in str(got.json()["error"]), got.text


def test_sessions_keep_texts_alone() -> None:
    engine = ScriptedEngine("chatty")
    with (
        serving(engine, settings=Settings(port=0, log_interval_s=0, session_cache="memory")) as server,
        httpx.Client(base_url=server.address) as client,
    ):
        body = {"messages": [{"role": "user", "content": [OPENAI]}], "metadata": {"session_id": "a"}}
        got = client.post("/v1/chat/completions", json={"model": "chatty", **body})
        assert got.status_code == 400
        assert got.json()["error"]["message"].startswith("messages[0] has an image, but sessions keep texts alone")

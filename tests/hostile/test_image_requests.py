"""Images in every API, as a stranger may send them: refused by their place, within bounds, beside texts of others."""

import asyncio
import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from io import BytesIO
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from chat_vision_files import write_chat_vision
from image_cases import png, png_header
from scripted_engine import ScriptedEngine, serving
from tahr import AsyncLLM
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.state.settings import Settings

Body = dict[str, Any]
SMALL = png("RGB", 30, 50)
TINY = png("RGB", 16, 16)
OPENAI, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CHAT, GENERATE = "/api/chat", "/api/generate"


def by_openai(images: list[Any]) -> Body:
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in images]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def by_responses(images: list[Any]) -> Body:
    content = [{"type": "input_image", "image_url": each} for each in images]
    return {"input": [{"role": "user", "content": content}], "max_output_tokens": 1}


def by_anthropic(images: list[Any]) -> Body:
    sources = [{"type": "base64", "media_type": "image/png", "data": each} for each in images]
    content = [{"type": "image", "source": each} for each in sources]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def by_ollama(images: list[Any]) -> Body:
    messages = [{"role": "user", "content": "a", "images": images}]
    return {"messages": messages, "stream": False, "options": {"num_predict": 1}}


def by_generate(images: list[Any]) -> Body:
    return {"prompt": "a", "images": images, "stream": False, "options": {"num_predict": 1}}


# By path: a body with images, and how errors name the second of them.
APIS: dict[str, tuple[Callable[[list[Any]], Body], str]] = {
    OPENAI: (by_openai, "messages[0].content[1]"),
    RESPONSES: (by_responses, "input[0].content[1]"),
    ANTHROPIC: (by_anthropic, "messages[0].content[1]"),
    CHAT: (by_ollama, "messages[0].images[1]"),
    GENERATE: (by_generate, "images[1]"),
}


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def as_sent(path: str, data: bytes) -> str:
    """An image as the clients of an API send it."""
    return f"data:image/png;base64,{base64(data)}" if path in (OPENAI, RESPONSES) else base64(data)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = write_chat_vision(tmp_path_factory.mktemp("qwen3_vl"))
    llm = AsyncLLM(folder, n_threads=2, context_size=512, page_size=8)
    engine = LlmEngine(llm)
    engine.name = "vision"
    with (
        serving(engine, ScriptedEngine("chatty")) as server,
        httpx.Client(base_url=server.address, timeout=60) as client,
    ):
        yield client
    asyncio.run(llm.close())


def post(client: httpx.Client, path: str, images: list[Any], model: str = "vision") -> httpx.Response:
    return client.post(path, json={"model": model, **APIS[path][0](images)})


def refusal(got: httpx.Response, status: int = 400) -> str:
    assert got.status_code == status, got.text
    return str(got.json()["error"])


FILES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 400, "is empty"),
    "text": (b"hello", 400, "no image that Tahr knows"),
    "svg": (b"<svg/>", 400, "SVG"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0", 400, "PostScript"),
    "tiff": (b"II*\0\x08\0\0\0", 400, "TIFF"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0", 400, "HEIC"),
    "cut off": (SMALL[: len(SMALL) // 2], 400, "damaged"),
    "large square": (png_header(30_000, 30_000), 413, "more pixels"),
    "long line": (png_header(1, 60_000), 413, "60000"),
    "thin": (png_header(2010, 10), 400, "200 times as long"),
    "many bytes": (bytes(20_000_001), 413, "20000000 are allowed"),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("path", APIS)
def test_files_that_are_refused(client: httpx.Client, path: str, case: str) -> None:
    data, status, words = FILES[case]
    said = refusal(post(client, path, [as_sent(path, SMALL), as_sent(path, data)]), status)
    assert f"{APIS[path][1]}: " in said and words in said


TEXTS: dict[str, str] = {
    "no base64": "@@@@",
    "one letter": "A",
    "cut off": base64(SMALL)[:-3],
    "padding inside": "QUJD=QUJD",
    "of URLs": urlsafe_b64encode(b"\xff\xfe\xfd" * 8).decode(),
    "spaces": " ".join(base64(SMALL)),
    "a path": "/etc/passwd",
    "a way up": "../../../../etc/passwd",
    "a URL": "http://169.254.169.254/latest/meta-data",
    "a file": "file:///etc/passwd",
    "nul": "\0" * 8,
    "no ASCII": "é" * 8,
    "other media": "data:text/html;base64,PGh0bWw+",
    "no media": "data:;base64,AAAA",
    "percent": "data:image/png,%89PNG",
    "twice": "data:image/png;base64;base64,AAAA",
    "nested": "data:image/png;base64,data:image/png;base64,AAAA",
    "no comma": "data:image/png;base64",
    "nothing": "data:",
    "svg": "data:image/svg+xml;base64,PHN2Zy8+",
    "marks": "<|image_pad|>",
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("path", APIS)
def test_texts_that_are_no_images(client: httpx.Client, path: str, case: str) -> None:
    said = refusal(post(client, path, [as_sent(path, SMALL), TEXTS[case]]))
    assert APIS[path][1] in said and "Traceback" not in said


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], {}, ["a"], {"url": "a"}, [[]]], ids=str)
@pytest.mark.parametrize("path", APIS)
def test_values_of_wrong_types(client: httpx.Client, path: str, value: Any) -> None:
    assert refusal(post(client, path, [value]))


@pytest.mark.parametrize("value", [5, "AAAA", {"0": "AAAA"}, [None]], ids=str)
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_lists_of_wrong_types(client: httpx.Client, path: str, value: Any) -> None:
    message = {"role": "user", "content": "a", "images": value}
    body = {"messages": [message]} if path == CHAT else {"prompt": "a", "images": value}
    assert refusal(client.post(path, json={"model": "vision", "stream": False, **body}))


@pytest.mark.parametrize("path", APIS)
def test_more_images_than_a_request_may_have(client: httpx.Client, path: str) -> None:
    assert post(client, path, [as_sent(path, TINY)] * 32).status_code == 200
    for n in (33, 5000):
        assert "may have 32" in refusal(post(client, path, [as_sent(path, TINY)] * n))


@pytest.mark.parametrize("path", APIS)
def test_images_that_fill_the_context(client: httpx.Client, path: str) -> None:
    """Counted before the tower runs."""
    large = as_sent(path, png("RGB", 400, 400))
    begun = time.monotonic()
    assert "context" in refusal(post(client, path, [large] * 31))
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("path", APIS)
def test_images_for_a_model_of_texts(client: httpx.Client, path: str) -> None:
    """Refused before a byte of them is decoded."""
    bomb = as_sent(path, png_header(30_000, 30_000))
    assert "reads texts alone" in refusal(post(client, path, [bomb], "chatty"))


def test_images_for_a_template_of_texts() -> None:
    """A template that joins strings never meets them."""
    template = "{% for message in messages %}{{ 'x' + message.content }}{% endfor %}"
    with serving(ScriptedEngine("joins", template=template)) as server, httpx.Client(base_url=server.address) as it:
        for path in APIS:
            said = refusal(post(it, path, [as_sent(path, png_header(8, 8))], "joins"))
            assert "is an image, but this model reads texts alone" in said


@pytest.mark.parametrize("path", APIS)
def test_a_body_beyond_all_limits(client: httpx.Client, path: str) -> None:
    sent = as_sent(path, bytes(3 << 24))
    assert "bytes" in refusal(post(client, path, [sent]), 413)


# ---- in sum -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server that keeps the images of one request at a time."""
    llm = AsyncLLM(write_chat_vision(tmp_path_factory.mktemp("little")), n_threads=2, context_size=512, page_size=8)
    engine = LlmEngine(llm)
    engine.name = "vision"
    settings = Settings(port=0, log_interval_s=0, kept_image_bytes=1)
    with serving(engine, settings=settings) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        yield client
    asyncio.run(llm.close())


@pytest.mark.parametrize("path", APIS)
def test_images_of_others_are_kept_for_as_long_as_their_replies_take(little: httpx.Client, path: str) -> None:
    """Who is alone has as many as may be; who is not hears when to come again."""
    several = [as_sent(path, SMALL), as_sent(path, TINY)]
    assert post(little, path, several).status_code == 200
    endless = by_openai([as_sent(OPENAI, SMALL)]) | {"max_tokens": 400, "ignore_eos": True, "stream": True}
    with little.stream("POST", OPENAI, json={"model": "vision", **endless}) as got:
        next(got.iter_lines())
        refused = post(little, path, several)
        assert "images of other requests" in refusal(refused, 503)
        assert refused.headers["retry-after"] == "1"
        words = little.post("/v1/completions", json={"model": "vision", "prompt": "a", "max_tokens": 1})
        assert words.status_code == 200, "texts need none of it"
    until = time.monotonic() + 20
    while post(little, path, several).status_code == 503:
        assert time.monotonic() < until, "the images of a reply that its client left are kept for ever"
        time.sleep(0.05)


# ---- beside others ------------------------------------------------------------------------------------------------

MOST_GAP_S = 5  # a machine that does other things too stalls for a second by itself
ATTACK_S = 4


def photo(size: int) -> bytes:
    out = BytesIO()
    noise = np.random.default_rng(size).integers(0, 255, (size, size, 3), np.uint8)
    Image.fromarray(noise).save(out, "JPEG")
    return out.getvalue()


def attack(address: str, until: float, seen: list[int]) -> None:
    """Bombs, damaged images and large ones, one after the other."""
    files = [photo(2000), png_header(30_000, 30_000), photo(600)[:-999], b"<svg/>", png_header(8000, 8000)]
    with httpx.Client(base_url=address, timeout=60) as client:
        while time.monotonic() < until:
            for path in APIS:
                seen += [post(client, path, [as_sent(path, data)] * 3).status_code for data in files]


@pytest.mark.serial
@pytest.mark.timeout(120)
def test_streams_beside_hostile_images(client: httpx.Client) -> None:
    """Texts of the same model are those they were, and none waits long for a token."""
    prompts = ["cat", "dog", "a b c"]

    def asked(prompt: str) -> tuple[str, float]:
        body = {"model": "vision", "prompt": prompt, "max_tokens": 64, "temperature": 0, "stream": True}
        gaps = [0.0]
        text = ""
        last = None
        with client.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as got:
            for line in got.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.monotonic()
                gaps.append(now - (last or now))
                last = now
                text += line
        return strip(text), max(gaps)

    wanted = [asked(prompt)[0] for prompt in prompts]
    until = time.monotonic() + ATTACK_S
    seen: list[int] = []
    thread = Thread(target=attack, args=(str(client.base_url), until, seen))
    thread.start()
    gaps = [0.0]
    while time.monotonic() < until:
        found = [asked(prompt) for prompt in prompts]
        assert [text for text, _ in found] == wanted
        gaps += [gap for _, gap in found]
    thread.join(60)
    assert set(seen) == {200, 400, 413}
    assert max(gaps) < MOST_GAP_S


def strip(events: str) -> str:
    """The texts of a stream's events."""
    found = [json.loads(each) for each in events.split("data: ")[1:]]
    return "".join(choice["text"] for each in found for choice in each["choices"])

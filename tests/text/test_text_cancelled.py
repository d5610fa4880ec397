"""Text work that nobody waits for: it ends when its client leaves, and at more tokens than anybody counts."""

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from scripted_engine import ByteTokenizer, ScriptedEngine, serving
from tahr.library.inputs.text_inputs import TextInputs
from tahr.server.replies import prompts
from tahr.text.tokens.cancellation import Cancellation, TextCancelled
from tahr.text.tokens.long_text import LONG
from tahr.text.tokens.merge import MergeModel
from tahr.text.tokens.tokenizer import Tokenizer
from test_long_text import JSON_TOKENIZERS
from tiny_vocabulary import tiny

WORDS = 60_000


class MergingTokenizer(ByteTokenizer):
    """Encodes as models do; what the engine's script generates is bytes."""

    def __init__(self) -> None:
        self.merging = Tokenizer.from_gguf(tiny())

    def encode(self, text: str, **options: Any) -> list[int]:
        return self.merging.encode(text, **options)

    def cannot_fit(self, text: str, n_tokens: int) -> bool:
        return self.merging.cannot_fit(text, n_tokens)


def merging_engine(context_size: int) -> ScriptedEngine:
    made = ScriptedEngine(context_size=context_size)
    made.tokenizer = MergingTokenizer()
    made.inputs = TextInputs(made.tokenizer, None, context_size, vector_width=4)
    return made


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(merging_engine(1 << 22)) as server, httpx.Client(base_url=server.address, timeout=20) as made:
        yield made


def many_words(n: int) -> str:
    """Words of 20 letters, all different."""
    letters = random.Random(1).randbytes(10 * n).hex().translate(str.maketrans("0123456789", "ghijklmnop"))
    return " ".join(letters[at : at + 20] for at in range(0, len(letters), 20))


@pytest.fixture
def slow_words(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Every word takes a hundredth of a second until the test ends; counts the words."""
    seen, over = threading.Semaphore(0), threading.Event()
    merge = MergeModel._merge

    def slow(self: MergeModel, word: str) -> list[str]:
        if len(word) >= 20:
            seen.release()
            over.wait(0.01)
        return merge(self, word)

    monkeypatch.setattr(MergeModel, "_merge", slow)
    yield seen
    over.set()


ROUTES = {
    "/tokenize": lambda text: {"content": text},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/messages/count_tokens": lambda text: {"model": "scripted", "messages": [{"role": "user", "content": text}]},
    "/v1/responses/input_tokens": lambda text: {"input": text},
    "/v1/embeddings": lambda text: {"input": text},
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_leaves_frees_the_thread_of_its_text(
    route: str, client: httpx.Client, slow_words: threading.Semaphore
) -> None:
    body = json.dumps(ROUTES[route](many_words(WORDS))).encode()
    url = client.base_url
    head = f"POST {route} HTTP/1.1\r\nhost: {url.host}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((url.host, url.port)) as left:
        left.sendall(head.encode() + body)
        assert slow_words.acquire(timeout=10)
    again = client.post("/tokenize", json={"content": "ab " * 400_000})  # of the size that waits for the same thread
    assert again.status_code in (200, 400)
    while slow_words.acquire(blocking=False):
        pass
    assert not slow_words.acquire(timeout=0.2), "the text of a client that has left is still worked on"


@pytest.mark.parametrize("name", ["bytes", "llama3"])
def test_a_text_in_the_hands_of_the_library_ends_too(name: str) -> None:
    tokenizer, cancellation = JSON_TOKENIZERS[name](), Cancellation()
    text = many_words(300_000)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            cancellation.run(partial(tokenizer.encode, text))
        except TextCancelled as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    cancellation.cancel()
    began = time.perf_counter()
    thread.join()
    assert failed and time.perf_counter() - began < 2


def test_work_that_waits_for_a_thread_is_not_begun() -> None:
    cancellation, done = Cancellation(), []
    cancellation.cancel()
    with pytest.raises(TextCancelled):
        cancellation.run(lambda: done.append(1))
    assert not done


def test_more_tokens_than_anybody_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MOST_COUNTED", 1000)
    with serving(merging_engine(400)) as server, httpx.Client(base_url=server.address, timeout=20) as made:

        def requested(route: str, text: str) -> tuple[int, Any]:
            response = made.post(route, json=ROUTES[route](text))
            return response.status_code, response.json()

        status, counted = requested("/tokenize", "<s>" * 600)
        assert (status, counted["count"]) == (200, 600), "longer than the context, but counted"
        for route in ("/tokenize", "/v1/completions"):
            status, refused = requested(route, "<s>" * 1001)
            assert status == 400 and "more than 1000 tokens" in refused["error"]["message"]


def test_a_text_of_a_million_special_tokens_is_left_when_it_is_too_long() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    began = time.thread_time()
    found = tokenizer.encode("<|im_end|>" * 900_000, add_special=False, most=10_000)
    assert 10_000 < len(found) <= 10_000 + LONG and time.thread_time() - began < 1  # 12 s for all of them

"""Grammars of strangers: whatever they make us compute ends, hurts nobody else, and is said in a sentence."""

import json
import random
import signal
import socket
import string
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_process import ServeProcess, served

COMPLETIONS = "/v1/completions"


def chain(n: int, salt: int = 0) -> str:
    """GBNF whose rules use each other one after the other."""
    rules = [f"r{i} ::= r{i + 1}" for i in range(n)]
    return "\n".join([*rules, f'r{n} ::= "a" | "{salt}" root', "root ::= r0"])


def words(n: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 10))) for _ in range(n)]


DOUBLING = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(20)) + '\nr20 ::= "a"\nroot ::= r0'
ALTERNATION = "root ::= " + " | ".join(f'"{word}"' for word in words(9000))
WIDE = {"type": "object", "properties": {f"p{i}": {} for i in range(9000)}}
COSTLY: dict[str, dict[str, Any]] = {  # seconds of computing each, were they let
    "chained rules": {"grammar": chain(40_000, 1)},
    "alternatives": {"grammar": "root ::= " + " | ".join(f'"w{i}"' for i in range(60_000)) + ' | "(" root ")"'},
    "properties": {"guided_json": WIDE},
}


@pytest.fixture(scope="module")
def server(stories: Path) -> Iterator[ServeProcess]:
    with served("--model", f"story={stories}") as running:
        yield running


@pytest.fixture
def client(server: ServeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=50) as made:
        yield made


def post(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 10, **fields})


def hang_up(address: str, **fields: Any) -> None:
    """Send a request and leave."""
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "Once", "max_tokens": 10, **fields}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        time.sleep(0.3)


@pytest.mark.parametrize("name", COSTLY)
def test_two_costly_grammars_hold_up_no_other_client(client: httpx.Client, name: str) -> None:
    post(client, guided_choice=["first"])  # workers start with the first grammar
    with ThreadPoolExecutor(2) as pool:
        attacks = [pool.submit(post, client, **COSTLY[name], seed=seed) for seed in range(2)]
        time.sleep(0.2)
        began = time.perf_counter()
        assert post(client, guided_choice=["yes", name]).status_code == 200
        assert time.perf_counter() - began < 8, "a few seconds, also on a machine that does other things"
        for each in attacks:
            reply = each.result()
            assert reply.status_code in (400, 503), reply.text
            assert len(reply.json()["error"]["message"]) > 20


def test_grammars_of_clients_that_left_are_computed_no_more(client: httpx.Client, server: ServeProcess) -> None:
    for salt in range(20):
        hang_up(server.address, grammar=chain(40_000, 100 + salt))
    began = time.perf_counter()
    assert post(client, guided_choice=["yes", "no"]).status_code == 200
    assert time.perf_counter() - began < 8


@pytest.mark.parametrize("source", [DOUBLING, ALTERNATION, chain(20_000)], ids=["doubling", "alternation", "chain"])
def test_expansions_have_a_bound_and_a_sentence(client: httpx.Client, source: str) -> None:
    reply = post(client, grammar=source)
    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 400:
        assert reply.json()["error"]["param"] == "grammar" and reply.json()["error"]["message"].endswith(".")


AMBIGUOUS = 'start: a "80"\na: a a | "x" | "y" | " " | "e"'


def test_ambiguous_grammars_end_before_they_slow_the_others_down(client: httpx.Client) -> None:
    """Each becomes costlier with every token; the requests are ended with a sentence, and the same is refused then."""
    attack = {"guided_grammar": AMBIGUOUS, "temperature": 1, "max_tokens": 400}
    with ThreadPoolExecutor(4) as pool:
        attacks = [pool.submit(post, client, **attack, seed=seed) for seed in range(4)]
        began = time.perf_counter()
        free = post(client, max_tokens=200, ignore_eos=True)
        assert free.json()["choices"][0]["finish_reason"] == "length"
        assert time.perf_counter() - began < 20
        for each in attacks:
            assert each.result().status_code == 400
            assert "too much time" in each.result().json()["error"]["message"]
    began = time.perf_counter()
    assert post(client, **attack).status_code == 400 and time.perf_counter() - began < 2


def test_a_server_ends_in_time_whatever_is_compiled(stories: Path) -> None:
    with (
        served("--model", f"story={stories}", "--drain-timeout", "2") as server,
        httpx.Client(base_url=server.address, timeout=50) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        attacks = [pool.submit(post, client, **each) for each in COSTLY.values()]
        time.sleep(1)
        began = time.perf_counter()
        server.signal(signal.SIGTERM)
        server.process.wait(timeout=30)
        assert time.perf_counter() - began < 8
        for each in attacks:
            assert each.exception() or each.result().status_code in (400, 503)

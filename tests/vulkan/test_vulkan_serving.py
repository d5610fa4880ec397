"""A model on a Vulkan device answers over HTTP to a standard-library client, and says what the reference says."""

import json
import urllib.request

import pytest

import assets
import backends_here
from model_runs import greedy
from serve_process import served
from tahr.backends.reference.backend import ReferenceBackend
from tahr.models.loader import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif("vulkan" not in backends_here.NAMES, reason="there is no Vulkan device here")
PROMPT = [1, 403, 407, 261, 378]
N_NEW = 12


def completion(address: str, **fields: object) -> dict:  # type: ignore[type-arg]
    body = json.dumps({"prompt": PROMPT, "max_tokens": N_NEW, **fields}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())  # type: ignore[no-any-return]


def test_a_served_model_answers() -> None:
    """Greedy and drawn replies, several at once."""
    with served("--model", str(assets.stories()), "--backend", "vulkan", "--kv-dtype", "f32") as server:
        plain = completion(server.address, temperature=0)
        again = completion(server.address, temperature=0.8, seed=4, n=3)
    assert plain["usage"]["completion_tokens"] == N_NEW
    assert len({choice["index"] for choice in again["choices"]}) == 3
    oracle = ReferenceBackend()
    opened = open_model([assets.stories()])
    wanted = greedy(load(opened, oracle), oracle, PROMPT, N_NEW)
    assert plain["choices"][0]["text"] == Tokenizer.from_gguf(opened.config).decode(wanted[len(PROMPT) :])

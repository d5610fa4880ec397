"""Where the tokens of a completion begin in its text."""

import json

import pytest

import assets
from scripted_engine import ScriptedEngine, client_of
from tahr.server.replies.logprobs import prompt_parts
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.weights.gguf import open_gguf


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_count_characters_of_the_text(stream: bool) -> None:
    """Also where a character is several tokens, and behind a BOS that nobody sent."""
    body = {"prompt": "é🙂!", "echo": True, "logprobs": 0, "max_tokens": 2, "stream": stream}
    with client_of(ScriptedEngine()) as client:
        reply = client.post("/v1/completions", json=body)
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")] or [reply.text]
    offsets = [(json.loads(each)["choices"][0]["logprobs"] or {}).get("text_offset", []) for each in events]
    assert [offset for each in offsets for offset in each] == [0, 0, 0, 1, 1, 1, 1, 2, 3, 4]


def test_offsets_where_a_tokenizer_adds_a_space() -> None:
    tokenizer = Tokenizer.from_gguf(open_gguf(assets.stories()).metadata)
    assert tokenizer.drops_first_space and tokenizer.prefix
    tokens = tokenizer.encode("naïve time")
    for is_text in (True, False):
        parts = list(prompt_parts(tokenizer, tokens, is_text))
        assert parts[0] == b"" and b"".join(parts).decode() == "naïve time"

"""Perplexity: windows, arithmetic, and the verb against plain logits."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tahr.backends import open_backend
from tahr.cli.main import main
from tahr.errors import ConfigError
from tahr.models.loader.load import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.tools.full_logits import FullLogits, all_logits
from tahr.tools.perplexity import Perplexity, Window, measure, windows

STORY = "Once upon a time there was a little girl who liked to play with her red ball in the park. " * 4


def test_windows_leave_out_the_rest_and_begin_with_bos() -> None:
    cut = windows(list(range(10, 21)), 4, 3, bos=1)
    assert cut == [Window([1, 11, 12, 13], 3), Window([1, 15, 16, 17], 3)]
    assert windows([5, 6, 7], 3, 1, None) == [Window([5, 6, 7], 1)]


@pytest.mark.parametrize(("n", "size", "begin", "said"), [(3, 4, 2, "has 3 tokens"), (9, 4, 4, "nothing to score")])
def test_windows_refuse(n: int, size: int, begin: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        windows(list(range(n)), size, begin, None)


def test_perplexity_of_even_chances() -> None:
    found = Perplexity.of(np.full(7, math.log(8.0)))
    assert found.value == pytest.approx(8) and found.error == pytest.approx(0) and found.n_tokens == 7


def test_scored_tokens_are_those_of_the_window(stories: Path) -> None:
    backend = open_backend("reference")
    decoder = load(open_model([stories]), backend).decoder
    ids = [1, 300, 20, 400, 33, 25, 401, 9]
    found = measure(FullLogits(backend, decoder, 8, chunk=3), [Window(ids, 5)])
    logits = all_logits(backend, decoder, ids).astype(np.float64)
    rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert found.n_tokens == 3
    assert math.log(found.value) == pytest.approx(-np.mean([rows[i - 1, ids[i]] for i in (5, 6, 7)]), rel=1e-5)


def test_the_verb_counts_as_llama_perplexity_does(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(STORY)
    words = ["perplexity", str(stories), str(text), "-c", "32", "--chunks", "2", "--backend", "reference"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    backend = open_backend("reference")
    source = open_model([stories])
    ids = Tokenizer.from_gguf(source.config).encode(STORY)
    decoder = load(source, backend).decoder
    surprise = []
    for begin in (0, 32):
        window = [1, *ids[begin + 1 : begin + 32]]
        logits = all_logits(backend, decoder, window).astype(np.float64)
        rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        surprise += [-rows[i - 1, window[i]] for i in range(17, 32)]
    assert said["n_tokens"] == 30
    assert said["perplexity"] == pytest.approx(math.exp(np.mean(surprise)), rel=1e-5)
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"perplexity {said['perplexity']:.4f} ± ")


def test_the_verb_refuses(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xff\xfe broken")
    assert main(["perplexity", str(stories), str(text)]) == 3
    assert "not UTF-8" in capsys.readouterr().err
    text.write_text("short")
    assert main(["perplexity", str(stories), str(text), "--backend", "reference"]) == 3
    assert "a window takes 512" in capsys.readouterr().err

"""The real default model: known text, and distributions close to llama.cpp's on the same file."""

from pathlib import Path

import numpy as np
import pytest

from tahr import LLM, SamplingParams
from tahr.backends import open_backend
from tahr.models.loader.load import load, open_model
from tahr.tools.full_logits import all_logits

FIXTURE = Path(__file__).parents[1] / "fixtures" / "smollm2_llama_cpp.npz"
GREEDY = SamplingParams(temperature=0, max_tokens=48)


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> LLM:
    return LLM(str(smollm2))


def test_the_capital_of_france(llm: LLM) -> None:
    reply = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4))
    assert "Paris" in reply.text
    assert reply.finish_reason == "length" and len(reply.token_ids) == 4


def test_it_chats(llm: LLM) -> None:
    reply = llm.chat([{"role": "user", "content": "What is the capital of Japan? One word."}], GREEDY)
    assert "Tokyo" in reply.text


def test_alone_and_in_a_batch_are_the_same(llm: LLM) -> None:
    prompts = ["Once upon a time", "The three primary colours are", "def fibonacci(n):", "In 1969, the first"]
    alone = [llm.generate(prompt, GREEDY).text for prompt in prompts]
    assert [reply.text for reply in llm.generate(prompts, GREEDY)] == alone
    assert len(set(alone)) == 4


def test_a_stream_is_the_reply_in_pieces(llm: LLM) -> None:
    whole = llm.generate("List three fruits:", GREEDY)
    chunks = list(llm.stream("List three fruits:", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [t for chunk in chunks for t in chunk.token_ids] == whole.token_ids
    assert chunks[-1].completion and chunks[-1].completion.text == whole.text
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    whole = llm.generate("Count: one, two, three,", GREEDY).text
    word = whole.split()[2]
    cut = llm.generate("Count: one, two, three,", SamplingParams(temperature=0, max_tokens=48, stop=(word,)))
    assert cut.text == whole[: whole.index(word)]
    assert cut.finish_reason == "stop" and cut.matched_stop == word


def test_closing_a_stream_frees_its_pages(llm: LLM) -> None:
    stream = llm.stream("Tell me a very long story.", SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
    next(stream)
    assert llm.engine.busy
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.busy


def test_distributions_are_close_to_llama_cpp(smollm2: Path) -> None:
    """Over the 64 best tokens of each position, the rest of the vocabulary counted as one: a lower bound of the KL."""
    want = np.load(FIXTURE)
    backend = open_backend("auto")
    logits = all_logits(backend, load(open_model([smollm2]), backend).decoder, want["ids"].tolist()).astype(np.float64)
    ours = logits - logits.max(axis=1, keepdims=True)
    ours -= np.log(np.exp(ours).sum(axis=1, keepdims=True))
    p, q = (np.exp(a.astype(np.float64)) for a in (want["logprobs"], np.take_along_axis(ours, want["tokens"], axis=1)))
    rest_p, rest_q = (np.maximum(1 - a.sum(axis=1), 1e-9) for a in (p, q))
    kl = (p * np.log(p / q)).sum(axis=1) + rest_p * np.log(rest_p / rest_q)
    assert kl.mean() <= 0.01
    assert (ours.argmax(axis=1) == want["tokens"][:, 0]).mean() >= 0.97

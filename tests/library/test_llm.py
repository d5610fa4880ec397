"""`LLM`: batches, streams, several answers, scores and embeddings."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tahr import LLM, EngineConfig, SamplingParams
from tahr.errors import ConfigError, GenerateError, TemplateError
from tahr.library import progress_bar as bars
from tahr.library.progress_bar import Bar

GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPTS = ["Once upon a time", "The dog", "One day, a little goat", "Lily and"]


@pytest.fixture(scope="module")
def llm(stories: Path) -> LLM:
    return LLM(str(stories), config=EngineConfig(n_threads=2))


def test_a_batch_is_each_alone(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    assert [c.text for c in together] == [llm.generate(prompt, GREEDY).text for prompt in PROMPTS]
    assert llm.generate([]) == []


def test_parameters_per_prompt(llm: LLM) -> None:
    lengths = [3, 5, 7, 9]
    params = [SamplingParams(temperature=0, max_tokens=n) for n in lengths]
    assert [len(c.token_ids) for c in llm.generate(PROMPTS, params)] == lengths
    with pytest.raises(ConfigError, match="4 prompts but 2"):
        llm.generate(PROMPTS, params[:2])
    assert not llm.engine.busy


def test_token_ids_are_a_prompt(llm: LLM) -> None:
    expected = [llm.generate(prompt, GREEDY).text for prompt in PROMPTS]
    tokens = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert llm.generate(tokens[0], GREEDY).text == expected[0]
    assert [c.text for c in llm.generate(tokens, GREEDY)] == expected
    assert "".join(chunk.text for chunk in llm.stream(tokens[0], GREEDY)) == expected[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate("x", {"max_tokens": 3}), r"params is .* SamplingParams\(max_tokens=3\)"),
        (lambda llm: llm.generate(["x"], [{"max_tokens": 3}]), "must be SamplingParams"),
        (lambda llm: llm.generate("x", "greedy"), "must be SamplingParams"),
        (lambda llm: llm.generate(3), "prompt is 3"),
        (lambda llm: llm.generate(b"x"), "prompt is b'x'"),
        (lambda llm: llm.generate(["x", 3]), "must be a text, a list of token ids"),
        (lambda llm: llm.generate([[]]), "must be a text, a list of token ids"),
        (lambda llm: llm.stream(["x", "y"]), "must be one text"),
        (lambda llm: llm.chat(3), "must be a text or a list of messages"),
        (lambda llm: llm.chat({"role": "user", "content": "x"}), "must be a text or a list of messages"),
        (lambda llm: llm.chat([3]), "must be a text or a list of messages"),
        (lambda llm: llm.embed(None), "There is nothing to embed: give texts, images, or both"),
        (lambda llm: llm.embed([5]), "must be a text, or a list"),
        (lambda llm: llm.embed("x", dimensions="4"), "dimensions is '4'"),
        (lambda llm: llm.embed("x", truncate="4"), "truncated to '4' tokens"),
        (lambda llm: llm.score(None, "x"), "with None, but prompt and continuation are texts"),
        (lambda llm: llm.score("x", 5), "text is 5"),
        (lambda llm: LLM("nowhere.gguf", kv_dtype=5), "kv_dtype is 5, but it must be a text"),
        (lambda llm: LLM("nowhere.gguf", prefix_cache="no"), "prefix_cache is 'no', but it must be True or False"),
        (lambda llm: LLM("nowhere.gguf", loras=5), "loras is 5, but it must be a list of texts"),
        (lambda llm: LLM("nowhere.gguf", loras=[("a", "b")]), "names no adapter: write NAME=PATH"),
        (lambda llm: LLM("nowhere.gguf", loras=[Path("a")]), "'a' names no adapter"),
        (lambda llm: LLM("nowhere.gguf", loras="a"), "'a' names no adapter"),
        (lambda llm: LLM(b"nowhere.gguf"), "model is b'nowhere.gguf', but it must be a name or a path"),
        (lambda llm: LLM("nowhere.gguf", context=5), "no setting 'context': did you mean context_size?"),
        (lambda llm: LLM("nowhere.gguf", config=EngineConfig(), context_size=5), "put all of it into EngineConfig"),
        (lambda llm: LLM("nowhere.gguf", config={"context_size": 5}), "must be an EngineConfig"),
    ],
)
def test_mistakes_get_sentences(llm: LLM, call: Callable[[LLM], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(llm)
    assert not llm.engine.busy


def test_settings_may_be_given_by_name(stories: Path) -> None:
    assert LLM(stories, context_size=64, n_threads=1).context_size == 64


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_and_text_are_the_decoded_tokens(llm: LLM, prompt: str) -> None:
    """Nothing is lost where the prompt ends: not even the space before the next word."""
    tokens, reply = llm.tokenizer.encode(prompt), llm.generate(prompt, GREEDY)
    assert prompt + reply.text == llm.tokenizer.decode(tokens + reply.token_ids)


def test_a_stream_joins_to_the_reply(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], GREEDY)
    chunks = list(llm.stream(PROMPTS[0], GREEDY))
    assert "".join(c.text for c in chunks) == whole.text
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    assert [c.finish_reason for c in chunks] == [None] * 19 + ["length"]
    last = chunks[-1].completion
    assert last
    assert last.text == whole.text


def test_streams_can_be_interleaved(llm: LLM) -> None:
    expected = [llm.generate(prompt, GREEDY).text for prompt in PROMPTS[:2]]
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    texts = ["", ""]
    for pair in zip(*streams, strict=True):
        texts = [text + chunk.text for text, chunk in zip(texts, pair, strict=True)]
    assert texts == expected


def test_closing_a_stream_frees_its_memory(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    assert llm.stats().pages_used > 0
    stream.close()
    assert llm.stats().pages_used == 0
    assert not llm.engine.busy


def test_a_stream_that_is_left_before_its_first_chunk_stops(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=400, ignore_eos=True))
    assert llm.engine.busy
    stream.close()
    assert not llm.engine.busy
    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=400, ignore_eos=True))
    del stream
    assert not llm.engine.busy


def test_closing_ends_streams(stories: Path) -> None:
    with LLM(str(stories), config=EngineConfig(n_threads=2)) as llm:
        stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=400, ignore_eos=True))
        next(stream)
    rest = list(stream)
    assert [chunk.finish_reason for chunk in rest] == ["cancelled"]


@pytest.mark.parametrize("where", ["scheduler.schedule", "steps.launch", "stats.count_step", "_accept_tokens"])
def test_an_interrupt_in_one_thread_leaves_no_other_waiting(llm: LLM, where: str) -> None:
    """It reaches the thread whose step it was: what that step brought to others is lost, and they must know."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    *owners, name = where.split(".")
    owner = getattr(llm.engine, owners[0]) if owners else llm.engine
    others = [llm.submit([1, 2, 3], SamplingParams(max_tokens=n, n=n)) for n in (1, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner if hasattr(owner, "__dict__") else type(owner), name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[0], GREEDY)
    for other in others:
        assert other.finished
        with pytest.raises(GenerateError, match="KeyboardInterrupt"):
            other.completion()
        llm.remove(other)
    assert not llm.engine.busy and llm.stats().pages_used == 0
    assert llm.generate(PROMPTS[0], GREEDY).n_prompt_tokens > 0


def test_several_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=2.0, n=3, seed=5, max_tokens=12)
    reply = llm.generate(PROMPTS[0], params)
    answers = [reply, *reply.others]
    assert len(answers) == 3
    assert len({a.text for a in answers}) > 1
    chunks = list(llm.stream(PROMPTS[0], params))
    for index, answer in enumerate(answers):
        own = [c for c in chunks if c.index == index]
        assert "".join(c.text for c in own) == answer.text
        assert own[-1].finish_reason == answer.finish_reason
    alone = llm.generate(PROMPTS[0], SamplingParams(temperature=2.0, seed=5, max_tokens=12))
    assert alone.text == reply.text


def test_a_bad_request_in_a_batch_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="context"):
        llm.generate(["fine", "too long " * 500], GREEDY)
    assert not llm.engine.busy
    assert llm.stats().pages_used == 0


def test_a_step_that_fails_fails_all_answers(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    request = llm.submit([5, 6, 7], SamplingParams(n=3))
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.steps, "launch", broken)
        llm.step()
    assert request.finished
    with pytest.raises(GenerateError, match="no room"):
        request.completion()
    llm.remove(request)
    assert llm.stats().pages_used == 0


# ---- numbers ----------------------------------------------------------------------------------------------------


def test_logprobs(llm: LLM) -> None:
    reply = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=0))
    assert [p.token for p in reply.logprobs] == reply.token_ids
    assert all(p.top_logprobs[0] == (p.token, p.logprob) for p in reply.logprobs)  # greedy takes the likeliest
    assert len(reply.prompt_logprobs) == reply.n_prompt_tokens - 1


def test_scores_are_sums_of_logprobs(llm: LLM) -> None:
    reply = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=6, logprobs=0))
    score = llm.score(PROMPTS[0], reply.text)
    assert score.token_ids == reply.token_ids
    expected = [p.logprob for p in reply.logprobs]
    np.testing.assert_allclose(score.logprobs, expected, atol=1e-3)
    assert score.logprob_sum == pytest.approx(sum(score.logprobs))


def test_scores_tell_likely_from_unlikely(llm: LLM) -> None:
    time, moon = llm.score("Once upon a", [" time", " moon"])
    assert time.logprob_sum > -0.1 > -5 > moon.logprob_sum
    assert [llm.score("Once upon a", c).logprobs for c in (" time", " moon")] == [time.logprobs, moon.logprobs]


def test_a_text_by_itself(llm: LLM) -> None:
    score = llm.score("", "Once upon a time")
    assert score.token_ids == llm.tokenizer.encode("Once upon a time")[1:]
    with pytest.raises(ConfigError, match="nothing to score"):
        llm.score("Once", "")


def test_embed(llm: LLM) -> None:
    both = llm.embed(PROMPTS[:2], "mean")
    assert both.shape == (2, 64)
    np.testing.assert_array_equal(llm.embed(PROMPTS[1], "mean"), both[1])
    np.testing.assert_allclose(np.linalg.norm(both, axis=1), 1, atol=1e-6)


# ---- the rest ---------------------------------------------------------------------------------------------------


def test_refusals(llm: LLM) -> None:
    with pytest.raises(TemplateError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(llm)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "EVERY_S", 0)
    terminal, pipe = Terminal(), io.StringIO()
    for out, wanted in ((terminal, True), (pipe, True), (Terminal(), False)):
        bar = Bar(4, wanted, out)
        bar.update(lambda: (2, 100))
        bar.close()
    assert "2/4 replies" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")  # wiped
    assert pipe.getvalue() == ""


def test_the_bar_is_not_for_single_prompts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(bars, "EVERY_S", 0)
    monkeypatch.setattr("sys.stderr", terminal)
    llm.generate(PROMPTS[0], GREEDY)
    llm.generate(PROMPTS, GREEDY, progress=False)
    assert terminal.getvalue() == ""
    llm.generate(PROMPTS, GREEDY)
    assert "/4 replies" in terminal.getvalue()


class Gone(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


class Closed(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.close()


@pytest.mark.parametrize("make", [lambda: None, Gone, Closed])
def test_a_batch_does_not_need_a_terminal(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, make: Callable[[], object]
) -> None:
    """Services have no stderr, and a terminal may be closed while a batch runs: its replies matter more than a bar."""
    monkeypatch.setattr(bars, "EVERY_S", 0)
    monkeypatch.setattr("sys.stderr", make())
    assert len(llm.generate(PROMPTS, GREEDY)) == len(PROMPTS)

"""`tahr serve` with real models: OpenAI's own client, the same text as the library, signals."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serve_process import ServeProcess, served
from tahr import LLM, EngineConfig, SamplingParams
from tahr.cli.main import Parser, main
from tahr.cli.verbs import serve

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def story(stories: Path) -> Iterator[ServeProcess]:
    with served("--model", f"story={stories}", "--served-model-name", "tale") as made:
        yield made


@pytest.fixture(scope="module")
def library(stories: Path) -> Iterator[LLM]:
    with LLM(str(stories), config=EngineConfig(n_threads=2)) as llm:
        yield llm


def sdk(server: ServeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0, timeout=60)


# ---- the same text as the library ---------------------------------------------------------------------------


def test_http_says_what_the_library_says(story: ServeProcess, library: LLM) -> None:
    wanted = library.generate(PROMPT, SamplingParams(temperature=0, max_tokens=24, logprobs=2))
    client = sdk(story)
    whole = client.completions.create(model="story", prompt=PROMPT, logprobs=2, **GREEDY)  # type: ignore[call-overload]
    assert whole.choices[0].text == wanted.text and whole.choices[0].finish_reason == "length"
    assert whole.usage.prompt_tokens == wanted.n_prompt_tokens and whole.usage.completion_tokens == 24
    assert whole.choices[0].logprobs.token_logprobs == [pytest.approx(p.logprob) for p in wanted.logprobs]
    stream = client.completions.create(model="tale", prompt=PROMPT, stream=True, **GREEDY)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in stream) == wanted.text
    tokens = library.tokenizer.encode(PROMPT)
    by_tokens = client.completions.create(model="story", prompt=tokens, **GREEDY)  # type: ignore[call-overload]
    assert by_tokens.choices[0].text == wanted.text


def test_many_at_once_say_the_same_as_alone(story: ServeProcess, library: LLM) -> None:
    prompts = [f"{PROMPT}, {name}" for name in ("Tim", "Lily", "a cat", "the sun", "Ben", "a bird", "Mom", "Max")] * 2
    wanted = [each.text for each in library.generate(prompts, SamplingParams(temperature=0, max_tokens=24))]

    async def one(client: openai.AsyncOpenAI, i: int) -> str:
        if i % 2:
            made = await client.completions.create(model="story", prompt=prompts[i], **GREEDY)  # type: ignore[call-overload]
            return str(made.choices[0].text)
        stream = await client.completions.create(model="story", prompt=prompts[i], stream=True, **GREEDY)  # type: ignore[call-overload]
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=story.address + "/v1", api_key="x", timeout=60) as client:
            return await asyncio.gather(*(one(client, i) for i in range(len(prompts))))

    assert asyncio.run(main()) == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0}, {"seed": 3, "temperature": 1.0, "n": 3, "logprobs": 2}, {"stop": [" the", "."], "seed": 1},
        {"seed": 4, "n": 2, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "dry_multiplier": 0.8, "logprobs": 0},
        {"seed": 5, "mirostat": 2}, {"seed": 6, "xtc_probability": 0.5, "top_n_sigma": 2, "typical_p": 0.9},
        {"seed": 8, "logit_bias": {"261": 5}, "min_tokens": 20, "stop_token_ids": [261]},
        {"seed": 9, "echo": True, "logprobs": 1},
        {"seed": 10, "prompt": ["The dog", "A cat", "The sun"], "n": 2, "logprobs": 1}, {"seed": 2, "ignore_eos": True},
    ],
)  # fmt: skip
def test_a_stream_is_the_whole_answer_in_pieces(story: ServeProcess, options: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, **options}
    whole = httpx.post(story.address + "/v1/completions", json=body, timeout=60).json()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    lines = httpx.post(story.address + "/v1/completions", json=streamed, timeout=60).text.splitlines()
    *parts, last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for wanted in whole["choices"]:
        mine = [choice for part in parts for choice in part["choices"] if choice["index"] == wanted["index"]]
        assert "".join(choice["text"] for choice in mine) == wanted["text"]
        assert mine[-1]["finish_reason"] == wanted["finish_reason"]
        for name, values in (wanted["logprobs"] or {}).items():
            assert [v for choice in mine if choice["logprobs"] for v in choice["logprobs"][name]] == values


@pytest.mark.parametrize("ends", [{"stop": ["Once", " "]}, {"logit_bias": {"2": 100}}])
def test_a_prompt_alone_ends_for_no_token_that_nobody_asked_for(story: ServeProcess, ends: dict[str, Any]) -> None:
    body = {"prompt": "Once upon", "temperature": 0, **ends}
    whole = httpx.post(story.address + "/v1/completions", json={**body, "max_tokens": 0}, timeout=60).json()
    assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 0
    native = {**body, "n_predict": 0, "return_tokens": True}
    for made in (
        httpx.post(story.address + "/completion", json=native, timeout=60).text,
        httpx.post(story.address + "/completion", json={**native, "stream": True}, timeout=60).text[6:],
    ):
        found = json.loads(made)
        assert (found["content"], found["tokens"], found["tokens_predicted"]) == ("", [], 0)
        assert (found["stop_type"], found["stopping_word"]) == ("limit", "")


@pytest.mark.parametrize(("interval", "least", "most"), [("0", 8, 101), ("30", 2, 5)])
def test_a_stream_has_events_as_often_as_was_asked_for(stories: Path, interval: str, least: int, most: int) -> None:
    body = {"prompt": PROMPT, "max_tokens": 100, "temperature": 0, "ignore_eos": True, "stream": True}
    with served(str(stories), "--stream-interval", interval) as server:
        answer = httpx.post(server.address + "/v1/completions", json=body, timeout=20).text
    assert answer.endswith("data: [DONE]\n\n")
    assert least <= answer.count("data: {") <= most  # with a pause: the first ones, all others, the reason of the end


@pytest.mark.parametrize("seed", [7, -(2**63)])  # OpenAI's range
def test_seeds_and_several_answers(story: ServeProcess, seed: int) -> None:
    def ask() -> list[str]:
        options = {"n": 3, "seed": seed, "temperature": 2.0, "max_tokens": 16}
        made = sdk(story).completions.create(model="story", prompt=PROMPT, **options)
        return [choice.text for choice in made.choices]

    first = ask()
    assert len(set(first)) > 1 and ask() == first


def test_embeddings_and_models(story: ServeProcess, library: LLM) -> None:
    client = sdk(story)
    wanted = library.embed(["a cat", "a dog"])
    made = client.embeddings.create(model="story", input=["a cat", "a dog"])  # the SDK asks for base64
    assert [each.embedding for each in made.data] == [pytest.approx(row.tolist(), abs=1e-6) for row in wanted]
    assert [model.id for model in client.models.list()] == ["tale", "story"]
    assert client.models.retrieve("tale").id == "tale"


def test_errors_are_the_sdks_own_classes(story: ServeProcess) -> None:
    client = sdk(story)
    with pytest.raises(openai.NotFoundError, match="tale, story"):
        client.completions.create(model="absent", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="story", prompt="x", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="template"):
        client.chat.completions.create(model="story", messages=[{"role": "user", "content": "hi"}])


def running(address: str) -> float:
    text = httpx.get(address + "/metrics").text
    found = re.search(r'^tahr_requests_running\{model_name="\w+"\} (\S+)$', text, re.M)
    assert found
    return float(found[1])


@pytest.mark.serial
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_sequence(story: ServeProcess, stream: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "n": 8, "temperature": 1, "stream": stream}
    before = re.findall(r'finished_reason="client_gone"\} (\d+)', httpx.get(story.address + "/metrics").text)
    try:
        with httpx.stream(
            "POST", story.address + "/v1/completions", json=body, timeout=0.1 if not stream else 20
        ) as it:
            next(it.iter_bytes())
    except httpx.ReadTimeout:
        pass
    end = time.monotonic() + 1
    while running(story.address):
        assert time.monotonic() < end, "the request still runs a second after its client has left"
        time.sleep(0.02)
    after = re.findall(r'finished_reason="client_gone"\} (\d+)', httpx.get(story.address + "/metrics").text)
    assert int(after[0]) == int((before or ["0"])[0]) + 8


# ---- a chat model -------------------------------------------------------------------------------------------


KILLED = """
import sys, httpx
body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
with httpx.stream("POST", sys.argv[1] + "/v1/completions", json=body) as stream:
    for line in stream.iter_lines():
        print(line, flush=True)
"""


@pytest.mark.serial
def test_a_client_that_is_killed_frees_its_sequence_and_harms_nobody(story: ServeProcess) -> None:
    def expected() -> str:
        made = httpx.post(f"{story.address}/v1/completions", json={"prompt": PROMPT, **GREEDY}).json()
        return str(made["choices"][0]["text"])

    before = expected()
    client = subprocess.Popen([sys.executable, "-c", KILLED, story.address], stdout=subprocess.PIPE)
    assert client.stdout and client.stdout.readline().startswith(b"data:")
    client.send_signal(signal.SIGKILL)
    assert expected() == before
    client.wait()
    end = time.monotonic() + 2
    while httpx.get(f"{story.address}/health").json()["admission"]["active_requests"]:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_chat_with_openais_client(smollm2: Path) -> None:
    with served("--model", f"smol={smollm2}") as server:
        client = sdk(server)
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        whole = client.chat.completions.create(model="smol", messages=messages, **GREEDY)  # type: ignore[call-overload]
        text = whole.choices[0].message.content
        assert text and whole.choices[0].message.role == "assistant"
        stream = client.chat.completions.create(  # type: ignore[call-overload]
            model="smol", messages=messages, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
        logprobs = client.chat.completions.create(  # type: ignore[call-overload]
            model="smol", messages=messages, logprobs=True, top_logprobs=3, **GREEDY
        )
        content = logprobs.choices[0].logprobs.content
        assert "".join(bytes(each.bytes).decode() for each in content) == text
        assert all(len(each.top_logprobs) == 3 and each.top_logprobs[0].token == each.token for each in content)


# ---- signals ------------------------------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_server_at_once(stories: Path, number: int) -> None:
    with served("--model", f"story={stories}") as server:
        assert httpx.get(server.address + "/health").status_code == 200
        server.signal(number)
        assert server.wait(5) == 128 + number
        assert "leak" not in "".join(server.lines)


def test_running_requests_are_drained_then_end(stories: Path) -> None:
    with served("--model", f"story={stories}", "--drain-timeout", "0.3", "--no-request-log") as server:
        body = {"prompt": PROMPT, "max_tokens": 490, "ignore_eos": True, "n": 16, "temperature": 1, "stream": True}
        with httpx.stream("POST", server.address + "/v1/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            events = [line[6:] for line in lines if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
        assert ends == dict.fromkeys(range(16), "abort")
        assert server.wait() == 143


def test_a_drain_over_http_ends_the_process(stories: Path) -> None:
    with served("--model", f"story={stories}") as server:
        assert httpx.post(server.address + "/drain").json()["drain_timeout_s"] == 30
        assert server.wait() == 0


@pytest.mark.serial
def test_a_client_that_does_not_read_is_left_within_the_drain(stories: Path) -> None:
    with served("--model", f"story={stories}", "--drain-timeout", "3", "--no-request-log") as server:
        body = json.dumps({"input": ["cat"] * 2000, "model": "story"}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        host, port = server.address.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall((head.encode() + body) * 6)  # more than what the system takes of the responses
            time.sleep(4)
            server.signal(signal.SIGTERM)
            began = time.monotonic()
            assert server.wait() == 143
        assert time.monotonic() - began < 4.5, "with 2 s more for connections it took more than 5"


@pytest.mark.serial
def test_a_second_signal_does_not_wait(stories: Path) -> None:
    with served("--model", f"story={stories}", "--drain-timeout", "60") as server:
        body = {"prompt": PROMPT, "max_tokens": 490, "ignore_eos": True, "n": 64, "temperature": 1, "stream": True}
        with httpx.stream("POST", server.address + "/v1/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGINT)
            time.sleep(0.3)
            assert server.process.poll() is None
            server.signal(signal.SIGINT)
            assert server.wait(5) == 130


# ---- options ------------------------------------------------------------------------------------------------


def test_a_key_from_the_environment(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(*argv: str) -> object:
        parser = Parser()
        serve.add_arguments(parser)
        return serve.settings_of(parser.parse_args(argv))

    monkeypatch.setenv("TAHR_API_KEY", "from-env")
    made = settings("--api-key", "one", "--api-key", "two", "--addr", "[::1]:9", "--temperature", "0.1")
    assert made.api_keys == ("one", "two", "from-env")  # type: ignore[attr-defined]
    assert (made.host, made.port, made.sampling.temperature) == ("::1", 9, 0.1)  # type: ignore[attr-defined]
    monkeypatch.delenv("TAHR_API_KEY")
    assert settings().api_keys == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options, code, words",
    [
        (["x.gguf", "--model", "y.gguf"], 3, "--model"),
        (["--model", "a=x.gguf", "--model", "a=y.gguf"], 3, "Two models"),
        (["--model", "=x.gguf"], 3, "NAME=MODEL"),
        (["x.gguf", "--addr", "nowhere"], 3, "HOST:PORT"),
        (["x.gguf", "--addr", "a:1", "--host", "b"], 3, "--addr"),
        (["x.gguf", "--rate-limit", "0"], 3, "rate_limit"),
        (["--model", "\udcff=x.gguf"], 3, "not UTF-8"),
        (["/no/such/\udcff.gguf"], 3, "not UTF-8"),
        (["x.gguf", "--temperature", "-1"], 3, "temperature"),
        (["x.gguf", "--host", "no.such.host.invalid"], 5, "choose another --host"),
        (["x.gguf", "--host", "192.0.2.1"], 5, "choose another --host"),  # an address of no machine
        (["x.gguf", "--served-model-name", ""], 3, "A name of a model is empty"),
        (["/no/such/model.gguf"], 2, "model"),
    ],
)
def test_bad_options_are_a_sentence_and_an_exit_code(
    options: list[str], code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    port = [] if "--addr" in options else ["--port", "0"]
    assert main(["serve", *port, *options]) == code
    error = capfd.readouterr().err
    assert words in error and "Traceback" not in error


def test_a_budget_for_nothing_is_to_be_raised(stories: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", str(stories), "--models-budget", "3"]) == 3
    assert "raise --models-budget" in capfd.readouterr().err


@pytest.mark.parametrize(("key", "warns"), [((), True), (("--api-key", "k"), False)])
def test_an_open_server_warns(key: tuple[str, ...], warns: bool, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "/no/such/model.gguf", "--host", "0.0.0.0", *key]) == 2
    error = capfd.readouterr().err
    assert ("warning: everyone who can reach 0.0.0.0" in error, "warning" in error) == (warns, warns)

"""`tahr run --server`: the same commands and the same output, with a model that a server has loaded."""

import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest

from scripted_engine import serving
from scripted_model import Message, ScriptedModel, call, text_of
from tahr.cli.chat.remote import fields_of
from tahr.cli.main import main
from tahr.config import SamplingParams
from tahr.grammar import Grammar
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import ServedModel
from tahr.server.state.settings import Settings

WEATHER = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def play(messages: list[Message], tools: list[dict[str, Any]]) -> str:
    last = messages[-1]
    if tools and last["role"] == "user":
        return call("get_weather", city="Rome")
    if "THINK" in text_of(last):
        return "<think>\nLet me see.\n</think>\n\nDone."
    return f"{len(messages)} messages, the last: {text_of(last)}"


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    return ScriptedModel(play, context_size=2000)


@pytest.fixture(scope="module")
def server(model: ScriptedModel) -> Iterator[HttpServer]:
    with serving(model, settings=Settings(port=0, log_interval_s=0, api_keys=("secret",))) as running:
        yield running


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAHR_API_KEY", "secret")


def test_one_prompt(server: HttpServer, model: ScriptedModel, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "0.3", "-n", "50", "--seed", "7", "--stop", "###", "-sys", "Be kind."]
    assert main(["run", "--server", server.address, "-p", "Hello", *options]) == 0
    out, err = capfd.readouterr()
    assert out == "2 messages, the last: Hello\n"
    assert f"scripted on {server.address}, context 2000 tokens" in err and "temperature 0.3" in err
    assert "reply 28 tokens" in err
    params = model.seen[-1].params
    assert (params.temperature, params.max_tokens, params.seed, params.stop) == (0.3, 50, 7, ("###",))


def test_a_server_that_loads_is_waited_for(
    model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = Event()

    def load() -> list[ServedModel]:
        assert asked.wait(20)
        return [ServedModel(("scripted",), model)]

    def waits(s: float) -> None:
        asked.set()
        sleep(0.05)

    monkeypatch.setattr("tahr.cli.chat.remote.sleep", waits)
    with serving(load=load, settings=Settings(port=0, log_interval_s=0)) as server:
        address = server.address
        assert main(["run", "--server", address, "-p", "Hello"]) == 0
    out, err = capfd.readouterr()
    assert out == "1 messages, the last: Hello\n"
    assert err.count(f"The server at {address} is loading: waiting.") == 1


def test_what_is_not_asked_for_the_server_decides(server: HttpServer, model: ScriptedModel) -> None:
    assert main(["run", "scripted", "--server", server.address, "-p", "Hello"]) == 0
    assert model.seen[-1].params.temperature == 0.5 and model.seen[-1].params.seed is None


def test_a_chat(server: HttpServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    typed = "one\ntwo\n/set temperature 2\n/clear\nthree\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    assert main(["run", "--server", server.address, "--output-format", "jsonl"]) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert events[0] == {"event": "ready", "model": "scripted", "backend": server.address}
    assert [each["content"] for each in events if each["event"] == "assistant"] == [
        "1 messages, the last: one", "3 messages, the last: two", "1 messages, the last: three",
    ]  # fmt: skip
    assert events[2]["n_tokens"] == 26 and events[2]["finish_reason"] == "stop"


def test_thinking_goes_to_stderr(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--server", server.address, "--quiet", "-p", "THINK"]) == 0
    out, err = capfd.readouterr()
    assert out == "Done.\n" and "Let me see." in err


def test_tools(server: HttpServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(WEATHER))
    assert main(["run", "--server", server.address, "--tools", str(tmp_path / "tools.json"), "-p", "Warm?"]) == 0
    assert capfd.readouterr().out == 'get_weather(city="Rome")\n'


def test_raw_text_goes_to_completions(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--server", server.address, "--raw", "-p", "Once"]) == 0
    assert capfd.readouterr().out == "ready\n"


GRAMMARS = {
    "regex": (Grammar("regex", "a+"), {"guided_regex": "a+"}),
    "choice": (Grammar("choice", ["a", "b"]), {"guided_choice": ["a", "b"]}),
    "schema": (Grammar("json_schema", '{"type": "null"}'), {"guided_json": {"type": "null"}}),
    "object": (Grammar("json_object"), {"response_format": {"type": "json_object"}}),
    "gbnf": (Grammar("gbnf", 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
    "lark": (Grammar("lark", 'start: "a"'), {"guided_grammar": 'start: "a"'}),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_are_fields_of_the_request(name: str) -> None:
    grammar, fields = GRAMMARS[name]
    assert fields_of(SamplingParams(grammar=grammar)) == fields


def test_a_conversation_that_grows_too_long_drops_old_turns(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed = "".join(f"{'x' * 600} {i}\n" for i in range(4))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    assert main(["run", "--server", server.address, "--output-format", "jsonl", "-n", "20"]) == 0
    out, err = capfd.readouterr()
    assert "dropped" in err and out.count('"finish_reason": "length"') == 4


WRONG = {
    "not an address": (["--server", "scripted", "-p", "x"], 3, "is not an address"),
    "nobody there": (["--server", "http://127.0.0.1:1", "-p", "x"], 4, "No server answers at http://127.0.0.1:1"),
    "no such model": (["other", "--server", "HERE", "-p", "x"], 2, "has no model other: it has scripted"),
    "an engine's option": (["--server", "HERE", "-t", "2", "-p", "x"], 3, "give --threads to `tahr serve`"),
    "a context": (["--server", "HERE", "-c", "50%", "-p", "x"], 3, "give --ctx to `tahr serve`"),
    "an adapter": (["--server", "HERE", "--lora", "a=b", "-p", "x"], 3, "give --lora to `tahr serve`"),
    "no cache": (["--server", "HERE", "--no-prefix-cache", "-p", "x"], 3, "give --no-prefix-cache to `tahr serve`"),
    "a quantisation": (["--server", "HERE", "-q", "q8_0", "-p", "x"], 3, "give --quantization to `tahr serve`"),
    "a length": (["--server", "HERE", "-n", "100000", "-p", "x"], 3, "max_tokens"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told(server: HttpServer, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    argv, code, words = WRONG[case]
    assert main(["run", *(server.address if word == "HERE" else word for word in argv)]) == code
    out, err = capfd.readouterr()
    assert words in err and out == ""


def test_a_wrong_key(server: HttpServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAHR_API_KEY", "wrong")
    assert main(["run", "--server", server.address, "-p", "x"]) == 3
    assert ". TAHR_API_KEY is sent as the key" in capfd.readouterr().err
    assert main(["ps", "--server", server.address]) == 3
    assert "TAHR_SERVER_ADMIN_KEY, or else TAHR_API_KEY is sent as the key" in capfd.readouterr().err


def test_the_first_model_is_the_servers_first(capfd: pytest.CaptureFixture[str]) -> None:
    """That of requests without a name, not the first of the alphabet."""
    with serving(ScriptedModel(play, "zebra", 2000), ScriptedModel(play, "ant", 2000)) as running:
        assert main(["run", "--server", running.address, "-p", "x"]) == 0
        assert "zebra on" in capfd.readouterr().err
        assert main(["run", "Ant", "--server", running.address, "-p", "x"]) == 0, "in any case, as requests find it"
    assert "ant on" in capfd.readouterr().err


# What servers of other APIs, or damaged ones, answer: the list of models, then an event of a chat.
CARD = {"id": "m"}
FOREIGN: list[tuple[Any, Any]] = [
    ([], None),
    ({"data": 5}, None),
    ({"data": [{"name": "m"}]}, None),
    ({"data": [{"id": ["m"]}]}, None),
    ({"data": [CARD | {"context_size": "large"}]}, None),
    *(
        ({"data": [CARD]}, event)
        for event in (
            *(7, [], {"error": "no"}, {"choices": 3}, {"choices": [None]}, {"choices": [{"delta": {"content": [1]}}]}),
            {"choices": [{"delta": {"tool_calls": [{"id": 5, "index": 0}]}}]},
            {"choices": [{"delta": {}, "finish_reason": 5}]},
            {"usage": [1]},
        )
    ),
]


@pytest.mark.parametrize(("models", "event"), FOREIGN)
def test_a_server_of_another_kind(models: Any, event: Any, capfd: pytest.CaptureFixture[str]) -> None:
    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(json.dumps(models).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Foreign) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert main(["run", "--server", f"http://127.0.0.1:{server.server_port}", "-p", "Hello"]) != 0
        server.shutdown()
    err = capfd.readouterr().err
    assert "not a server of the OpenAI API" in err and "Traceback" not in err

"""`tahr batch`: results of every line once, however often a run ends and begins anew."""

import asyncio
import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tahr.server.app import App
from tahr.server.batches import runner
from test_cli import STORIES, command, environment, tahr

__all__ = ["tahr"]  # a fixture
ZEROTH = '{"id":"batch_req_0_0000000000000000"}\n'
Files = tuple[Path, Path, Path]  # of requests, replies and errors
MODEL = ("-m", f"stories={STORIES}")


def line(name: str, url: str = "/v1/completions", **body: Any) -> str:
    body = {"max_tokens": 8, "temperature": 0, **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}) + "\n"


def prompts(n: int, n_tokens: int = 8) -> list[str]:
    return [line(f"r{i}", prompt=f"Once upon a time {i}", max_tokens=n_tokens, ignore_eos=True) for i in range(n)]


def results(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(each) for each in path.read_text().splitlines()]
    named = {each["custom_id"]: each for each in found}
    assert len(named) == len(found), "a line has two results"
    return named


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl"


def test_replies_and_errors(tahr: Any, files: Files, tmp_path: Path) -> None:
    requests, replies, errors = files
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    chat = line("chat", "/v1/chat/completions", messages=[{"role": "user", "content": "Once"}])
    lines = [
        *prompts(3),
        "\n",
        chat,
        line("response", "/v1/responses", input="Once", max_output_tokens=4).replace('"max_tokens": 8, ', ""),
        line("r1", prompt="again"),
        line("other", model="nobody", prompt="x"),
        line("wrong", prompt="x", temperature="hot"),
        line("elsewhere", "/v1/models"),
        line("../../etc/passwd", prompt="x", stream=True),
        "no JSON\n",
        line("last", prompt="The end").rstrip("\n"),
    ]
    requests.write_text("".join(lines))
    done = tahr("batch", str(requests), str(replies), *MODEL, "--chat-template", str(template))
    assert done.returncode == 0 and "6 replies, 6 errors" in done.stderr and done.stdout == ""
    good = results(replies)
    assert set(good) == {"r0", "r1", "r2", "chat", "response", "last"}
    body = good["r0"]["response"]["body"]
    assert body["object"] == "text_completion" and body["usage"]["completion_tokens"] == 8
    assert good["r0"]["response"]["status_code"] == 200 and good["r0"]["error"] is None
    assert good["chat"]["response"]["body"]["object"] == "chat.completion"
    bad = [json.loads(each) for each in errors.read_text().splitlines()]
    faults = {each["custom_id"]: each["error"]["code"] for each in bad if each["error"]}
    assert faults == {
        "r1": "duplicate_custom_id",
        "elsewhere": "invalid_url",
        "../../etc/passwd": "stream_unsupported",
        None: "invalid_line",
    }
    statuses = {each["custom_id"]: each["response"]["status_code"] for each in bad if each["response"]}
    assert statuses == {"other": 404, "wrong": 400}
    for each in (*good.values(), *bad):
        assert set(each) == {"id", "custom_id", "response", "error"}


def test_replies_are_those_of_the_library(tahr: Any, files: Files) -> None:
    from tahr import LLM, SamplingParams

    requests, replies, _ = files
    requests.write_text("".join(prompts(20)))
    tahr("batch", str(requests), str(replies), *MODEL)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    told = LLM(str(STORIES)).generate([f"Once upon a time {i}" for i in range(20)], params)
    found = results(replies)
    assert [found[f"r{i}"]["response"]["body"]["choices"][0]["text"] for i in range(20)] == [r.text for r in told]


def test_a_line_that_finds_no_room_waits_for_it(tahr: Any, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would say so to its client, and when to come again."""
    refused: list[str] = []

    async def once_in_two(self: App, scope: Any, receive: Any, send: Any) -> None:
        refused.append(scope["path"])
        if len(refused) % 2:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"1")]})
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await answers(self, scope, receive, send)

    answers = App.__call__
    monkeypatch.setattr(App, "__call__", once_in_two)
    monkeypatch.setattr(runner, "RETRY_S", 0.01)
    files[0].write_text("".join(prompts(3)))
    assert tahr("batch", str(files[0]), str(files[1]), *MODEL).returncode == 0
    assert len(results(files[1])) == 3 and len(refused) == 6


def test_a_signal_ends_lines_that_wait_for_room(tahr: Any, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application answers a request that is cancelled like one that has to come again."""
    asked: list[str] = []

    async def unavailable(self: App, scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"1")]})
        await send({"type": "http.response.body", "body": b"{}"})

    monkeypatch.setattr(App, "__call__", unavailable)
    files[0].write_text("".join(prompts(3)))
    began = time.monotonic()
    assert tahr("batch", str(files[0]), str(files[1]), *MODEL).returncode == 130
    assert len(asked) == 3 and time.monotonic() - began < 30
    assert not files[1].read_text()


def test_what_is_done_is_not_done_again(tahr: Any, files: Files) -> None:
    requests, replies, errors = files
    requests.write_text("".join(prompts(6)) + "no JSON\n")
    assert tahr("batch", str(requests), str(replies), *MODEL).returncode == 0
    whole = replies.read_bytes().splitlines(keepends=True)
    kept = b"".join(whole[:2])
    replies.write_bytes(kept + whole[2][:40])  # the third was being written
    with requests.open("a") as more:
        more.write(line("new", prompt="new"))
    done = tahr("batch", str(requests), str(replies), *MODEL)
    assert "5 replies, 0 errors (3 were done before)" in done.stderr
    assert replies.read_bytes().startswith(kept) and len(errors.read_text().splitlines()) == 1
    assert set(results(replies)) == {*(f"r{i}" for i in range(6)), "new"}
    done = tahr("batch", str(requests), str(replies), "-m", "no-such-model")
    assert done.returncode == 0 and "Nothing is left to do: all 8 lines" in done.stderr


def test_results_of_other_requests_are_left_alone(tahr: Any, files: Files) -> None:
    requests, replies, _ = files
    requests.write_text("".join(prompts(2)))
    tahr("batch", str(requests), str(replies), *MODEL)
    before = replies.read_bytes()
    requests.write_text("".join(prompts(2, n_tokens=9)))
    done = tahr("batch", str(requests), str(replies), *MODEL)
    assert done.returncode == 3 and "Line 1 is not the one that these results were written for" in done.stderr
    assert replies.read_bytes() == before


@pytest.mark.parametrize("content", ["a diary", "a diary\n", '{"id": "chatcmpl-1"}\n', ZEROTH])
def test_files_of_others_are_left_alone(tahr: Any, files: Files, content: str) -> None:
    requests, replies, _ = files
    requests.write_text(prompts(1)[0])
    replies.write_text(content)
    done = tahr("batch", str(requests), str(replies), *MODEL)
    assert done.returncode == 3 and "has lines that no batch of Tahr wrote" in done.stderr
    assert replies.read_text() == content


def test_a_model_that_cannot_be_loaded(tahr: Any, files: Files) -> None:
    requests, replies, _ = files
    requests.write_text(prompts(1)[0])
    done = tahr("batch", str(requests), str(replies), *MODEL, "--ctx", "100000")
    assert done.returncode == 3
    assert "error: A context of 100000 tokens was asked for, but the model was trained for" in done.stderr


def test_three_files(tahr: Any, files: Files, tmp_path: Path) -> None:
    requests, replies, _ = files
    requests.write_text(prompts(1)[0])
    for names in ([requests], [replies, "--errors", replies], [replies, "--errors", requests]):
        done = tahr("batch", str(requests), *map(str, names), *MODEL)
        assert done.returncode == 3 and "are not three files" in done.stderr
    assert requests.read_text() == prompts(1)[0]
    assert tahr("batch", str(tmp_path), str(replies), *MODEL).returncode == 6
    assert tahr("batch", str(requests), str(tmp_path), *MODEL).returncode == 6
    assert tahr("batch", str(requests), "/dev/null", *MODEL).returncode == 3


def started(files: Files, tmp_path: Path) -> "subprocess.Popen[str]":
    """A run in a process of its own, which has written something."""
    args = command("batch", str(files[0]), str(files[1]), *MODEL)
    before = files[1].stat().st_size if files[1].exists() else 0
    process = subprocess.Popen(args, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not files[1].exists() or files[1].stat().st_size <= before:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.005)
    return process


def test_kills_lose_and_repeat_nothing(tahr: Any, files: Files, tmp_path: Path) -> None:
    requests, replies, _ = files
    requests.write_text("".join(prompts(400, n_tokens=40)))
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with started(files, tmp_path) as process:
            second = tahr("batch", str(requests), str(replies), *MODEL)
            assert second.returncode == 3 and "Another process is writing" in second.stderr
            process.send_signal(number)
            code = process.wait(30)
            assert process.stderr
            told = process.stderr.read()
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        assert number == signal.SIGKILL or f"{number.name}: the same command goes on from here." in told
    assert len(replies.read_bytes().splitlines()) < 400
    assert tahr("batch", str(requests), str(replies), *MODEL).returncode == 0
    assert set(results(replies)) == {f"r{i}" for i in range(400)}


def test_a_disk_that_is_full_ends_the_run(tahr: Any, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from tahr.server.batches.results import ResultFiles

    def full(self: ResultFiles, result: object) -> None:
        raise OSError(28, "No space left on device")

    requests, replies, _ = files
    requests.write_text("".join(prompts(50)))
    with monkeypatch.context() as patch:
        patch.setattr(ResultFiles, "write", full)
        done = tahr("batch", str(requests), str(replies), *MODEL)
    assert done.returncode == 6 and "No space left on device" in done.stderr
    assert tahr("batch", str(requests), str(replies), *MODEL).returncode == 0
    assert len(results(replies)) == 50

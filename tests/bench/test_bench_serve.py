"""`tahr bench-serve` against a server whose timing and faults are known."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.bench_serve import figures, statistics
from tahr.bench_serve.bench import Cell, check_errors, find_server
from tahr.bench_serve.client import Connections, parse_target
from tahr.bench_serve.drive import press
from tahr.bench_serve.loads import RandomMaker
from tahr.bench_serve.measured import FAULTS, Events, Load, Record, is_bulk, measure
from tahr.bench_serve.plan import BenchPlan, Level, parse_slo
from tahr.bench_serve.report import env_hash
from tahr.cli.main import main
from tahr.errors import ConfigError, ServerError
from tahr.server.state.settings import Settings

pytestmark = pytest.mark.serial

FIRST_S, GAP_S = 0.08, 0.02


@dataclass
class Stub:
    """Speaks HTTP by hand: `n_output` chunks, the first after FIRST_S, the others GAP_S apart."""

    fault: str = ""
    fault_from: int = 0  # the request that begins to misbehave
    n_output: int = 6
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    measures_energy: bool = False
    n_running: int = 0
    most_running: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length"))
        body = json.loads(await reader.readexactly(length) or b"{}")
        self.n_running += 1
        self.most_running = max(self.most_running, self.n_running)
        try:
            await self.route(head.split(" ")[1], body, writer)
        finally:
            self.n_running -= 1
            writer.close()

    async def route(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        whole = {
            "/v1/models": {"data": [{"id": "stub"}]},
            "/health": {"models": {"stub": {"backend": "paper"}}},
            "/tokenize": {"tokens": list(range(len(str(body.get("prompt", "")).split())))},
        }
        if path == "/metrics":
            return self.send(writer, "200 OK", self.metrics().encode())
        if path in whole:
            return self.send(writer, "200 OK", json.dumps(whole[path]).encode())
        self.bodies.append(body)
        fault = self.fault if len(self.bodies) > self.fault_from else ""
        if fault in ("http_500", "http_refused"):
            status = "500 Oops" if fault == "http_500" else "400 No"
            return self.send(writer, status, b'{"error": {"message": "no"}}')
        return await self.stream(body, writer, fault)

    def metrics(self) -> str:
        """Two joules for each prompt, three for its reply, in half a second: see `tahr.bench_serve.energy`."""
        n = len(self.bodies) * self.measures_energy
        joules = [f'tahr_energy_joules_total{{model_name="stub",phase="{name}"}} {each * n}'
                  for name, each in (("prefill", 2), ("decode", 3), ("idle", 9))]  # fmt: skip
        seconds = f'tahr_energy_measured_seconds_total{{model_name="stub"}} {0.5 * n}'
        return "\n".join(["# HELP", *joules, seconds, "nonsense{", ""])

    def send(self, writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async def stream(self, body: dict[str, Any], writer: asyncio.StreamWriter, fault: str) -> None:
        n_output = body["max_tokens"]
        events = [json.dumps({"choices": [{"text": f" w{i}"}], "usage": None}) for i in range(n_output)]
        n_counted = {"bad_output": n_output + 1, "zero_output_tokens": 0}.get(fault, n_output)
        prompt = body.get("prompt") or body["messages"][0]["content"].split()
        usage = {"prompt_tokens": len(prompt), "completion_tokens": n_counted}
        last = [json.dumps({"choices": [], "usage": usage}), "[DONE]"]
        if fault == "malformed_stream":
            events[1] = "{half"
        if fault == "panic":
            events[1:] = [json.dumps({"error": {"message": "broken"}})]
        if fault == "duplicate_done":
            last.append("[DONE]")
        if fault == "missing_done":
            last.pop()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk(writer, ": hello\n\n")
        await asyncio.sleep(60 if fault == "timeout" else FIRST_S)
        n_slow = 0 if fault == "stream_bulk_flush" else len(events) - 1
        for event in events[:n_slow]:
            chunk(writer, f"data: {event}\n\n")
            await asyncio.sleep(GAP_S)
        if fault == "stalled":
            await asyncio.sleep(60)
        if fault == "cut":
            return
        chunk(writer, "".join(f"data: {event}\n\n" for event in events[n_slow:] + last))
        writer.write(b"0\r\n\r\n")


def chunk(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())


@contextmanager
def running(stub: Stub) -> Iterator[Stub]:
    """The stub on a thread of its own."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(stub.answer, "127.0.0.1", 0))
    stub.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def bench(stub: Stub, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    base = ["bench-serve", "--base-url", stub.url, "--num-prompts", "12", "--warmup", "2", "--output-len", "6"]
    assert main([*base, "--input-len", "10", "--output", "json", *more]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def about(value: float, expected: float) -> None:
    """A busy machine may be late, but never early."""
    assert 0.9 * expected < value < 4 * expected


# ---- whole benches ------------------------------------------------------------------------------------------


def test_a_closed_loop_measures_what_the_stub_does(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub()) as stub:
        [report] = bench(stub, capsys, "--concurrency", "4")
    found = report["distributions"]
    whole_s = FIRST_S + 5 * GAP_S
    about(found["ttft_ms"]["p50"], 1e3 * FIRST_S)
    about(found["tpot_ms"]["p50"], 1e3 * GAP_S)
    about(found["itl_ms"]["p50"], 1e3 * GAP_S)
    about(found["e2el_ms"]["p50"], 1e3 * whole_s)
    about(4 * 6 / found["output_throughput"]["mean"], whole_s)
    assert stub.most_running == 4
    assert report["completed_per_run"] == [12] and report["errored_per_run"] == [0]
    assert not any(report["faults"].values())
    assert (report["model"], report["backend"], report["scenario"]) == ("stub", "paper", "closed_loop")
    assert (report["concurrency"], report["request_rate"]) == (4, None)
    assert "goodput" not in found


def test_random_prompts_have_exact_lengths_and_never_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub()) as stub:
        bench(stub, capsys, "--concurrency", "14", "--n-repeats", "2")
    prompts = [tuple(body["prompt"]) for body in stub.bodies]
    assert {len(prompt) for prompt in prompts} == {10}
    assert len(set(prompts)) == len(prompts) == 2 + 2 * 12


def test_a_shared_prefix_is_shared(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub()) as stub:
        [report] = bench(stub, capsys, "--dataset", "shared-prefix", "--prefix-len", "30")
    assert len({tuple(body["prompt"][:30]) for body in stub.bodies}) == 1
    assert len({tuple(body["prompt"][30:]) for body in stub.bodies}) == len(stub.bodies)
    assert (report["scenario"], report["n_prompt"], report["n_prefix"], report["n_gen"]) == ("shared_prefix", 40, 30, 6)


def test_a_file_of_conversations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "how are you today"}, {"from": "gpt", "value": "very well I thank you"}]
    backwards, short = turns[::-1], [{**turns[0], "value": "hi"}, turns[1]]
    path = tmp_path / "chats.json"
    silent = [turns[0], {**turns[1], "value": ""}]
    path.write_text(json.dumps([{"conversations": each} for each in (turns, backwards, short, silent, [])] + ["odd"]))
    base = ["bench-serve", "--num-prompts", "3", "--warmup", "1", "--output", "json"]
    with running(Stub()) as stub:
        assert main([*base, "--base-url", stub.url, "--dataset", "sharegpt", "--dataset-path", str(path)]) == 0
    assert {body["messages"][0]["content"] for body in stub.bodies} == {"how are you today"}
    assert {body["max_tokens"] for body in stub.bodies} == {5}
    assert json.loads(capsys.readouterr().out)[0]["n_prompt"] is None


def test_an_open_loop_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub()) as stub:
        [report] = bench(stub, capsys, "--request-rate", "40", "--goodput", "ttft:1000,tpot:1000,e2el:5000")
        [strict] = bench(stub, capsys, "--request-rate", "40", "--goodput", "ttft:1")
    assert stub.most_running > 3  # 40 per second, each takes 0.18 s
    assert (report["scenario"], report["request_rate"], report["concurrency"]) == ("open_loop", 40, None)
    found = report["distributions"]
    assert found["goodput"]["mean"] == pytest.approx(found["request_throughput"]["mean"])
    assert strict["distributions"]["goodput"]["mean"] == 0


def test_an_open_loop_ends_with_its_last_request() -> None:
    async def measure_none(_: Load) -> Record:
        return record(0, 1, 2, 3)

    found = press(Level(rate=1e-3), [Load("/x", {}, 1)], measure_none, "seed")
    assert len(asyncio.run(asyncio.wait_for(found, 5))) == 1


def test_a_sweep_and_its_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawn = tmp_path / "load.svg"
    with running(Stub()) as stub:
        made = bench(stub, capsys, "--concurrency-sweep", "2,6", "--picture", str(drawn))
    assert [report["concurrency"] for report in made] == [2, 6]
    assert made[1]["distributions"]["output_throughput"]["mean"] > made[0]["distributions"]["output_throughput"]["mean"]
    words = [each.text for each in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert "concurrency 6" in words and "time to first token, ms" in words


def test_repeats_give_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub()) as stub:
        [report] = bench(stub, capsys, "--n-repeats", "3", "--require-ci", "--concurrency", "12")
    assert report["distributions"]["ttft_ms"]["ci95"] >= 0
    assert len(report["completed_per_run"]) == 3


@pytest.mark.parametrize("form", ["md", "jsonl"])
def test_other_forms(form: str, tmp_path: Path) -> None:
    out = tmp_path / "report"
    with running(Stub()) as stub:
        base = ["bench-serve", "--base-url", stub.url, "--num-prompts", "2", "--warmup", "0", "--output-len", "2"]
        assert main([*base, "--concurrency-sweep", "1,2", "--output", form, "--out", str(out)]) == 0
    text = out.read_text()
    if form == "jsonl":
        assert [json.loads(line)["concurrency"] for line in text.splitlines()] == [1, 2]
    else:
        assert "## concurrency 2, 256 tokens in, 2 out" in text and "| time to first token, ms |" in text


# ---- faults -------------------------------------------------------------------------------------------------

STUB_FAULTS = sorted(set(FAULTS) - {"connection_failed", "timeout"})


@pytest.mark.parametrize("fault", STUB_FAULTS)
def test_faults_are_counted(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub(fault=fault, fault_from=9)) as stub:
        [report] = bench(stub, capsys, "--concurrency", "12", "--warmup", "0", "--output-len", "8")
    assert report["faults"][fault] == 3
    harmless = fault == "stream_bulk_flush"
    assert report["errored_per_run"] == [0 if harmless else 3]


def test_a_cut_connection_is_a_malformed_stream(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub(fault="cut", fault_from=11)) as stub:
        [report] = bench(stub, capsys, "--concurrency", "12", "--warmup", "0")
    assert {name: n for name, n in report["faults"].items() if n} == {"malformed_stream": 1}


async def measured(url: str, load: Load, timeout_s: float) -> Record:
    return await measure(Connections(parse_target(url)), load, timeout_s)


def test_a_request_that_takes_too_long() -> None:
    with running(Stub(fault="timeout")) as stub:
        load = Load("/v1/completions", {"prompt": [1], "max_tokens": 2}, 2, 1)
        record = asyncio.run(measured(stub.url, load, 0.2))
    assert record.faults == ["timeout"] and 0.19 < record.e2el_s < 2


def test_a_stream_that_stalls_lasts_until_it_is_given_up() -> None:
    with running(Stub(fault="stalled")) as stub:
        load = Load("/v1/completions", {"prompt": [1], "max_tokens": 2}, 2, 1)
        record = asyncio.run(measured(stub.url, load, 0.6))
    assert record.faults == ["timeout"] and record.text_at and record.e2el_s > 0.55


def test_nobody_there() -> None:
    record = asyncio.run(measured("http://127.0.0.1:1", Load("/x", {}, 1), 5))
    assert record.faults == ["connection_failed"]
    assert main(["bench-serve", "--base-url", "http://127.0.0.1:1"]) == 5


@pytest.mark.parametrize("fault", ["missing_done", "stream_bulk_flush"])
def test_any_fault_in_the_warm_up_ends_the_bench(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub(fault=fault)) as stub:
        assert main(["bench-serve", "--base-url", stub.url, "--warmup", "3", "--output-len", "9"]) == 5
    assert len(stub.bodies) == 3
    assert f"({fault} 3)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code"),
    [([], 0), (["--fail-on-error"], 5), (["--max-error-rate", "0.2"], 5), (["--max-error-rate", "0.25"], 0)],
)
def test_failing_is_asked_for(flags: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["bench-serve", "--num-prompts", "4", "--warmup", "0", "--output-len", "2", "--output", "json"]
    with running(Stub(fault="http_500", fault_from=3)) as stub:
        assert main([*base, "--base-url", stub.url, *flags]) == code
    assert json.loads(capsys.readouterr().out)[0]["errored_per_run"] == [1]  # the report comes either way


def test_a_share_of_failures_is_exact() -> None:
    runs = [figures.run_of([record(0, 1, 3, 5, ["panic"])] * 29 + [record(0, 1, 3, 5)] * 71, {})]
    cells = [Cell(Level(concurrency=1), runs)]
    check_errors(BenchPlan(max_error_rate=0.29), cells)
    with pytest.raises(ServerError, match="29 of 100"):
        check_errors(BenchPlan(max_error_rate=0.28), cells)


@pytest.mark.parametrize("option", ["--out", "--picture"])
def test_a_report_that_cannot_be_written_is_refused_first(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(Stub()) as stub:
        for path in (tmp_path, tmp_path / "missing" / "report"):
            assert main(["bench-serve", "--base-url", stub.url, option, str(path)]) == 3
            assert f"{option} {path} cannot be written" in capsys.readouterr().err
    assert not stub.bodies


def test_keys_and_hosts_as_servers_read_them() -> None:
    head = parse_target("http://[::1]:8080/v1", "Schlüssel-ключ").head("GET", "/health", 0)
    assert b"\r\nhost: [::1]:8080\r\n" in head
    assert "\r\nauthorization: Bearer Schlüssel-ключ\r\n".encode() in head
    key = "Schlüssel-ключ"
    with serving(ScriptedEngine(), settings=Settings(port=0, log_interval_s=0, api_keys=(key,))) as server:
        found = asyncio.run(find_server(parse_target(server.address, key), None))
    assert found.model == "scripted"


# ---- definitions --------------------------------------------------------------------------------------------


def record(sent: float, first: float, end: float, n_output: int, faults: list[str] | None = None) -> Record:
    return Record(sent, end, [first, end], 10, n_output, faults or [])


def test_definitions_on_made_up_records() -> None:
    one, two = record(0, 1, 3, 5), record(1, 3, 5, 1)
    bad = record(0, 1, 10, 7, ["missing_done"])
    assert (one.ttft_s, one.e2el_s, one.tpot_s, one.itl_s) == (1, 3, 0.5, [2])
    assert two.tpot_s is None
    run = figures.run_of([one, two, bad], {})
    assert (run.n_completed, run.n_errored, run.duration_s) == (2, 1, 10)
    assert run.rates == {"output_throughput": 0.6, "total_throughput": 2.6, "request_throughput": 0.2}
    assert run.times["tpot_ms"] == [500] and run.times["ttft_ms"] == [1000, 2000]
    assert figures.run_of([one, two], {"ttft": 1500}).rates["goodput"] == 1 / 5


def test_percentiles_and_intervals() -> None:
    assert statistics.percentiles([4, 1, 3, 2, 5]) == {"p50": 3, "p75": 4, "p95": pytest.approx(4.8), "p99": 4.96}
    assert statistics.half_width([1.0, 2.0]) is None
    assert statistics.half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert statistics.t95(30) == pytest.approx(2.0423, abs=1e-3)
    assert statistics.t95(40) == pytest.approx(2.0211, abs=1e-4)
    assert statistics.t95(1000) == pytest.approx(1.9623, abs=1e-4)


def test_no_completed_request_gives_no_times() -> None:
    run = figures.run_of([record(0, 1, 2, 3, ["panic"])], {})
    assert set(figures.distributions([run])) == {"output_throughput", "total_throughput", "request_throughput"}


def test_a_flush_is_faster_than_anyone_generates() -> None:
    assert is_bulk(100, 0.004) and not is_bulk(100, 0.1) and not is_bulk(7, 0.0)


def test_events_may_be_cut_anywhere() -> None:
    stream = b': note\n\ndata: {"a": 1}\r\n\r\ndata: x\ndata: y\n\ndata: [DONE]\n\n'
    for cut in range(len(stream)):
        events = Events()
        assert [*events.feed(stream[:cut]), *events.feed(stream[cut:])] == ['{"a": 1}', "x\ny", "[DONE]"]
        assert not events.unfinished


def test_the_same_seed_makes_the_same_requests() -> None:
    def made(seed: int, run: str) -> list[Load]:
        return RandomMaker(BenchPlan(seed=seed), "m", range(1000)).make(run, 3)

    assert made(1, "a") == made(1, "a") != made(2, "a")
    assert made(1, "a") != made(1, "b")


def test_the_hash_follows_the_facts_alone() -> None:
    assert env_hash({"a": 1, "b": {"c": 2, "d": "é"}}) == env_hash({"b": {"d": "é", "c": 2}, "a": 1})
    assert env_hash({"a": 1}) != env_hash({"a": 2})


def test_targets() -> None:
    assert parse_target("http://h:8000/v1").path == ""
    assert parse_target("https://h/api/v1/").path == "/api"
    assert parse_target("https://h").port == 443
    assert b"authorization: Bearer k" in parse_target("http://h", "k").head("GET", "/", 0)


@pytest.mark.parametrize(
    "flags",
    [
        ["--goodput", "ttft:5"],
        ["--request-rate", "1", "--goodput", "speed:5"],
        ["--request-rate", "1", "--goodput", "ttft:fast"],
        ["--request-rate", "0"],
        ["--concurrency", "0"],
        ["--concurrency", "2", "--request-rate", "2"],
        ["--concurrency-sweep", "1,many"],
        ["--require-ci", "--n-repeats", "2"],
        ["--dataset", "wiki"],
        ["--dataset", "sharegpt"],
        ["--dataset-path", "x.json"],
        ["--num-prompts", "0"],
        ["--max-error-rate", "2"],
        ["--base-url", "ftp://x"],
        ["--base-url", "http://x:port"],
    ],
)
def test_what_makes_no_sense_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-serve", *flags]) == 3
    assert capsys.readouterr().err.rstrip().endswith(".")


def test_slo() -> None:
    assert parse_slo("ttft:200, e2el:1.5") == {"ttft": 200, "e2el": 1.5}
    with pytest.raises(ConfigError):
        parse_slo("ttft:-1")
    with pytest.raises(ConfigError):
        BenchPlan(slo_ms={"ttft": 1}, levels=(Level(concurrency=1),))


def test_our_own_server_under_our_own_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """Exact counts, one [DONE] and usage from the real server."""
    with serving(ScriptedEngine()) as server:
        base = ["bench-serve", "--base-url", server.address, "--num-prompts", "20", "--output", "json"]
        assert main([*base, "--output-len", "5", "--input-len", "50", "--concurrency", "5", "--fail-on-error"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert report["prompt_tokens_per_run"] == [1000] and report["output_tokens_per_run"] == [100]


@pytest.mark.parametrize(("is_default", "sent"), [(False, {"temperature": 0}), (True, {})])
def test_sampling_is_greedy_unless_the_models_own_is_asked_for(is_default: bool, sent: dict[str, float]) -> None:
    [load] = RandomMaker(BenchPlan(default_sampling=is_default), "m", range(1000)).make("a", 1)
    assert {name: value for name, value in load.body.items() if name in ("temperature", "top_k", "top_p")} == sent


# ---- connections --------------------------------------------------------------------------------------------

STREAMED = [
    "HTTP/1.1 200 OK", "content-type: text/event-stream", "content-length: 110", "",
    'data: {"choices": [{"text": "hi"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}', "", "data: [DONE]",
    "", "",
]  # fmt: skip


@pytest.mark.parametrize(("n_each", "n_connections"), [(9, 1), (1, 3)])
def test_a_connection_is_used_until_the_server_closes_it(n_each: int, n_connections: int) -> None:
    """The server closes each connection when the request after its last one has come: nobody could have known."""
    opened: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            for i in range(n_each + 1):
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(load.data))
                if i < n_each:
                    writer.write("\r\n".join(STREAMED).encode())
        writer.close()

    async def test() -> list[Record]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        connections = Connections(parse_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        records = [await measure(connections, load, 5) for _ in range(3)]
        connections.close()
        server.close()
        await asyncio.gather(*opened)
        return records

    load = Load("/v1/completions", {"prompt": [1], "max_tokens": 1, "ignore_eos": True}, 1, 1)
    assert [record.faults for record in asyncio.run(test())] == [[], [], []]
    assert len(opened) == n_connections

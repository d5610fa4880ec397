"""The command line as a user meets it: what lands on stdout and stderr, exit codes; in processes where it counts."""

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import assets
from python_here import python_here
from tahr.cli.main import NAMES, VERBS, Parser, main
from tahr.cli.settings import options
from tahr.cli.settings.settings_layers import flags_in
from tahr.cli.verbs import run as run_verb
from tahr.config import EngineConfig
from tahr.errors import ConfigError, ModelNotFound

ROOT = Path(__file__).parents[2]
STORIES = assets.stories()
STORIES_SHA256 = hashlib.sha256(STORIES.read_bytes()).hexdigest()
RAW = ("run", str(STORIES), "--raw", "--temperature", "0")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """No network and an empty home: what a test needs, it names."""
    kept = {name: value for name, value in os.environ.items() if name != "TAHR_DEBUG"}
    sealed = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "TAHR_HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path)}
    return {**kept, **sealed, "PYTHONPATH": str(ROOT), **more}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "tahr", *args]


@pytest.fixture
def tahr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run `tahr` to its end, in this process: an interpreter of its own takes most of a second to start."""

    def call(*args: str, stdin: str | bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        piped = tmp_path / "stdin"
        piped.write_bytes(stdin.encode() if isinstance(stdin, str) else stdin or b"")
        with monkeypatch.context() as patch, (Path(os.devnull) if stdin is None else piped).open() as stream:
            patch.delenv("TAHR_DEBUG", raising=False)
            for name, value in environment(tmp_path, **env).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", stream)
            capfd.readouterr()  # what came before
            code = main(args)
        return subprocess.CompletedProcess(args, code, *capfd.readouterr())

    return call


@pytest.fixture
def process(tmp_path: Path) -> Any:
    """The same in a process of its own, with real pipes and an empty memory."""

    def call(*args: str, stdin: str | bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            command(*args),
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            env=environment(tmp_path, **env),
            timeout=120,
        )
        return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


def parse(*args: str) -> argparse.Namespace:
    parser = Parser(prog="tahr run", allow_abbrev=False)
    run_verb.add_arguments(parser)
    return parser.parse_intermixed_args(args)


# ---- verbs and help -----------------------------------------------------------------------------------------------


def test_version_is_light(process: Any) -> None:
    assert process("--version").stdout == process("version").stdout == "tahr 0.1.0\n"
    probe = (
        "import sys; from tahr.cli.main import main; main(['--version']); "
        "print({'numpy', 'jinja2', 'tokenizers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout.endswith("set()\n")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert "examples:" in overview and all(f"\n  {verb}" in overview for verb in VERBS)


@pytest.mark.parametrize("verb", sorted(NAMES))
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"usage: tahr {verb}" in capsys.readouterr().out


def test_an_unknown_verb_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 3
    assert "did you mean `run`" in capsys.readouterr().err


# ---- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spellings", "value"),
    [
        (("-n", "--max-tokens", "--n-predict", "--sample-len"), "7"),
        (("--temperature", "--temp"), "0.5"),
        (("-s", "--seed"), "3"),
        (("-t", "--threads"), "1"),
        (("-c", "--ctx", "--ctx-size", "--n-ctx"), "64"),
        (("--mirostat-ent", "--mirostat-tau"), "4"),
        (("--typical", "--typical-p"), "0.9"),
        (("--parallel", "-np", "--max-batch-size"), "4"),
    ],
)
def test_spellings_mean_the_same(spellings: tuple[str, ...], value: str) -> None:
    parsed = [parse(spelling, value) for spelling in spellings]
    results = [flags_in(args, run_verb.SECTIONS) for args in parsed]
    assert all(result == results[0] for result in results)
    assert len(results[0]) == 1 and flags_in(parse(), run_verb.SECTIONS) == {}


@pytest.mark.parametrize(("flags", "value"), [(flags, value) for value, flags in options.THINKING.items()])
def test_thinking_spellings(flags: tuple[str, ...], value: bool) -> None:
    assert [parse(flag).thinking for flag in flags] == [value] * 3


def test_options_may_stand_between_words() -> None:
    args = parse("some/model", "-n", "4", "hello", "--raw", "there")
    assert (args.model, args.message, args.max_tokens, args.raw) == ("some/model", ["hello", "there"], 4, True)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--top-p", "7"),
        ("--temperature", "hot"),
        ("--think", "--no-think"),
        ("--frobnicate",),
        ("--temperatur", "1"),
        ("a/b", "--model-id", "c/d"),
        ("-p", "-", "-f", "-"),
        ("a/b", "-m", "c/d"),
        ("-c", "0%", "-p", "x"),
        ("-c", "-5", "-p", "x"),
        ("-c", "8q", "-p", "x"),
        ("-ngl", "3", "-p", "x"),
        ("-ngl", "some", "-p", "x"),
        ("-ctk", "f16", "--kv-dtype", "q8_0/f16", "-p", "x"),
        ("--chat-template", "no/such/file", "--weight-path", str(STORIES), "-p", "x"),
        ("a/b", "one", "-p", "two"),
        ("--raw", "--system", "x", "-p", "y"),
        ("--bench-mode", "--quiet", "-p", "x"),
        ("--raw", "--no-think", "-p", "y"),
        ("-f", "no/such/file"),
        ("--stop", "", "-p", "x"),
        ("-t", "0", "-p", "x"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(
    wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *wrong]) == ConfigError.exit_code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines()[-1].startswith("error: ")


def test_weight_path_must_exist() -> None:
    with pytest.raises(ModelNotFound):
        options.model_name(parse("--weight-path", "no/such/place"))


# ---- exit codes ---------------------------------------------------------------------------------------------------


def test_exit_0_and_the_two_streams(process: Any) -> None:
    done = process(*RAW, "-p", "Once upon a time", "-n", "12")
    assert done.returncode == 0
    assert done.stdout.startswith(", there was") and done.stdout.count("\n") == 1
    model, sampling, summary = done.stderr.splitlines()
    assert STORIES.stem.split("-f32")[0] in model and "context" in model
    assert "temperature 0" in sampling and "max_tokens 12" in sampling
    assert "reply 12 tokens" in summary and "first token after" in summary


def test_exit_2_for_a_model_nobody_knows(process: Any) -> None:
    done = process("run", "nosuch:thing", "-p", "hi")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and "nosuch:thing" in done.stderr


def test_exit_2_for_a_prompt_in_the_model_s_place(process: Any) -> None:
    done = process("run", "Why is the sky blue?")
    assert done.returncode == 2 and "-p" in done.stderr


def test_exit_3_for_a_wrong_option(tahr: Any) -> None:
    done = tahr("run", "--top-p", "7", "-p", "hi")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: top_p is 7.0") and done.stderr.count("\n") == 1


def test_exit_4_when_a_model_cannot_do_what_is_asked(tahr: Any) -> None:
    done = tahr("run", str(STORIES), "-p", "hi", "--system", "You are a goat.")
    assert done.returncode == 4 and "no chat template" in done.stderr and "Traceback" not in done.stderr


def test_exit_6_for_a_damaged_file(tahr: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 60)
    done = tahr("run", str(path), "-p", "hi")
    assert done.returncode == 6 and "bad.gguf" in done.stderr and "Traceback" not in done.stderr
    assert "Traceback" in tahr("run", str(path), "-p", "hi", TAHR_DEBUG="1").stderr


def test_the_default_model_is_named_before_it_is_fetched(process: Any) -> None:
    done = process("run", "-p", "hi")  # no index to fetch it from
    assert done.stderr.splitlines()[0] == "No model was named: using smollm2:135m."
    assert done.returncode in (2, 6) and "Traceback" not in done.stderr


def test_exit_130_when_interrupted(tmp_path: Path) -> None:
    slow = (*RAW, "--backend", "reference", "--ignore-eos", "-n", "400", "-p", "Once upon a time")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(*slow), env=environment(tmp_path), **pipes) as process:
        assert process.stdout and process.stderr
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, error = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert first and rest.endswith(b"\n") and b"[stopped after" in error and b"Traceback" not in error


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    args = (*RAW, "--backend", "reference", "--ignore-eos", "-n", "200", "-p", "Once upon a time")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(*args), env=environment(tmp_path), **pipes) as process:
        assert process.stdout and process.stderr
        process.stdout.read(1)
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141
    assert b"Traceback" not in error and b"error" not in error


def test_an_unforeseen_error_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(args: argparse.Namespace) -> int:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("tahr.cli.verbs.version.run", broken)
    assert main(["version"]) == 1
    assert "ZeroDivisionError: oh" in capsys.readouterr().err


# ---- prompts ------------------------------------------------------------------------------------------------------


def events(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("8k", "engine.context_size", 8192),
        ("0", "engine.context_size", 0),
        ("50%", "engine.context_share", 0.5),
        ("1M", "engine.context_size", 1 << 20),
    ],
)
def test_sizes(text: str, path: str, value: float) -> None:
    assert flags_in(parse("-c", text), run_verb.SECTIONS)[path] == value


def test_words_of_llama_cpp() -> None:
    assert options.engine_flags(parse("-ngl", "0")) == {"engine.backend": "cpu"}
    assert options.engine_flags(parse("-ngl", "all")) == {"engine.backend": "cuda"}
    assert options.engine_flags(parse("-ctk", "q8_0", "-ctv", "int8")) == {"engine.kv_dtype": "q8_0"}
    assert options.engine_flags(parse("-ctk", "q8_0", "-ctv", "fp16")) == {"engine.kv_dtype": "q8_0/f16"}
    assert options.engine_flags(parse("-ctv", "q8_0")) == {"engine.kv_dtype": "/q8_0"}
    assert options.engine_flags(parse("-ctk", "f32", "--kv-dtype", "q8_0")) == {"engine.kv_dtype": "f32/q8_0"}
    assert options.model_name(parse("-hf", "org/name:Q8_0")) == "hf:org/name:Q8_0"
    assert options.model_name(parse("-m", "qwen3:0.6b")) == "qwen3:0.6b"


def test_threads_beyond_the_cores_are_cut_with_a_note() -> None:
    notes: list[str] = []
    config = options.within_cores(EngineConfig(n_threads=1000), notes.append)
    assert config.n_threads == len(os.sched_getaffinity(0)) and "1000 threads" in notes[0]
    assert options.within_cores(EngineConfig(n_threads=1), notes.append).n_threads == 1 and len(notes) == 1


def test_a_reply_as_long_as_the_context_and_a_share_of_it(tahr: Any) -> None:
    done = events(tahr(*RAW, "-n", "-1", "-c", "25%", "--ignore-eos", "-p", "Once", "--output-format", "jsonl"))
    assert done[2]["finish_reason"] == "length" and 120 < done[2]["n_tokens"] < 128  # of the 512 the model has


def test_bench_mode_prints_figures_in_place_of_the_reply(tahr: Any) -> None:
    done = tahr(*RAW, "-n", "3", "-p", "Once", "--bench-mode")
    assert done.returncode == 0 and "reply 3 tokens" in done.stdout and done.stdout.count("\n") == 1


def test_a_run_says_where_its_time_goes(tahr: Any, tmp_path: Path) -> None:
    steps, picture = tmp_path / "steps.jsonl", tmp_path / "picture.json"
    traces = ("--decision-trace-jsonl", str(steps), "--chrome-trace", str(picture))
    assert tahr(*RAW, "-n", "3", "-p", "Once", *traces).returncode == 0
    assert len(steps.read_text().splitlines()) >= 3 and json.loads(picture.read_text())
    assert "--chrome-trace and --profile" in tahr("run", "--server", "--profile", "--chrome-trace", "x").stderr
    ran = python_here("-m", "tahr", *RAW, "-n", "3", "-p", "Once", "--profile")
    assert "GB/s" in subprocess.run(ran, capture_output=True, text=True, check=True).stderr


def test_a_base_model_continues_the_text_and_says_so(tahr: Any) -> None:
    flags = ("run", str(STORIES), "--temperature", "0", "-p", "Once upon a time", "-n", "3")
    done = tahr(*flags)
    assert done.returncode == 0 and "base model" in done.stderr
    assert done.stdout == tahr(*flags, "--raw").stdout
    assert tahr(*flags, "--system", "x").returncode == 4


def test_quiet_says_nothing(tahr: Any) -> None:
    assert tahr(*RAW, "-n", "3", "-p", "Once", "--quiet").stderr == ""


def test_a_chat_template_from_a_file(tahr: Any, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }} upon a time")
    flags = ("run", str(STORIES), "--temperature", "0", "-n", "4", "--quiet")
    templated = tahr(*flags, "--chat-template", str(tmp_path / "t.jinja"), "-p", "Once")
    assert templated.stdout.strip() == tahr(*flags, "-p", "Once upon a time").stdout.strip() != ""


def test_the_caller_s_input_is_left_alone(tmp_path: Path) -> None:
    """A shell loop that reads lines and asks about each must see them all: three real processes, which take seconds."""
    ask = " ".join(shlex.quote(word) for word in command(*RAW, "-n", "1", "--quiet", "-p", "Once"))
    loop = f"while read -r line; do echo $line; {ask} > /dev/null; done"
    done = subprocess.run(
        ["sh", "-c", loop], input="a\nb\nc\n", env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["a", "b", "c"]


def test_piped_text_follows_the_prompt_where_a_dash_asks_for_it(tahr: Any) -> None:
    ready, user, assistant, leave = events(
        tahr(*RAW, "-n", "3", "-p", "Once", "-f", "-", "--output-format", "jsonl", stdin="upon a time\n")
    )
    assert (ready["event"], user["content"], leave["reason"]) == ("ready", "Once\nupon a time", "done")
    assert (assistant["n_tokens"], assistant["finish_reason"]) == (3, "length")


def test_piped_text_alone_is_the_prompt(tahr: Any, process: Any, tmp_path: Path) -> None:
    text = "Once upon a time\nthere was"
    (tmp_path / "prompt.txt").write_text(text)
    flags = (*RAW, "-n", "8", "--no-stats")
    requested = tahr(*flags, "-p", text)
    assert requested.stdout.strip()
    assert process(*flags, stdin=text).stdout == requested.stdout
    assert tahr(*flags, "-f", str(tmp_path / "prompt.txt")).stdout == requested.stdout
    assert "tok/s" not in requested.stderr


def test_a_session_of_lines_for_programs(process: Any) -> None:
    lines = "Once upon a time\n/set max_tokens 2\nOnce upon a time\n/clear\n/bye\n"
    done = process(*RAW, "-n", "3", "--output-format", "jsonl", stdin=lines)
    kinds = [event["event"] for event in events(done)]
    assert kinds == ["ready", "user", "assistant", "user", "assistant", "clear", "exit"]
    assert [e["n_tokens"] for e in events(done) if e["event"] == "assistant"] == [3, 2]
    assert ">>>" not in done.stdout + done.stderr


@pytest.mark.parametrize(("stdin", "complaint"), [("", "empty"), ("  \n", "empty"), (b"\xff\xfe", "UTF-8")])
def test_a_pipe_without_text_is_refused(tahr: Any, stdin: str | bytes, complaint: str) -> None:
    done = tahr("run", "any/thing", stdin=stdin)
    assert done.returncode == 3 and complaint in done.stderr


def test_stop_seed_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RAW, "-p", "Once upon a time", "-n", "40", "--stop", "there", "-v"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ", \n" and "F32" in captured.err
    warm = ["run", str(STORIES), "--raw", "-p", "Once upon", "-n", "20", "--temp", "5", "-s"]
    replies = []
    for seed in ("1", "1", "2"):
        assert main([*warm, seed]) == 0
        replies.append(capsys.readouterr().out)
    assert replies[0] == replies[1] != replies[2]


def test_a_real_chat(smollm2: Path, tahr: Any, tmp_path: Path) -> None:
    done = tahr("run", str(smollm2), "--temperature", "0", "-n", "40", "Why", "is", "the", "sky", "blue?")
    assert done.returncode == 0 and "light" in done.stdout
    noted = tahr("run", str(smollm2), "--think", "-p", "hi", "-n", "1")
    assert noted.returncode == 0 and "no switch for thinking" in noted.stderr
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "get_weather", "parameters": city}]))
    tools = ["--tools", str(tmp_path / "tools.json"), "--tool-choice", "get_weather", "--no-stats"]
    called = tahr("run", str(smollm2), *tools, "-p", "Is it warm in Rome?")
    assert called.stdout in ('get_weather(city="Rome")\n', 'get_weather(city="Oslo")\n'), called.stderr
    (tmp_path / "tools.json").write_text('[{"no": "name"}]')
    nameless = tahr("run", "no/such-model", *tools, "-p", "hi")
    assert nameless.returncode == 3 and "name is missing" in nameless.stderr
    refused = tahr("run", str(smollm2), "--reasoning-effort", "high", "-p", "hi")
    assert refused.returncode == 3 and "does not think" in refused.stderr


# ---- examples -----------------------------------------------------------------------------------------------------


def example(name: str, model: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), model],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_without_a_template() -> None:
    assert "Once upon a time|, there was" in example("generate.py", str(STORIES))
    assert len(example("stream.py", str(STORIES))) > 20


def test_example_chat(smollm2: Path) -> None:
    assert "> What does it eat?" in example("chat.py", str(smollm2))


def test_options_without_a_verb_are_those_of_run(tahr: Any) -> None:
    done = tahr("--model-id", str(STORIES), "--raw", "--temperature", "0", "-n", "4", "-p", "Once upon a time")
    assert done.returncode == 0 and done.stdout == tahr(*RAW, "-n", "4", "-p", "Once upon a time").stdout
    assert "no option --nothing" in tahr("--nothing").stderr

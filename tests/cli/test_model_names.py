"""`tahr cp`, `tahr ps`, `tahr stop`: names of models, and models of a running server."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pooled_server import pooled
from tahr import hub
from tahr.cli.main import main
from tahr.errors import ConfigError, ModelNotFound


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAHR_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def test_a_model_by_another_name(home: Path, stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cp", str(stories), "Tale:v2"]) == 0
    files = hub.resolve("tale:V2", download=False)
    assert files.weights == (stories,) and files.name == "tale:V2"
    hub.add_name("again", "tale:v2")
    assert hub.resolve("again").weights == (stories,)
    assert main(["rm", "again", "--force"]) == 0 and stories.exists()
    with pytest.raises(ModelNotFound):
        hub.resolve("again")
    assert "from now on" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", "x" * 500, "a b", "hf:x/y:z", "qwen3:0.6b", "a..b", "\0"])
def test_names_that_would_mean_something_else(home: Path, stories: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        hub.add_name(name, str(stories))
    assert not (home / "names.json").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "[" * 100_000])
def test_a_damaged_file_of_names_says_so(home: Path, text: str) -> None:
    (home / "names.json").write_text(text)
    with pytest.raises(ConfigError, match=r"names\.json"):
        hub.parse("story")


def test_names_given_at_the_same_time_are_all_kept(home: Path, stories: Path) -> None:
    code = "import sys; from tahr import hub; [hub.add_name(f'{sys.argv[1]}{i}', sys.argv[2]) for i in range(20)]"
    both = [subprocess.Popen([sys.executable, "-c", code, letter, str(stories)]) for letter in "ab"]
    assert [process.wait() for process in both] == [0, 0]
    assert len(json.loads((home / "names.json").read_text())) == 40
    assert [path.name for path in home.iterdir()] == ["names.json"]


def test_only_models_that_are_here_get_names(home: Path) -> None:
    with pytest.raises(ModelNotFound):
        hub.add_name("later", "smollm2:135m")


def test_the_models_of_a_server(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pooled(model_keep_alive_s=300) as pool:
        at = ("--server", pool.server.address)
        pool.memory[0].stats.pages_total, pool.memory[0].stats.pages_used = 8, 2
        assert main(["ps", *at]) == 0
        head, first, *others = capsys.readouterr().out.splitlines()
        kept = ["KV-RESERVED", "KV-USED", "KV-HOST", "KV-DISK"]
        assert head.split() == ["NAME", "STATE", "WEIGHTS", "ON-HOST", *kept, "CONTEXT", "REQUESTS", "UNTIL"]
        memory = ["400", "B", "0", "B", "600", "B", "150", "B", "0", "B", "0", "B"]
        assert first.split()[:16] == ["a", "loaded", *memory, "512", "0"] and first.endswith("s from now")
        assert [line.split() for line in others] == [["b", "unloaded", "0"], ["c", "unloaded", "0"]]
        assert re.search(r"loaded model=a seconds=[\d.]+ weights_mb=0 kv_reserved_mb=0$", caplog.text, re.MULTILINE)
        assert main(["stop", "a", *at]) == 0
        assert "a is unloaded" in capsys.readouterr().err
        assert main(["ps", "--json", *at]) == 0
        found: Any = json.loads(capsys.readouterr().out)
        assert {each["state"] for each in found["data"]} == {"unloaded"} and found["n_bytes"] == 0
        assert main(["stop", "nothing", *at]) == 3
        assert "is not served here" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that no list knows")
def test_a_user_without_a_home_has_local_models(stories: Path) -> None:
    """As of services and of containers: HOME is not set, and no list of users says where it would be."""
    code = """
import os, sys
from pathlib import Path
from tahr import hub
from tahr.cli.settings.settings_layers import home
from tahr.hub import hf_cache, store
os.setuid(54321)
print(hub.parse(sys.argv[1]).path, hub.list_models(), store.home(), hf_cache.directory(), home())
"""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, str(stories)], env=environ, capture_output=True, text=True)
    assert done.stdout.split() == [str(stories), "[]", "/.cache/tahr", "/.cache/huggingface/hub", "/.config/tahr"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_models_of_another_user_do_not_hide_ones_own() -> None:
    code = "import os; from tahr import hub; os.setuid(54321); print([entry.name for entry in hub.list_models()])"
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        cache.chmod(0o755)
        for name in ("Mine", "Theirs"):
            snapshot = cache / f"models--org--{name}" / "snapshots" / ("a" * 40)
            snapshot.mkdir(parents=True)
            (snapshot / "m-Q8_0.gguf").write_bytes(b"GGUF")
        (cache / "models--org--Theirs").chmod(0o700)
        environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_CACHE": folder, "TAHR_HOME": folder}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout == "['org/Mine:Q8_0']\n"

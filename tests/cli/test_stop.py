"""`tahr stop`: which server it ends, and what it says where there is none."""

import json
import os
import signal
from pathlib import Path

import pytest

from serve_process import served
from tahr.cli.main import main
from tahr.errors import ConfigError
from tahr.server.status import servers

EXIT_CONFIG = 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "tahr"


def test_a_server_ends_when_its_requests_have(stories: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(str(stories)) as server:
        port = server.address.rpartition(":")[2]
        assert main(["stop", "--port", str(int(port) + 1)]) == 0
        assert "No server of yours runs here" in capsys.readouterr().err
        assert server.process.poll() is None
        assert main(["stop"]) == 0
        assert f"Ending the server on {server.address}" in capsys.readouterr().err
        assert server.wait() == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def test_no_server_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 0
    assert "No server of yours runs here." in capsys.readouterr().err


def test_what_a_killed_server_left_behind_ends_nobody(folder: Path) -> None:
    folder.mkdir()
    stale = folder / "1234.json"
    stale.write_text(json.dumps({"pid": os.getpid(), "address": "http://x:1", "namespace": servers.namespace()}))
    assert main(["stop"]) == 0
    assert not stale.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 4000, '{"pid": 1}', "x" * 5000, '{"pid": "a", "address": 1}'])
def test_what_is_none_of_ours_is_passed_over(folder: Path, text: str) -> None:
    with servers.announced("http://127.0.0.1:1", print):
        (folder / f"{os.getpid()}.json").write_text(text)
        assert servers.running() == []


def test_one_of_several_and_one_elsewhere_must_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with servers.announced("http://127.0.0.1:1", print):
        path = folder / f"{os.getpid()}.json"
        said = json.loads(path.read_text())
        path.write_text(json.dumps(said | {"namespace": "pid:[1]"}))
        assert main(["stop"]) == EXIT_CONFIG
        assert "in another container" in capsys.readouterr().err
        found = servers.running() * 2
    with pytest.raises(ConfigError, match="on the ports 1, 1: say which with --port"):
        servers.the_one(found)


def test_a_server_starts_where_nothing_can_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write_text("a file in the folder's place")
    with servers.announced("http://127.0.0.1:1", print):
        assert "will not find this server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"), [(["m", "--port", "1"], "--server URL"), (["--server", "http://x"], "MODEL")]
)
def test_a_server_or_a_model(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", *words]) == EXIT_CONFIG
    assert said in capsys.readouterr().err

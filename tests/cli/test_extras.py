"""Messages name the command that installs an extra where the reader is: in a checkout, or anywhere else."""

import importlib.util
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tahr import errors
from tahr.backends.cuda.layouts import presence
from tahr.cli.main import main

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tahr").rglob("*.py")}


def command_of_a_copy(folder: Path) -> str:
    """What `install_extra` of a Tahr in that folder gives."""
    (folder / "tahr").mkdir()
    file = Path(shutil.copy(errors.__file__, folder / "tahr"))
    spec = importlib.util.spec_from_file_location("copied_errors", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: str = module.install_extra("cuda")
    return found


def test_an_installed_tahr_names_the_package(tmp_path: Path) -> None:
    assert command_of_a_copy(tmp_path) == "`pip install 'tahr[cuda]'`"


def test_a_checkout_names_itself(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert command_of_a_copy(tmp_path) == "`pip install '.[cuda]'` in Tahr's directory"


@pytest.mark.parametrize("command", ["`pip install 'tahr[cuda]'`", "`pip install '.[cuda]'` in Tahr's directory"])
def test_devices_says_it(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(presence, "missing_packages", lambda: ["torch"])
    monkeypatch.setattr(presence, "install_extra", lambda name: command.replace("cuda", name))
    main(["devices"])
    assert f"torch not installed; run {command}" in " ".join(capsys.readouterr().out.split())


def test_extras_that_messages_name_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    calls = re.compile(r"install_extra\([\"']([\w-]+)[\"']\)")
    named = {name for text in SOURCES.values() for name in calls.findall(text)}
    assert len(named) == 5 and named <= set(known)


def test_no_message_writes_the_command_itself() -> None:
    written = re.compile(r"pip install [\"']?(?:tahr|\.)\[")
    assert [str(path) for path, text in SOURCES.items() if written.search(text) and path.name != "errors.py"] == []

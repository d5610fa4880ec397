"""Options and files as shells and editors leave them: values that are empty, and marks at the beginning of a file."""

from pathlib import Path

import pytest

from tahr.cli.chat.prompt import read_file
from tahr.cli.main import main
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.regular_file import read_text

PATHS = ["--kv-disk", "--spec-draft", "--mmproj", "--chat-template", "--tokenizer"]
SERVER = ["--state-dir", "--request-dump-dir", "--decision-trace-jsonl", "--admin-key"]


@pytest.mark.parametrize("option", [*PATHS, *SERVER])
def test_an_option_that_is_empty_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--state-dir "$DIR"` without the variable kept nothing, and said nothing."""
    assert main(["serve", option, "", "--effective-config-json"]) == 3
    name = option.removeprefix("--").replace("-", "_")
    assert capsys.readouterr().err.endswith(f"error: {name} is empty: give it a value, or leave it out.\n")


def test_a_variable_that_is_empty_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAHR_ENGINE_KV_DISK", "")
    assert main(["serve", "--effective-config-json"]) == 0


def test_the_library_refuses_it_too() -> None:
    with pytest.raises(ConfigError, match="kv_disk is empty"):
        EngineConfig(kv_disk=" ")


def test_a_file_may_begin_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"\xef\xbb\xbfport = 1\r\n")
    assert read_text(file, 100) == "port = 1\n"
    assert read_file(file) == "port = 1"

"""`tahr serve` with `--kv-disk`: two servers on one directory, restarts, signals, and what is said of it."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_process import ServeProcess, served
from tahr.cli.main import main

TEXT = "Once upon a time there was a little dog who had a red ball and a blue hat. " * 12


def ask(server: ServeProcess, text: str = TEXT, key: str = "") -> tuple[str, int]:
    """A reply, and how many tokens of the prompt were not computed."""
    body = {"prompt": text, "max_tokens": 16, "temperature": 0}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    found: Any = httpx.post(f"{server.address}/v1/completions", json=body, headers=headers, timeout=60).json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def options(stories: Path, folder: Path, *more: str) -> tuple[str, ...]:
    return (str(stories), "--kv-disk", str(folder), "--kv-disk-size", "64m", "--kv-host-size", "8m", *more)


def wait_for_files(folder: Path) -> list[Path]:
    until = time.monotonic() + 20
    while not (found := list(folder.rglob("*.kv"))):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def test_two_servers_share_a_directory(stories: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with served(*options(stories, folder)) as one, served(*options(stories, folder)) as two:
        text, n_cached = ask(one)
        assert n_cached == 0
        wait_for_files(folder)
        assert ask(two) == (text, 256)
        health = httpx.get(f"{two.address}/health").json()
        (model,) = health["models"].values() if isinstance(health["models"], dict) else health["models"]
        assert model["kv_tiers"]["files_read"] == 1 and model["kv_tiers"]["disk_fault"] == ""
        metrics = httpx.get(f"{two.address}/metrics").text
        assert 'tahr_kv_tier_files_total{model_name="' in metrics and 'event="read"} 1' in metrics
        assert "tahr_kv_disk_failed" in metrics and 'tier="host"' in metrics
        assert any("Pages are kept in 0.0 GB of host memory and 0.1 GB in" in line for line in one.lines), one.lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_leaves_what_the_next_one_reads(stories: Path, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "kv"
    with served(*options(stories, folder)) as one:
        text, _ = ask(one)
        if number == signal.SIGKILL:
            wait_for_files(folder)
        one.signal(number)
        assert one.wait() in (0, -number, 128 + number)
    with served(*options(stories, folder)) as two:
        assert ask(two) == (text, 256)


def test_keys_have_texts_of_their_own_after_a_restart(stories: Path, tmp_path: Path) -> None:
    """Also where keys have changed places."""
    folder = tmp_path / "kv"
    with served(*options(stories, folder, "--api-key", "a-first-key", "--api-key", "b-other-key")) as one:
        text, _ = ask(one, key="a-first-key")
        wait_for_files(folder)
    with served(*options(stories, folder, "--api-key", "b-other-key", "--api-key", "a-first-key")) as two:
        assert ask(two, key="b-other-key") == (text, 0)
        assert ask(two, key="a-first-key") == (text, 256)


def test_cache_shows_and_clears(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kv"
    with served(*options(stories, folder)) as server:
        ask(server)
        wait_for_files(folder)
        assert main(["cache", "kv", str(folder)]) == 0
        out = capsys.readouterr()
        assert "  1 files  " in out.out and out.err.startswith("1 files, ")
        assert main(["cache", "kv", str(folder), "--clear"]) == 0
        assert "removed" in capsys.readouterr().err and not list(folder.rglob("*.kv"))
        assert ask(server, "Another " + TEXT)[1] == 0
        wait_for_files(folder)
    monkeypatch.setenv("TAHR_ENGINE_KV_DISK", str(folder))
    assert main(["doctor"]) == 0
    assert re.search(rf"kv files +1, .* in {folder}", capsys.readouterr().out)
    assert main(["cache", "kv", str(tmp_path / "none")]) != 0
    assert "is no directory of keys and values" in capsys.readouterr().err

"""A server with keys in its state, as `tahr keys` makes them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.cli.main import main
from tahr.server.http.accounts import Account
from tahr.server.lifecycle import HttpServer
from tahr.server.state.database import FILE, opened
from tahr.server.state.keys import add_key
from tahr.server.state.settings import Settings


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(**{"port": 0, "log_interval_s": 0, "state_dir": str(folder), **more})


def new_key(folder: Path, name: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """A key that the command has made."""
    capsys.readouterr()
    assert main(["keys", "add", name, "--state-dir", str(folder), *options]) == 0
    printed = capsys.readouterr()
    assert name in printed.err and printed.out.count("\n") == 1
    return printed.out.strip()


def many_keys(folder: Path, names: list[str], **limits: Any) -> dict[str, str]:
    """Keys by their names, made without a process for each."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with closing(opened(folder / FILE)) as database:
        return {name: add_key(database, Account(name, **limits), i) for i, name in enumerate(names)}


def changed(folder: Path, statement: str, *values: Any) -> None:
    """Another program has written to the database."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute(statement, values)


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@contextmanager
def keyed(folder: Path, engine: Any = None, **more: Any) -> Iterator[tuple[HttpServer, httpx.Client]]:
    """A running server and a client of it that has no key of its own."""
    made = settings(folder, **more)
    with (
        serving(engine or ScriptedEngine(context_size=4096), settings=made) as server,
        httpx.Client(base_url=server.address, timeout=30) as client,
    ):
        yield server, client

"""The folder of state that a server and these commands share."""

import argparse
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tahr.cli.terminal.console import note
from tahr.errors import ConfigError

BUSY_MS = 5000  # time that a command waits for a server's writes


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Where the state is."""
    text = "the folder that the server has (or server.state_dir in the settings)"
    parser.add_argument("--state-dir", metavar="DIR", help=text)


def folder_of(args: argparse.Namespace) -> Path:
    """The folder that was named, here or in the settings that a server reads, too."""
    from tahr.cli.settings.settings_layers import read_layers
    from tahr.hub.refs import expanded

    flags = {"server.state_dir": args.state_dir} if args.state_dir else {}
    layers = read_layers(argparse.Namespace(config=None, sets=None), ("server",), flags, note)
    folder = layers.values("server").get("state_dir")
    if not folder:
        raise ConfigError("Keys and usage are in a folder of state: name the server's with --state-dir.")
    return expanded(folder)


@contextmanager
def state_in(folder: Path, makes: bool = False) -> Iterator[sqlite3.Connection]:
    """The database, which a server may be using; where there is none, one is made or refused."""
    from tahr.server.state.database import FILE, opened, unusable

    try:
        if makes:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not (folder / FILE).exists():
            raise ConfigError(f"There is no state in {folder}: add a key first, or name the server's --state-dir.")
        with closing(opened(folder / FILE, BUSY_MS)) as database:
            database.execute("PRAGMA synchronous = FULL")  # a revoked key stays so, whatever becomes of the machine
            yield database
    except (sqlite3.Error, OSError) as error:
        raise unusable(folder, error) from None

"""`tahr keys`: who may use a server."""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tahr.cli.accounts.folder import add_folder, folder_of, state_in
from tahr.cli.settings.sizes import whole_number
from tahr.cli.terminal.console import note
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.server.state.keys import KeyRow

HELP = "add, list or revoke the keys of a server"

EXAMPLES = """\
examples:
  tahr keys add ci --state-dir /var/lib/tahr          a key for ci; it is printed this once
  tahr keys add ana --models chat --requests-per-minute 60 --tokens-per-day 1000000 --state-dir DIR
  tahr keys list --state-dir DIR                      names and limits; keys themselves are nowhere
  tahr keys revoke ci --state-dir DIR                 replies that are on their way with it end, too

A server with the same --state-dir follows within a second, without a restart. Once a key was added, no request is
answered without one. The state holds hashes of keys alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr keys` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", choices=("add", "list", "revoke"), metavar="add|list|revoke", help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the key's name, for add and revoke")
    add_folder(parser)
    group = parser.add_argument_group("for add")
    text = "tokens of prompts and replies from midnight to midnight (UTC)"
    group.add_argument("--tokens-per-day", type=whole_number, metavar="N", help=text)
    text = "requests a minute, in place of the server's --rate-limit"
    group.add_argument("--requests-per-minute", type=whole_number, metavar="N", help=text)
    text = "models that the key is good for, by any of their names (default: all)"
    group.add_argument("--models", nargs="+", metavar="MODEL", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, for list")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    check(args)
    folder = folder_of(args)
    if args.what == "list":
        return listed(folder, args.json)
    return added(folder, args) if args.what == "add" else revoked(folder, args.name)


def check(args: argparse.Namespace) -> None:
    """Refuse what does not belong together."""
    if (args.name is None) != (args.what == "list"):
        takes = "takes no name" if args.what == "list" else "needs the name of a key"
        raise ConfigError(f"`tahr keys {args.what}` {takes}.")
    for option in ("tokens_per_day", "requests_per_minute", "models"):
        value = getattr(args, option)
        flag = f"--{option.replace('_', '-')}"
        if value is not None and args.what != "add":
            raise ConfigError(f"{flag} belongs to `tahr keys add`: revoke the key and add it again to change it.")
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"{flag} is {value}, but it must be at least 1.")
    if args.models and not all(name.strip() for name in args.models):
        raise ConfigError("A name in --models is empty: name models, or leave the option out for all.")


def added(folder: Path, args: argparse.Namespace) -> int:
    """Print the new key on stdout, alone."""
    from tahr.server.http.accounts import Account
    from tahr.server.state.keys import add_key

    wanted = Account(args.name, b"", args.requests_per_minute, args.tokens_per_day, tuple(args.models or ()))
    with state_in(folder, makes=True) as database:
        secret = add_key(database, wanted, time.time())
    print(secret)
    note(f"This is the key {args.name}, shown this once: the state holds its hash alone.")
    return 0


def revoked(folder: Path, name: str) -> int:
    """Revoke a key for good."""
    from tahr.server.state.keys import revoke_key

    with state_in(folder) as database:
        revoke_key(database, name, time.time())
    note(f"The key {name} is revoked: a running server follows within a second.")
    return 0


def listed(folder: Path, as_json: bool) -> int:
    """A line a key."""
    from tahr.server.state.keys import key_rows

    with state_in(folder) as database:
        rows = key_rows(database)
    if as_json:
        print(json.dumps([facts(row) for row in rows], indent=2))
    elif not rows:
        print("There are no keys: add one with `tahr keys add NAME`.", file=sys.stderr)
    else:
        print_keys(rows)
    return 0


def facts(row: "KeyRow") -> dict[str, Any]:
    """A key as it is listed. What was damaged by hand is shown as text, and said to be damaged."""
    account = row.account()
    state = "revoked" if row.is_revoked else "good" if account else "damaged"
    return {
        "name": account.name if account else str(row.name)[:80],
        "state": state,
        "created": day_of(row.created_at),
        "requests_per_minute": account and account.requests_per_minute,
        "tokens_per_day": account and account.tokens_per_day,
        "models": list(account.models) if account else [],
    }


def day_of(at: Any) -> str:
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"
    except (TypeError, ValueError, OverflowError, OSError):
        return "?"


def print_keys(rows: "list[KeyRow]") -> None:
    from tahr.cli.verbs.list import print_table

    lines = [["NAME", "STATE", "CREATED", "REQUESTS/MIN", "TOKENS/DAY", "MODELS"]]
    for row in rows:
        made = facts(row) | {"models": ", ".join(facts(row)["models"]) or "all"}
        cells = ["" if value is None else str(value) for value in made.values()]
        lines.append([cell if cell.isprintable() else ascii(cell) for cell in cells])
    print_table(lines)

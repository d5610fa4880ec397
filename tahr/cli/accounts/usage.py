"""`tahr usage`: what the keys of a server have used."""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

from tahr.cli.accounts.folder import add_folder, folder_of, state_in
from tahr.errors import ConfigError

HELP = "show what the keys of a server have used"
COLUMNS = ("key", "model", "day")

EXAMPLES = """\
examples:
  tahr usage --state-dir /var/lib/tahr                         a line a key
  tahr usage --by day,model --since 2026-11-01 --state-dir DIR
  tahr usage --by key,model,day --format csv --state-dir DIR   for programs

Days go from midnight to midnight (UTC). A running server writes what was used within a second after a request's end.
Joules are there where the device counts them and the server may read the counter."""

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr usage` takes."""
    parser.epilog = EXAMPLES
    add_folder(parser)
    add = parser.add_argument
    add("--by", default="key", metavar="COLUMNS", help="one line for each of: key, model, day (default key)")
    add("--since", metavar="DAY", help="the first day, as 2026-11-01")
    add("--until", metavar="DAY", help="the last day")
    add("--format", choices=tuple(FORMATS), default="table", help="how it is printed (default table)")


def run(args: argparse.Namespace) -> int:
    """Print the sums."""
    from tahr.server.state.ledger import Use, as_facts, summed

    by = columns_of(args.by)
    since = day_of(args.since, "--since", "")
    until = day_of(args.until, "--until", "~")  # later than all
    with state_in(folder_of(args)) as database:
        found = list(summed(database, by, since, until))
    rows = [dict(zip(by, map(str, row), strict=False)) | as_facts(Use(*row[len(by) :])) for row in found]
    FORMATS[args.format](rows, [*by, *as_facts(Use())])
    return 0


def columns_of(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) < len(names):
        raise ConfigError(f"--by {text[:80]} is not understood: name some of {', '.join(COLUMNS)}, each once.")
    return names


def day_of(text: str | None, option: str, default: str) -> str:
    if text is None:
        return default
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ConfigError(f"{option} {text[:80]} is no day: write it as 2026-11-30.") from None


def as_json(rows: Sequence[Row], names: Sequence[str]) -> None:
    print(json.dumps(rows, indent=2))


def as_csv(rows: Sequence[Row], names: Sequence[str]) -> None:
    """A line of names, then a line a row; values that were not measured are empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row[name] for name in names] for row in rows)


def as_table(rows: Sequence[Row], names: Sequence[str]) -> None:
    from tahr.cli.verbs.list import print_table

    lines = [[cell(row[name]) for name in names] for row in rows]
    print_table([[name.replace("_", " ").upper() for name in names], *lines])


def cell(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if text.isprintable() else ascii(text)


FORMATS: dict[str, Callable[[Sequence[Row], Sequence[str]], None]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}

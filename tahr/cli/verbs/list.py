"""`tahr list`: which models are on this machine, and which short names exist."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

HELP = "list the models on this machine, or with --aliases the short names"

EXAMPLES = """\
examples:
  tahr list                       models of all sources, the shared Hugging Face cache included
  tahr list --aliases             the short names and what they stand for
  tahr list --voices qwen3-tts    voices and languages of a model that speaks
  tahr list --json | jq .[].name  for programs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr list` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("--aliases", action="store_true", help="show short names instead of models")
    parser.add_argument("--voices", metavar="MODEL", help="show the voices of a model that speaks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names alone")


def run(args: argparse.Namespace) -> int:
    """Print the table that was asked for."""
    if args.voices:
        return _voices(args.voices, args.json, args.quiet)
    if args.quiet:
        return _names(args.aliases, args.json)
    return _aliases(args.json) if args.aliases else _models(args.json)


def _voices(model: str, as_json: bool, quiet: bool) -> int:
    from tahr import hub
    from tahr.loading.sound.speaking import voices_of_files

    tokens = voices_of_files(hub.resolve(model))
    languages = [name for name in tokens.languages if "dialect" not in name]
    if as_json:
        print(json.dumps({"kind": tokens.kind, "voices": list(tokens.speakers), "languages": languages}, indent=2))
    elif quiet:
        print("\n".join(tokens.speakers))
    else:
        rows = [(name, tokens.dialects.get(name, "")) for name in tokens.speakers]
        print_table([("VOICE", "DIALECT"), *rows])
        print(f"Languages: {', '.join(languages)}.", file=sys.stderr)
    return 0


def _names(aliases: bool, as_json: bool) -> int:
    from tahr import hub
    from tahr.hub.aliases import ALIASES

    names = list(ALIASES) if aliases else [entry.name for entry in hub.list_models()]
    print(json.dumps(names, indent=2) if as_json else "\n".join(names))
    return 0


def _aliases(as_json: bool) -> int:
    from tahr.hub.aliases import ALIASES

    if as_json:
        print(json.dumps(ALIASES, indent=2))
    else:
        print_table([("ALIAS", "MODEL"), *sorted(ALIASES.items())])
    return 0


def _models(as_json: bool) -> int:
    from tahr import hub
    from tahr.hub.progress import human_bytes

    entries = hub.list_models()
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    elif not entries:
        print(f"No models here yet. Fetch a small one with: tahr pull {hub.DEFAULT_MODEL}", file=sys.stderr)
    else:
        rows = [
            (e.name, human_bytes(e.size_bytes), e.status, f"{datetime.fromtimestamp(e.modified):%Y-%m-%d %H:%M}")
            for e in entries
        ]
        print_table([("NAME", "SIZE", "STATUS", "MODIFIED"), *rows])
    return 0


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

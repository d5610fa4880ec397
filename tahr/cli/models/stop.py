"""`tahr stop`: unload a model of a running server."""

import argparse
import sys

from tahr.cli.models.ps import add_server, admin_client

HELP = "unload a model of a running server; its requests finish first"

EXAMPLES = """\
examples:
  tahr stop qwen3:0.6b          free its memory; the next request for it loads it again
  tahr ps                       what is loaded"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr stop` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="the model, as `tahr ps` shows it")
    add_server(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the server, which answers when the memory is free."""
    entry = admin_client(args.server).json("/admin/models/unload", {"model": args.model})
    print(f"{entry['id']} is {entry['state']}.", file=sys.stderr)
    return 0

"""`tahr cp`: one more name for a model on this machine."""

import argparse
import sys

HELP = "give a model on this machine one more name"

EXAMPLES = """\
examples:
  tahr cp qwen3:0.6b chat                 `tahr run chat` from now on; nothing is copied on the disk
  tahr cp ./models/mine.gguf mine:v2      a file by name
  tahr rm chat --force                    forget the name; the model stays"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr cp` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="a model that is on this machine")
    parser.add_argument("name", metavar="NAME", help="what to call it too")


def run(args: argparse.Namespace) -> int:
    """Write the name down."""
    from tahr import hub

    hub.add_name(args.name, args.model)
    print(f"{args.name} is {args.model} from now on.", file=sys.stderr)
    return 0

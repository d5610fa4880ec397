"""`tahr cache`: what is kept of prompts in files, and how to be rid of it."""

import argparse
import sys

HELP = "show or clear a directory of keys and values"

EXAMPLES = """\
examples:
  tahr cache kv ~/kv            how many files there are, by layout, and how large they are
  tahr cache kv ~/kv --clear    remove them: no prompt can be read from them after that

A layout is one model with one type of keys and values on one backend. Servers that use the directory go on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr cache` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", choices=("kv",), metavar="kv", help="kv: the files of --kv-disk")
    parser.add_argument("directory", metavar="DIRECTORY", help="the directory that --kv-disk names")
    parser.add_argument("--clear", action="store_true", help="remove the files")


def run(args: argparse.Namespace) -> int:
    """Print a line a layout, or remove all files."""
    from tahr.hub.progress import human_bytes
    from tahr.hub.refs import expanded
    from tahr.kv.tiers.janitor import look_at

    files = look_at(expanded(args.directory), args.clear)
    for layout in sorted({file.folder for file in files}):
        sizes = [file.n_bytes for file in files if file.folder == layout]
        print(f"{layout}  {len(sizes)} files  {human_bytes(sum(sizes))}")
    total = human_bytes(sum(file.n_bytes for file in files))
    print(f"{len(files)} files, {total}{', removed' if args.clear else ''}.", file=sys.stderr)
    return 0

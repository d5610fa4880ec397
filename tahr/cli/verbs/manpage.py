"""`tahr generate-manpage`: the help of all verbs as a page for `man`."""

import argparse
from importlib import import_module

HELP = "print the help of all verbs as a manual page"

EXAMPLES = """\
examples:
  tahr generate-manpage > ~/.local/share/man/man1/tahr.1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""
    parser.epilog = EXAMPLES


def run(args: argparse.Namespace) -> int:
    from tahr import __version__
    from tahr.cli.main import VERBS, Parser

    print(f'.TH TAHR 1 "" "tahr {__version__}"\n.SH NAME\ntahr \\- run language models on this machine')
    print(".SH SYNOPSIS\n.B tahr\nVERB [options]")
    for name, verb in VERBS.items():
        module = import_module(f"tahr.cli.{verb.module}")
        parser = Parser(prog=f"tahr {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(parser)
        print(f".SH TAHR {name.upper()}\n{escaped(module.HELP)}\n.nf\n{escaped(parser.format_help())}.fi")
    return 0


def escaped(text: str) -> str:
    """Text as troff prints it: no line begins with a command, a backslash is one."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)

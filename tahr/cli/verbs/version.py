"""`tahr version`: which Tahr this is."""

import argparse

HELP = "print the version of Tahr"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""


def run(args: argparse.Namespace) -> int:
    from tahr import __version__

    print(f"tahr {__version__}")
    return 0

"""`tahr devices`: what this machine can run models on."""

import argparse

HELP = "show what this machine can run models on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""


def run(args: argparse.Namespace) -> int:
    from tahr.backends import describe_devices

    for line in describe_devices():
        print(line)
    return 0

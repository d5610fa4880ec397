"""Where a one-shot prompt comes from: an option, words, a file, a pipe."""

import argparse
import os
import stat
import sys
from pathlib import Path

from tahr.errors import ConfigError


def read_prompt(args: argparse.Namespace) -> str | None:
    """The prompt as given and piped, or None where a person or a program is to be talked with."""
    given = given_prompt(args)
    if given is None and (stdin_is_terminal() or args.output_format == "jsonl"):
        return None
    piped = read_stdin().rstrip("\r\n") if has_piped_input() else ""
    prompt = "\n".join(part for part in (given, piped) if part)
    if not prompt.strip():
        raise ConfigError("The prompt is empty: give one with -p, or start `tahr run` in a terminal to chat.")
    return prompt


def given_prompt(args: argparse.Namespace) -> str | None:
    ways = {"-p": args.prompt, "-f": args.file, "words after the model": " ".join(args.message) or None}
    said = {way: value for way, value in ways.items() if value is not None}
    if len(said) > 1:
        raise ConfigError(f"The prompt is given by {' and by '.join(said)}: give it once.")
    if args.file is not None:
        return read_file(args.file)
    return next(iter(said.values()), None)


def given_or_piped(text: str | None) -> str:
    """`text` if there is one, else all of standard input as it is."""
    if text is None and stdin_is_terminal():
        raise ConfigError("Nothing to work on: give it after the model, or pipe it in.")
    return read_stdin() if text is None else text


def read_stdin() -> str:
    return as_text(sys.stdin.buffer.read(), "standard input")


def read_file(path: Path) -> str:
    try:
        return as_text(path.read_bytes(), str(path)).rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"The prompt file {path} cannot be read: {error.strerror}.") from error


def as_text(data: bytes, where: str) -> str:
    """UTF-8, and nothing else: guessing would send the model garbage."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"The text from {where} is not UTF-8 (byte {error.start}): convert it first.") from error


def stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def has_piped_input() -> bool:
    """Whether stdin is a pipe, a file or a socket; a device such as /dev/null has nothing to say."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:  # closed, or not a file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)

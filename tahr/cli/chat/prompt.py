"""Where a one-shot prompt comes from: an option, words, a file, a pipe."""

import argparse
import os
import stat
import sys
from pathlib import Path

from tahr.errors import ConfigError
from tahr.regular_file import read_piped

MAX_PROMPT_BYTES = 256 << 20
STDIN = "-"  # stands for a text or a file


def read_prompt(args: argparse.Namespace) -> str | None:
    """The prompt, or None for a chat, with a person or a program.

    Standard input is read only where nothing else gives the prompt, or where `-` asks for it: it may belong to the
    program that called us, such as a shell loop.
    """
    parts = given_parts(args)
    if not parts:
        if stdin_is_terminal() or args.output_format == "jsonl":
            return None
        parts = [read_stdin().rstrip("\r\n")] if has_piped_input() else []
    prompt = "\n".join(part for part in parts if part)
    if not prompt.strip():
        raise ConfigError("The prompt is empty: give one with -p, or start `tahr run` in a terminal to chat.")
    return prompt


def given_parts(args: argparse.Namespace) -> list[str]:
    """The prompt's text, and what a file or standard input adds to it."""
    ways = {"-p": args.prompt, "words after the model": " ".join(args.message) or None}
    texts = {way: value for way, value in ways.items() if value is not None}
    if len(texts) > 1:
        raise ConfigError(f"The prompt is given by {' and by '.join(texts)}: give it once.")
    text = next(iter(texts.values()), None)
    if text == STDIN and args.file is not None and str(args.file) == STDIN:
        raise ConfigError("-p - and -f - both read standard input: give one of them.")
    parts = [] if text is None else [read_stdin().rstrip("\r\n") if text == STDIN else text]
    return parts if args.file is None else [*parts, read_file(args.file)]


def given_or_piped(text: str | None) -> str:
    """`text` if there is one, else all of standard input as it is."""
    if text is None and stdin_is_terminal():
        raise ConfigError("Nothing to work on: give it after the model, or pipe it in.")
    return read_stdin() if text is None else text


def read_stdin() -> str:
    return as_text(sys.stdin.buffer.read(), "standard input")


def read_file(path: Path) -> str:
    if str(path) == STDIN:
        return read_stdin().rstrip("\r\n")
    try:
        return as_text(read_piped(path, MAX_PROMPT_BYTES), str(path)).rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"The prompt file {path} cannot be read: {error.strerror}.") from error


def as_text(data: bytes, where: str) -> str:
    """UTF-8, and nothing else: guessing would send the model garbage. A mark at its beginning is no part of it."""
    try:
        return data.decode("utf-8-sig")
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

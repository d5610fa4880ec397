"""The options of `tahr run` by which a reply follows a grammar."""

import argparse
from pathlib import Path

from tahr.errors import ConfigError
from tahr.grammar import Grammar
from tahr.regular_file import read_text

OPTIONS = {
    "--json-schema": ("FILE", "replies are JSON that this schema allows (a file, or the schema itself)"),
    "--json-object": (None, "replies are JSON objects"),
    "--regex": ("X", "replies match this regular expression as a whole"),
    "--grammar": ("FILE", "replies follow this grammar, in GBNF or Lark"),
    "--choice": ("A,B", "replies are one of these texts"),
}
MAX_FILE_BYTES = 1 << 20


def add_grammar(parser: argparse.ArgumentParser) -> None:
    """At most one of the options."""
    group = parser.add_argument_group("what a reply may be").add_mutually_exclusive_group()
    for flag, (metavar, text) in OPTIONS.items():
        if metavar:
            group.add_argument(flag, metavar=metavar, help=text)
        else:
            group.add_argument(flag, action="store_true", help=text)


def grammar_of(args: argparse.Namespace) -> Grammar | None:
    """The grammar that was asked for; what is wrong with its file is found before a model is loaded."""
    if args.json_schema is not None:
        is_inline = args.json_schema.lstrip().startswith("{")
        return Grammar("json_schema", args.json_schema if is_inline else text_of("--json-schema", args.json_schema))
    if args.json_object:
        return Grammar("json_object")
    if args.regex is not None:
        return Grammar("regex", args.regex)
    if args.grammar is not None:
        source = text_of("--grammar", args.grammar)
        return Grammar("gbnf" if "::=" in source else "lark", source)
    return Grammar("choice", args.choice.split(",")) if args.choice is not None else None


def text_of(flag: str, name: str) -> str:
    path = Path(name)
    try:
        return read_text(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} {name} cannot be read ({error}): name a text file.") from error

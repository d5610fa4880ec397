"""Verbs and their options as plain rows, read from the parsers: what completions and the manual page are made of."""

import argparse
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option by all its names."""

    flags: tuple[str, ...]
    help: str
    takes: str = ""  # name of its value; empty: it takes none
    choices: tuple[str, ...] = ()
    is_optional: bool = False  # the value may be left out


@dataclass(frozen=True, slots=True)
class VerbRow:
    """A verb, what follows it, and its options."""

    names: tuple[str, ...]
    help: str
    arguments: tuple[OptionRow, ...]  # positional arguments, such as MODEL
    options: tuple[OptionRow, ...]
    examples: str

    @property
    def takes_model(self) -> bool:
        return any("MODEL" in argument.takes for argument in self.arguments)


def verb_table() -> list[VerbRow]:
    """All verbs, in the order of `tahr --help`."""
    from tahr.cli.main import VERBS, Parser

    rows = []
    for name, verb in VERBS.items():
        module = import_module(f"tahr.cli.{verb.module}")
        parser = Parser(prog=f"tahr {name}")
        module.add_arguments(parser)
        made = [row_of(action) for action in parser._actions if action.help != argparse.SUPPRESS]
        arguments, options = ([row for row in made if bool(row.flags) == has_flags] for has_flags in (False, True))
        rows.append(VerbRow((name, *verb.also), module.HELP, tuple(arguments), tuple(options), parser.epilog or ""))
    return rows


def row_of(action: argparse.Action) -> OptionRow:
    takes = "" if action.nargs == 0 else value_name(action)
    text = (action.help or "").replace("%%", "%")
    choices = tuple(map(str, action.choices or ()))
    return OptionRow(tuple(action.option_strings), text, takes, choices, action.nargs in ("?", "*"))


def value_name(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return action.dest.upper() if action.option_strings else action.dest

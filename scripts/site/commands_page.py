"""The page of commands: each verb with its examples, arguments and options, from the parsers."""

from collections.abc import Iterator

from tahr.cli.shell.option_table import OptionRow, VerbRow, verb_table

HEAD = """# Commands

`tahr VERB --help` says the same. Settings may also stand in a file or in the environment: [settings](settings.md).
"""


def page() -> str:
    return "\n".join([HEAD, *(line for verb in verb_table() for line in section(verb))]) + "\n"


def section(verb: VerbRow) -> Iterator[str]:
    yield f"## tahr {verb.names[0]}\n"
    yield f"{sentence(verb.help)}\n"
    if also := verb.names[1:]:
        yield f"Also {' and '.join(f'`tahr {name}`' for name in also)}.\n"
    if verb.examples:
        yield f"```text\n{verb.examples}\n```\n"
    yield "| argument or option | |\n|---|---|"
    yield from (f"| `{form(row)}` | {cell(row.help)} |" for row in (*verb.arguments, *verb.options))
    yield ""


def form(row: OptionRow) -> str:
    value = row.takes if not row.choices else ",".join(row.choices)
    return f"{', '.join(row.flags)} {value}".strip()


def cell(text: str) -> str:
    """A help text in a table, where `<` begins no element."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."

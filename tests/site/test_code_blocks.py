"""What pages tell readers to type is understood: commands by their parsers, Python by the compiler."""

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tahr.cli.main import NAMES, Parser
from tahr.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("README*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def commands() -> Iterator[tuple[str, str]]:
    """Calls of `tahr` in blocks, with lines that are continued joined."""
    for page in PAGES:
        for _, text in blocks(page):
            for line in text.replace("\\\n", " ").splitlines():
                if line.removeprefix("$ ").startswith("tahr "):
                    yield page.name, line.removeprefix("$ ")


def words_of(line: str) -> list[str]:
    """The words of a call, up to what belongs to the shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(word)
    return words[1:]


def parse(words: list[str]) -> argparse.Namespace:
    """As `tahr` does, without running the verb."""
    words = ["run", *words] if words[0].startswith("-") else words
    verb = import_module(f"tahr.cli.{NAMES[words[0]]}")
    parser = Parser(prog="tahr", allow_abbrev=False)
    verb.add_arguments(parser)
    return parser.parse_intermixed_args(words[1:])


COMMANDS = sorted(set(commands()))
PYTHON = [(page.name, text) for page in PAGES for language, text in blocks(page) if language == "python"]


@pytest.mark.parametrize("page, line", COMMANDS, ids=[f"{page}: {line[:50]}" for page, line in COMMANDS])
def test_commands_are_understood(page: str, line: str) -> None:
    parse(words_of(line))


def test_many_commands_are_read() -> None:
    assert len(COMMANDS) > 40 and len(PYTHON) > 10


@pytest.mark.parametrize("line", ["tahr serve --no-such-option", "tahr run a -n many", "tahr run -c"])
def test_wrong_commands_are_noticed(line: str) -> None:
    with pytest.raises(ConfigError):
        parse(words_of(line))


@pytest.mark.parametrize("page, text", PYTHON, ids=[page for page, _ in PYTHON])
def test_python_compiles(page: str, text: str) -> None:
    compile(text, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def without_comments(text: str) -> list[str]:
    return [re.sub(r" +# .*", "", line) for line in text.splitlines()]


def test_both_readmes_have_the_same_commands() -> None:
    english, chinese = (blocks(ROOT / name) for name in ("README.md", "README.zh.md"))
    assert [(language, without_comments(text)) for language, text in chinese] == [
        (language, without_comments(text)) for language, text in english
    ]


def test_both_readmes_name_the_same_documents() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    english, chinese = ({span for span in SPAN.findall(text) if span.startswith("docs/")} for text in texts)
    assert english == chinese

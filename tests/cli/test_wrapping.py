"""Lines of a reply end between words, however it was cut into pieces; blocks of code stay as they are."""

import re

import pytest

from tahr.cli.terminal.console import note
from tahr.cli.terminal.wrapping import Wrapping, cells

TEXT = "The quick brown fox jumps over the lazy dog, incomprehensibilities included, and goes home.\n\nA second line.\n"


def shown(written: str, width: int) -> list[str]:
    """What a terminal shows of it; a line it would have broken by itself is an error."""
    lines: list[list[str]] = [[]]
    for sequence, char in re.findall(r"\x1b\[(\d*[DK])|([^\x1b])", written):
        if sequence.endswith("D"):
            n = int(sequence[:-1])
            while n > 0:
                n -= cells(lines[-1].pop())
        elif char == "\n":
            lines.append([])
        elif char:
            lines[-1].append(char)
            assert sum(map(cells, lines[-1])) <= width, "wider than the terminal"
    return ["".join(line).rstrip(" ") for line in lines]


def wrapped(text: str, width: int, piece: int) -> list[str]:
    wrap = Wrapping(lambda: width)
    return shown("".join(wrap(text[i : i + piece]) for i in range(0, len(text), piece)), width)


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
def test_lines_end_between_words(piece: int) -> None:
    assert wrapped(TEXT, 21, piece) == [
        "The quick brown fox",
        "jumps over the lazy",
        "dog,",
        "incomprehensibilitie",
        "s included, and goes",
        "home.",
        "",
        "A second line.",
        "",
    ]


@pytest.mark.parametrize("width", range(12, 60, 3))
def test_no_word_is_lost_and_none_is_cut_that_fits(width: int) -> None:
    text = "words of all lengths, a few of them long; e\u0301 is one letter\tand a tab " * 3
    made = wrapped(text, width, 4)
    assert " ".join(made).split() == text.split()


def test_a_wide_terminal_changes_nothing() -> None:
    assert "".join(map(Wrapping(lambda: 500), TEXT)) == TEXT


@pytest.mark.parametrize("columns", [0, 5])
def test_a_terminal_that_does_not_say_its_width_is_left_alone(columns: int) -> None:
    assert Wrapping(lambda: columns)(TEXT) == TEXT


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_code_is_not_wrapped(piece: int) -> None:
    code = "```python\nresult = compute(first_argument, second_argument)\n```\n"
    wrap = Wrapping(lambda: 21)
    text = f"{code}one two three four five six\n"
    written = "".join(wrap(text[i : i + piece]) for i in range(0, len(text), piece))
    assert written.startswith(code)
    assert shown(written.removeprefix(code), 21) == ["one two three four", "five six", ""]


def test_scripts_without_spaces_break_anywhere() -> None:
    assert wrapped("\u4e00" * 25, 21, 3) == ["\u4e00" * 10, "\u4e00" * 10, "\u4e00" * 5]


@pytest.mark.parametrize("columns", [0, 40, 10_000])
def test_notes_end_between_words(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tahr.cli.terminal.console.columns_of", lambda fd: columns)
    text = "  temperature 0.6, top_k 0, top_p 0.9, min_p 0, repetition_penalty 1, max_tokens 1024\nand a line"
    note(text)
    shown = capsys.readouterr().err
    assert shown.split() == text.split() and shown.startswith("  temperature")
    longest = max(map(len, shown.splitlines()))
    assert longest < columns if columns == 40 else shown == f"{text}\n"

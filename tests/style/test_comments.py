"""Comments and docstrings can be read alone: they do not go on with the name before them."""

import io
import re
import tokenize
from pathlib import Path

from sources import FILES, parsed, place, text_of

# A trailing comment that begins with one of these words continues the line it stands behind.
CONTINUES = re.compile(
    r"# (of|in|to|by|from|for|with|at|on|as|and|or|but|that|which|than|if|when|so|while|after|before"
    r"|those|these|it|they|what|how|because|since|also|else|then)\b(?! (?:least|most)\b)"
)
# A docstring that begins so has no subject, or one that stands elsewhere.
WITHOUT_SUBJECT = re.compile(r"(What|Whatever|Those|So|The same|Of|From|One of|As)\b")


def trailing_comments(path: Path) -> list[tuple[int, str]]:
    """Line and text of the comments that stand behind code."""
    source = text_of(path)
    lines = source.splitlines()
    comments = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    return [(t.start[0], t.string) for t in comments if lines[t.start[0] - 1][: t.start[1]].strip()]


def test_comments_do_not_continue_names() -> None:
    suspects = [path for path in FILES if CONTINUES.search(text_of(path))]  # reading all tokens of a file is slow
    found = [
        f"{place(path)}:{line} {text}"
        for path in suspects
        for line, text in trailing_comments(path)
        if CONTINUES.match(text)
    ]
    assert found == []


def test_docstrings_have_a_subject() -> None:
    found = [
        f"{place(path)}: {text.splitlines()[0]}"
        for path in FILES
        for text in parsed(path).docstrings
        if WITHOUT_SUBJECT.match(text)
    ]
    assert found == []

"""Regular expressions of JSON schema (ECMA-262's) in the syntax of Rust: where both mean something else."""

import re

from tahr.errors import GrammarError

SPACE = r"\t\n\x0B\x0C\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
LINE_ENDS = r"\n\r\x{2028}\x{2029}"
IN_CLASS = {"[": r"\[", "&": r"\&", "~": r"\~"}  # Rust has classes in classes, and operators between them
ESCAPE = re.compile(r"\\(?:u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|c[A-Za-z]|[pP]\{[^}]*\}|.)", re.DOTALL)
# llguidance takes a class with all control characters (the line break aside) for one with all escapes of JSON, so that
# it matched quotes and backslashes that it leaves out. A class of which that may be so is made one character smaller.
UNWRITTEN = r"\x01"
MAY_LEAVE_OUT = ('"', "\\", "-")  # content of a class that leaves a quote or a backslash out
CONTROLS = re.compile(r"(?:\\(?:x0|u000)[01]|\\0|[\0\1])-")  # a range of them in a class
REST_OF_CLASS = re.compile(r"(?:\\.|[^\]\\])*", re.DOTALL)
SPECIAL = {r"\s": f"[{SPACE}]", r"\S": f"[^{SPACE}]"}
NOT_ESCAPES = frozenset("aAzGQE<>")  # signs that Rust gives a meaning, and ECMA-262 none
LOOKING = re.compile(r"\(\?<?[=!]")
BACK = re.compile(r"\\[1-9k]")
ASSERTIONS = {r"\b": "a word boundary", r"\B": "a word boundary"}


def to_rust(pattern: str) -> str:
    """Translate an expression for Rust; constructs without a translation are left for llguidance to refuse."""
    parts: list[str] = []
    at = 0
    begin = 0
    in_class = False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            found = ESCAPE.match(pattern, at)
            if found is None:
                raise GrammarError(f"The pattern {pattern[:60]!r} ends in a backslash: correct it.")
            parts.append(escape(found[0], pattern, in_class))
            at = found.end()
            continue
        if not in_class and LOOKING.match(pattern, at):
            raise GrammarError(f"The pattern {pattern[:60]!r} looks ahead or behind: write it without.")
        if in_class and letter == "]":
            parts.append(class_end(pattern[begin : at + 1]))
        elif in_class:
            parts.append(in_a_class(pattern, begin, at, parts[-1]))
        else:
            parts.append(f"[^{LINE_ENDS}]" if letter == "." else letter)
        begin = begin if in_class else at
        in_class = letter != "]" if in_class else letter == "["
        at += 1
    return "".join(parts)


def in_a_class(pattern: str, begin: int, at: int, last: str) -> str:
    """A letter of a class that begins there; `last` is what was written last.

    A hyphen that comes first or ends a range stands for itself: Rust takes two in a row for an operator.
    """
    letter = pattern[at]
    is_first = at == begin + 1
    if letter == "-" and (is_first or last == "-" or (at == begin + 2 and pattern[at - 1] == "^")):
        return r"\-"
    if letter == "^" and is_first and (rest := REST_OF_CLASS.match(pattern, at)):
        return "^" + UNWRITTEN if any(sign in rest[0] for sign in MAY_LEAVE_OUT) else "^"
    return IN_CLASS.get(letter, letter)


def class_end(written: str) -> str:
    """The end of a class: one with control characters that leaves a quote or a backslash out is made smaller, too."""
    if written.startswith("[^") or not CONTROLS.search(written):
        return "]"
    try:
        known = re.compile("[" + re.sub(r"\\.|\[", lambda found: found[0][-2:].rjust(2, "\\"), written[1:]))
    except re.error:  # Python has other escapes
        return f"--{UNWRITTEN}]"
    return "]" if known.match('"') and known.match("\\") else f"--{UNWRITTEN}]"


def escape(written: str, pattern: str, in_class: bool) -> str:
    """One escape."""
    if written in ASSERTIONS and not in_class:
        raise GrammarError(f"The pattern {pattern[:60]!r} has {ASSERTIONS[written]} ({written}): write it without.")
    if BACK.match(written) and not in_class:
        raise GrammarError(f"The pattern {pattern[:60]!r} refers to a group ({written}): write it without.")
    if written == r"\b":
        return r"\x08"
    if written.startswith(r"\c"):
        return rf"\x{ord(written[2]) % 32:02x}"
    if written == r"\0":
        return r"\x00"
    if written[1] in NOT_ESCAPES:
        return written[1]
    return SPECIAL.get(written, written)

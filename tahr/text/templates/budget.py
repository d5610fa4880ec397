"""Limits on a template's work, and on the length of the values it makes."""

import re
from collections.abc import Callable, Collection
from contextvars import ContextVar
from string import Formatter
from time import monotonic
from typing import Any, TypeVar

from jinja2 import Undefined

T = TypeVar("T")

MAX_DEPTH = 100  # nesting of lists: deeper values are no conversation
MAX_PARTS = 100_000  # items of a list, with all they hold
MAX_NUMBER = 100_000  # largest width or count
MAX_BITS = 4096  # bits of a product: longer numbers are none of a conversation
LIST_ENTRY = 16  # letters that a place in a list counts for
WORK_PER_OUTPUT = 32  # letters a template may handle for each one it may return
WRITTEN_PER_OUTPUT = 4  # writing costs more: a block of text or a macro is written once more where it is used
SETS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()), set)
CONTAINERS: tuple[type[Any], ...] = (list, tuple, dict, *SETS)
PLAIN: tuple[type[Any], ...] = (str, bytes, int, float, type(None), range, Undefined, *CONTAINERS)


class OverBudget(Exception):
    """The template wants more time or room than it gets."""


class Budget:
    """Remaining budget of one rendering."""

    def __init__(self, seconds: float, max_chars: int) -> None:
        self.seconds = seconds
        self.max_chars = max_chars
        self._deadline = monotonic() + seconds
        self._n_chars_left = WORK_PER_OUTPUT * max_chars
        self._n_written_left = WRITTEN_PER_OUTPUT * max_chars

    def tick(self) -> bool:
        """True, so that it can stand in a condition."""
        if monotonic() > self._deadline:
            raise OverBudget(f"ran longer than {self.seconds:g} s")
        return True

    def charge(self, n_chars: int) -> None:
        """Count text made or written."""
        self._n_chars_left -= n_chars
        if self._n_chars_left < 0:
            raise OverBudget(f"handled more than {WORK_PER_OUTPUT * self.max_chars} characters")
        if monotonic() > self._deadline:  # `tick` without the call: this runs at every operation
            self.tick()

    def write(self, n_chars: int) -> None:
        """Count text on its way into the output, or into a block whose text becomes a value."""
        self._n_written_left -= n_chars
        if self._n_written_left < 0:
            raise OverBudget(f"writes more than {WRITTEN_PER_OUTPUT * self.max_chars} characters")
        self.charge(n_chars)

    def admit(self, n_chars: int) -> None:
        """Refuse to make a text or list this long."""
        if n_chars > self.max_chars:
            raise OverBudget(f"wants to make more than {self.max_chars} characters at once")

    def weigh(self, value: Any, *, plain: bool = False) -> int:
        """About how long the value is when written out; lists that share parts count them each time.

        A `plain` one must hold nothing whose attributes could be longer than itself.
        """
        if isinstance(value, str):
            self.admit(len(value))
            return len(value) + 1
        n_chars = 0
        n_parts = 0
        waiting = [(value, 0)]
        while waiting:
            item, depth = waiting.pop()
            n_parts += 1
            n_chars += size_of(item)
            if plain and not isinstance(item, PLAIN):
                raise OverBudget(f"looks into a {type(item).__name__} where only plain values are allowed")
            inner = parts_of(item)
            if depth > MAX_DEPTH or n_parts + len(inner) > MAX_PARTS:
                raise OverBudget(f"makes a value of more than {MAX_PARTS} parts or {MAX_DEPTH} levels")
            if inner:
                self.tick()
                waiting += [(part, depth + 1) for part in inner]
            self.admit(n_chars)
        return n_chars + n_parts


def parts_of(value: Any) -> Collection[Any]:
    """Parts of a value that are written out, compared and hashed with it."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, CONTAINERS) else ()


_budget: ContextVar[Budget] = ContextVar("budget")
current = _budget.get  # the budget of the rendering under way


def spending(budget: Budget, work: Callable[[], T]) -> T:
    """Run `work`; everything a template does in it is charged to this budget."""
    token = _budget.set(budget)
    try:
        return work()
    finally:
        _budget.reset(token)


def size_of(made: Any) -> int:
    """Letters of a text; nothing else counts."""
    return len(made) if isinstance(made, (str, bytes)) else 0


# A field of `format` may state a fill, a side, a sign, a width and a precision below a thousand.
_FIELD = re.compile(r"([^{}]?[<>=^])?[-+ ]?#?0?[0-9]{0,3}[,_]?(\.[0-9]{1,3})?[a-zA-Z%]?")
_WIDEST = 2000  # a width and a precision
# Where `splitlines` and `split` cut.
_LINE_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES = _LINE_BREAKS + " \t\x1f\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"


def _formatted(text: str, *values: Any, **named: Any) -> int:
    """An upper bound for `format`: each field as long as all that is given, escaped where it asks for that."""
    fields = [field for field in Formatter().parse(text) if field[1] is not None]
    for _, name, spec, _ in fields:
        if not _FIELD.fullmatch(spec or "") or len(name or "") > _WIDEST:
            raise OverBudget("gives format a width above 999, or a name or form that no template needs")
    looks_inside = any("." in (name or "") or "[" in (name or "") for _, name, _, _ in fields)
    escapes = 10 if any(conversion for *_, conversion in fields) else 1
    return len(text) + len(fields) * (
        escapes * current().weigh([*values, *named.values()], plain=looks_inside) + _WIDEST
    )


def _listed_items(items: Any, d: Any = "", attribute: Any = None) -> int:
    """The number of items that Jinja's filter `join` writes, with its names of arguments."""
    return _joined(d, items)


def _joined(separator: Any, items: Any) -> int:
    return current().weigh(items) + len(str(separator)) * len(items)


def _padded(text: Any, width: Any = 0, *_: Any) -> int:
    return len(str(text)) + int(width)


def _replaced(text: Any, old: Any, new: Any, count: Any = None) -> int:
    return len(str(text)) + str(text).count(str(old)) * len(str(new))


def _indented(text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    return len(str(text)) + (str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else int(width))


def _escaped(text: Any) -> int:
    if not isinstance(text, str):
        return 5 * current().weigh(text)
    return len(text) + 4 * sum(map(text.count, "&<>'\""))


def _split(text: str, sep: Any = None, maxsplit: Any = -1) -> int:
    n_cuts = text.count(sep) if sep else _count(text, _SPACES)
    return LIST_ENTRY * (min(n_cuts, maxsplit) if maxsplit >= 0 else n_cuts)


def _split_lines(text: str, keepends: Any = False) -> int:
    return LIST_ENTRY * _count(text, _LINE_BREAKS)


def _count(text: str, letters: str) -> int:
    """How many letters of a text are among these; its length where that is little."""
    return len(text) if LIST_ENTRY * len(text) <= current().max_chars else sum(map(text.count, letters))


# Upper bounds for the length of what these make. Filters take options by name too, so those of theirs are Jinja's.
METHOD_GROWTH: dict[str, Callable[..., int]] = {
    "center": _padded,
    "format": _formatted,
    "format_map": _formatted,  # not among TEXT_METHODS, but Jinja hands it out unasked
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "rsplit": _split,
    "split": _split,
    "splitlines": _split_lines,
    "zfill": _padded,
}
FILTER_GROWTH: dict[str, Callable[..., int]] = {
    "e": _escaped,
    "escape": _escaped,
    "indent": _indented,
    "join": _listed_items,
    "replace": _replaced,
}
# Filters that hand values on without writing them out; every other one is given only what is small when written out.
PASSIVE = frozenset(
    (
        *("abs", "attr", "batch", "count", "d", "default", "first", "float", "int", "items", "last", "length"),
        *("list", "map", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice"),
    )
)
# Filters that compare or write parts of what they are given: these must be plain, for an attribute of something else
# may be of any size.
LOOKING_INSIDE = frozenset(("dictsort", "groupby", "join", "max", "min", "sort", "unique"))
# Filters that make generators.
LAZY = frozenset(("batch", "items", "map", "reject", "rejectattr", "select", "selectattr", "slice", "unique"))
# Filters that make a list of the letters of a text.
LISTING = frozenset(
    ("batch", "groupby", "list", "map", "reject", "select", "slice", "sort", "title", "unique", "wordcount")
)
# The filters there are: all of Jinja's whose cost is known from what they are given.
FILTERS = (
    PASSIVE
    | LOOKING_INSIDE
    | {
        *("capitalize", "e", "escape", "indent", "lower", "replace", "safe", "string", "title", "tojson", "trim"),
        *("truncate", "upper", "wordcount"),
    }
)
# The methods of text that cost no more than its length, or whose growth is measured above. Numbers have none: what
# templates do with them are operators.
TEXT_METHODS = frozenset(
    (
        *("capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha"),
        *("isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace"),
        *("istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix"),
        *("replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "swapcase", "title", "upper", "zfill"),
    )
)


def number_of(value: Any) -> int:
    """The value where it is a number."""
    return value if isinstance(value, int) else 0


def _refuse_huge(left: Any, right: Any) -> int:
    """Arithmetic on whole numbers takes the square of their length."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise OverBudget("computes with numbers of a thousand digits")
    return 0


def _times(left: Any, right: Any) -> int:
    sized, count = (right, left) if isinstance(left, int) else (left, right)
    if hasattr(sized, "__len__") and isinstance(count, int):
        return current().weigh(sized) * max(0, count)
    return _refuse_huge(left, right)


def _power(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise OverBudget("computes with numbers of a thousand digits")
    return 0


def _modulo(left: Any, right: Any) -> int:
    if isinstance(left, (str, bytes)):
        raise OverBudget("formats text with %, for which templates use format")
    return _refuse_huge(left, right)


def _plus(left: Any, right: Any) -> int:
    return len(left) + len(right) if hasattr(left, "__len__") and hasattr(right, "__len__") else 0


def _minus(left: Any, right: Any) -> int:
    """Keys of dictionaries have it too, and make a set."""
    return LIST_ENTRY * len(left) if isinstance(left, SETS) else 0


# Upper bounds for what an operator makes.
OPERATOR_GROWTH: dict[str, Callable[[Any, Any], int]] = {
    "*": _times,
    "**": _power,
    "%": _modulo,
    "+": _plus,
    "-": _minus,
    "//": _refuse_huge,
    "/": _refuse_huge,
}
# Tests that are the operator %, and those that compare or write out what they are given.
MODULO_TESTS = frozenset(("divisibleby", "even", "odd"))
COMPARING_TESTS = frozenset(
    (
        *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan"),
        *("lower", "lt", "ne", "upper"),
    )
)

"""Jinja for templates nobody has read: no way out, and no way to run or grow without end.

Jinja's own sandbox keeps a template away from Python. On top of it every loop pass, call, filter and test asks a
`Budget` for time, and every operation that can make text much longer than what it was given is measured before it runs.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import GeneratorType
from typing import Any, cast

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_DEPTH = 100  # of lists in lists: more is no conversation
MAX_PARTS = 100_000  # of a list with all it holds
MAX_NUMBER = 100_000  # for a width or a count
MAX_BITS = 4096  # of a product: more is no number of a conversation
LIST_ENTRY = 16  # letters that a place in a list counts for
WORK_PER_OUTPUT = 32  # letters a template may handle for each one it may return


Tests = dict[str, Callable[..., Any]]


class OverBudget(Exception):
    """The template wants more time or room than it gets."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self, seconds: float, max_chars: int) -> None:
        self.seconds = seconds
        self.max_chars = max_chars
        self._deadline = time.monotonic() + seconds
        self._n_chars_left = WORK_PER_OUTPUT * max_chars

    def tick(self) -> bool:
        """True, so that it can stand in a condition."""
        if time.monotonic() > self._deadline:
            raise OverBudget(f"ran longer than {self.seconds:g} s")
        return True

    def charge(self, n_chars: int) -> None:
        """Count text made or written."""
        self._n_chars_left -= n_chars
        if self._n_chars_left < 0:
            raise OverBudget(f"handled more than {WORK_PER_OUTPUT * self.max_chars} characters")
        self.tick()

    def admit(self, n_chars: int) -> None:
        """Refuse to make a text or list this long."""
        if n_chars > self.max_chars:
            raise OverBudget(f"wants to make more than {self.max_chars} characters at once")

    def weigh(self, value: Any) -> int:
        """About how long the value is when written out; lists that share parts count them each time."""
        n_chars, n_parts, waiting = 0, 0, [(value, 0)]
        while waiting:
            item, depth = waiting.pop()
            n_parts += 1
            n_chars += _size(item)
            inner = (
                item if isinstance(item, (list, tuple)) else [*item, *item.values()] if isinstance(item, dict) else ()
            )
            if depth > MAX_DEPTH or n_parts + len(inner) > MAX_PARTS:
                raise OverBudget(f"makes a value of more than {MAX_PARTS} parts or {MAX_DEPTH} levels")
            if inner:
                self.tick()
                waiting += [(part, depth + 1) for part in inner]
            self.admit(n_chars)
        return n_chars + n_parts


_budget: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Everything a template does inside is charged to this budget."""
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


def _size(made: Any) -> int:
    return len(made) if isinstance(made, (str, bytes)) else 0


def _formatted(text: Any, values: Sequence[Any], fields: int) -> int:
    """An upper bound for `%` and `format`: each field as long as all that is given, plus the widths written in it."""
    widths = [int(number[:9]) for number in re.findall(r"\d+", str(text))]
    return len(text) + fields * (_budget.get().weigh(list(values)) + max(widths, default=0))


def _n_fields(text: str) -> int:
    if re.search(r"\{[^{}]*\{", text):
        raise OverBudget("takes the width of a field from another field")
    return text.count("{")


def _percent(text: str, values: Sequence[Any]) -> int:
    if re.search(r"%[^a-zA-Z%]*\*", text):
        raise OverBudget("takes the width of a field from another value")
    return _formatted(text, values, text.count("%"))


def _joined(separator: Any, items: Any) -> int:
    return _budget.get().weigh(items) + len(str(separator)) * len(items)


def _padded(text: Any, width: Any = 0, *_: Any) -> int:
    return len(str(text)) + int(width)


def _replaced(text: Any, old: Any, new: Any, *_: Any) -> int:
    return len(str(text)) + str(text).count(str(old)) * len(str(new))


def _indented(text: Any, width: Any = 4, *_: Any) -> int:
    return len(str(text)) + (str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else int(width))


# Upper bounds for the length of what these make.
METHOD_GROWTH: dict[str, Callable[..., int]] = {
    "center": _padded,
    "expandtabs": lambda text, size=8: len(text) * max(1, int(size)),
    "format": lambda text, *values: _formatted(text, values, _n_fields(text)),
    "format_map": lambda text, *values: _formatted(text, values, _n_fields(text)),
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "to_bytes": lambda number, length=1, *_: int(length),
    "translate": lambda text, table: len(text) * (1 + _budget.get().weigh(table)),
    "zfill": _padded,
}
FILTER_GROWTH: dict[str, Callable[..., int]] = {
    "center": _padded,
    "format": lambda text, *values: _percent(str(text), values),
    "indent": _indented,
    "join": lambda items, separator="", *_: _joined(separator, items),
    "replace": _replaced,
    "tojson": lambda value, *options: _budget.get().weigh(value) * (1 + sum(map(_number, options))),
    "wordwrap": lambda text, *options: len(str(text)) * (1 + sum(map(_size, options))),
}
# Filters that hand values on without writing them out; every other one is given only what is small when written out.
PASSIVE = frozenset(
    (
        *("abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items"),
        *("last", "length", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select"),
        *("selectattr", "slice", "sort", "sum", "unique"),
    )
)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    n_given = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja hands some filters its own state first
    growth = FILTER_GROWTH.get(name)

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        args = tuple(
            list(value) if isinstance(value, GeneratorType) and name not in PASSIVE else value for value in args
        )
        subject, *options = args[n_given:] or (None,)
        options += kwargs.values()
        if name not in PASSIVE:
            budget.weigh(subject)
        if name not in ("default", "d", "format") and any(abs(_number(option)) > MAX_NUMBER for option in options):
            raise OverBudget(f"gives the filter {name} a number above {MAX_NUMBER}")
        if growth:
            budget.admit(growth(subject, *options))
        made = function(*args, **kwargs)
        budget.charge(len(made) * LIST_ENTRY if isinstance(made, list) and made is not subject else _size(made))
        return _ticking(made) if isinstance(made, GeneratorType) else made

    return guarded


def _ticking(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _budget.get().tick()
        yield value


def _guarded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _budget.get().tick()
        return function(*args, **kwargs)

    return guarded


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as models were trained on it: Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _written(value: Any) -> Any:
    """Every value on its way into the output."""
    budget = _budget.get()
    budget.charge(len(value) if isinstance(value, str) else budget.weigh(value))
    return value


class QuietNamespace(Namespace):
    """`namespace()` whose contents are not written out with it: they may be shared without end."""

    def __repr__(self) -> str:
        return "<namespace>"


class Metering(NodeTransformer):
    """Puts the budget's questions into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's visitors are named after nodes)
        self.generic_visit(node)
        node.body = [nodes.ExprStmt(_ask("spend", nodes.Const(0))), *node.body]
        if node.test is not None:
            node.test = nodes.And(_ask("tick"), node.test)
        return node

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        n_chars = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        return [nodes.ExprStmt(_ask("spend", nodes.Const(n_chars))), node]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask("tilde", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return node if node.ctx == "store" else self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node, [pair.value for pair in node.items])

    def _literal(self, node: nodes.Expr, parts: Sequence[nodes.Node]) -> nodes.Node:
        self.generic_visit(node)
        return node if all(isinstance(part, nodes.Const) for part in parts) else _ask("built", node)


def _ask(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates are written for, with a budget on everything they do."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, finalize=_written, extensions=extensions)
        self.globals["namespace"] = QuietNamespace
        del self.globals["lipsum"], self.filters["random"]  # they would render differently each time
        self.filters["tojson"] = _to_json
        self.filters = {name: _guarded_filter(name, function) for name, function in self.filters.items()}
        self.tests = {name: _guarded_test(test) for name, test in cast(Tests, self.tests).items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Metering().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        assert isinstance(tree, nodes.Template)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as Jinja names them)
        budget = _budget.get()
        budget.tick()
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        on_text = isinstance(owner, (str, bytes, int))
        if on_text and (growth := METHOD_GROWTH.get(method.__name__)):
            args = tuple(list(value) if isinstance(value, GeneratorType) else value for value in args)
            budget.admit(growth(owner, *args, *kwargs.values()))
        made = super().call(__context, __obj, *args, **kwargs)
        if __obj is dict:
            budget.weigh(made)
        budget.charge(len(made) * LIST_ENTRY if on_text and isinstance(made, list) else _size(made))
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.admit(_GROWING[operator](left, right))
        made = super().call_binop(context, operator, left, right)
        budget.charge(budget.weigh(made) if isinstance(made, (list, tuple)) else _size(made))
        return made

    def tick(self) -> bool:
        return _budget.get().tick()

    def spend(self, n_chars: int) -> None:
        _budget.get().charge(n_chars)

    def tilde(self, *parts: Any) -> str:
        """The operator `~`."""
        _budget.get().weigh(parts)
        return "".join(map(str, parts))

    def built(self, value: Any) -> Any:
        """A list or dictionary the template wrote down: weighed, so that none can hold itself a million times over."""
        _budget.get().weigh(value)
        return value


def _times(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS:
            raise OverBudget("computes with numbers of a thousand digits")
        return 0
    sized, count = (right, left) if isinstance(left, int) else (left, right)
    return _budget.get().weigh(sized) * max(0, count) if hasattr(sized, "__len__") and isinstance(count, int) else 0


def _power(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise OverBudget("computes with numbers of a thousand digits")
    return 0


def _modulo(left: Any, right: Any) -> int:
    return _percent(left, right if isinstance(right, tuple) else (right,)) if isinstance(left, str) else 0


def _plus(left: Any, right: Any) -> int:
    return len(left) + len(right) if hasattr(left, "__len__") and hasattr(right, "__len__") else 0


# Upper bounds for what an operator makes.
_GROWING: dict[str, Callable[[Any, Any], int]] = {"*": _times, "**": _power, "%": _modulo, "+": _plus}

"""Jinja for untrusted templates: they cannot reach Python, run without end or use memory without end.

Jinja's own sandbox keeps a template away from Python. On top of it every loop pass, call, filter and test asks a
`Budget` for time, and every operation that can make text much longer than what it was given is measured before it runs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from types import GeneratorType
from typing import Any, cast

from jinja2 import Undefined, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace, object_type_repr
from jinja2.visitor import NodeTransformer

from tahr.text.templates.budget import (
    COMPARING_TESTS,
    CONTAINERS,
    FILTER_GROWTH,
    FILTERS,
    LAZY,
    LIST_ENTRY,
    LISTING,
    LOOKING_INSIDE,
    MAX_BITS,
    MAX_NUMBER,
    METHOD_GROWTH,
    MODULO_TESTS,
    OPERATOR_GROWTH,
    PASSIVE,
    SETS,
    TEXT_METHODS,
    OverBudget,
    current,
    number_of,
    size_of,
)

Tests = dict[str, Callable[..., Any]]
MAX_INDENT = 16  # spaces of JSON's indentation
MAX_NODES = 4096  # size of a parsed template: the largest released one has 1,300


def _guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    n_given = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja hands some filters its own state first
    growth = FILTER_GROWTH.get(name)
    passive = name in PASSIVE
    checks = name not in ("default", "d")
    plain = name in LOOKING_INSIDE
    lists = name in LISTING
    lazy = name in LAZY

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        if not passive or lazy:
            args = _listed(args)
        subject = args[n_given] if len(args) > n_given else None
        options = (*args[n_given + 1 :], *kwargs.values())
        if not passive:
            budget.weigh(subject, plain=plain)
            weigh_containers(options)
        if lists and isinstance(subject, str):
            budget.admit(LIST_ENTRY * len(subject))
        if checks and options and any(abs(number_of(option)) > MAX_NUMBER for option in options):
            raise OverBudget(f"gives the filter {name} a number above {MAX_NUMBER}")
        if growth:
            budget.admit(growth(subject, *args[n_given + 1 :], **kwargs))
        made = function(*args, **kwargs)
        if isinstance(made, int) and made.bit_length() > MAX_BITS:
            raise OverBudget("makes a number of a thousand digits")
        budget.charge(len(made) * LIST_ENTRY if isinstance(made, list) and made is not subject else size_of(made))
        return _ticking(made) if isinstance(made, GeneratorType) else made

    return guarded


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a filter, with generators as lists: a generator could be weighed only once, and Python crashes
    where thousands of them read from each other.
    """
    if not any(isinstance(value, GeneratorType) for value in args):
        return args
    return tuple(list(value) if isinstance(value, GeneratorType) else value for value in args)


def _ticking(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        current().tick()
        yield value


def weigh_containers(values: Iterable[Any]) -> None:
    """Before values are compared, hashed or written out: a list may hold another a million times over."""
    for value in values:
        if isinstance(value, CONTAINERS):
            current().weigh(value)


def named(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The named arguments of a call, without those that Jinja adds and takes out again."""
    return {name: value for name, value in kwargs.items() if name not in ("_block_vars", "_loop_vars")}


def _guarded_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    is_modulo = name in MODULO_TESTS
    compares = name in COMPARING_TESTS

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        current().tick()
        if is_modulo:
            OPERATOR_GROWTH["%"](args[0], next(iter((*args[1:], *kwargs.values())), 2))
        if compares:
            weigh_containers((*args, *kwargs.values()))
        return function(*args, **kwargs)

    return guarded


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as models were trained on it: Jinja's own filter would escape it for HTML."""
    if indent is not None and not (isinstance(indent, int) and indent <= MAX_INDENT):
        raise OverBudget(f"indents JSON by something else than 0 to {MAX_INDENT} spaces")
    if separators is not None and sum(map(len, separators)) > MAX_INDENT:
        raise OverBudget(f"separates JSON by more than {MAX_INDENT} characters")
    if indent:
        current().admit(_indents(value) * indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indents(value: Any, depth: int = 1) -> int:
    """How often the indent is written: as often for each part as it is deep."""
    if not isinstance(value, (list, tuple, dict)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return depth * (len(value) + 1) + sum(_indents(part, depth + 1) for part in inner)


def _written(value: Any) -> Any:
    """Every value on its way into the output."""
    budget = current()
    budget.write(len(value) if isinstance(value, str) else budget.weigh(value))
    return value


class QuietNamespace(Namespace):
    """`namespace()` whose contents are not written out with it: they may be shared without end."""

    def __repr__(self) -> str:
        return "<namespace>"


class QuietUndefined(Undefined):
    """A missing value, in a sentence that does not write out the key: it may be a list shared without end."""

    @property
    def _undefined_message(self) -> str:
        name: Any = self._undefined_name
        if isinstance(name, CONTAINERS):
            return f"{object_type_repr(self._undefined_obj)} has no such element"
        return super()._undefined_message


class Metering(NodeTransformer):
    """Adds calls that ask the budget to a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's visitors are named after nodes)
        self.generic_visit(node)
        node.body = [nodes.ExprStmt(_ask(spend, nodes.Const(0))), *node.body]
        if node.test is not None:
            node.test = _ask(tick, node.test)
        return node

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        n_chars = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        return [nodes.ExprStmt(_ask(spend, nodes.Const(n_chars))), node]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask(tilde, *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Comparing with a value written in the template is quick; comparing two long texts or lists may not be."""
        self.generic_visit(node)
        if all(_is_written(operand.expr) for operand in node.ops) or (_is_written(node.expr) and _only_equals(node)):
            return node
        node.expr = _side(node.expr)
        for operand in node.ops:
            operand.expr = _side(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask(sliced, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return node if node.ctx == "store" else self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node, [pair.value for pair in node.items])

    def _literal(self, node: nodes.Expr, parts: Sequence[nodes.Node]) -> nodes.Node:
        self.generic_visit(node)
        return node if all(isinstance(part, nodes.Const) for part in parts) else _ask(built, node)


def _is_written(node: nodes.Node) -> bool:
    """Whether an expression is a value the template spells out."""
    items = node.items if isinstance(node, nodes.List | nodes.Tuple) else [node]
    return all(isinstance(item, nodes.Const) for item in items)


def _side(node: nodes.Expr) -> nodes.Expr:
    """One side of a comparison."""
    return node if _is_written(node) else _ask(compared, node)


def _only_equals(node: nodes.Compare) -> bool:
    return all(operand.op in ("eq", "ne") for operand in node.ops)


def _ask(question: Callable[..., Any], subject: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    """A filter call: the sandbox checks other calls each time they run, but not filters."""
    return nodes.Filter(subject, _name_of(question), list(args), [], None, None)


def _name_of(question: Callable[..., Any]) -> str:
    return f"? {question.__name__}"  # a name that no template can write


# Functions of the metered template. They take the context so that Jinja does not work them out when it compiles.


@pass_context
def tick(_: Context, holds: Any) -> Any:
    current().tick()
    return holds


@pass_context
def spend(_: Context, n_chars: int) -> None:
    current().write(n_chars)


@pass_context
def compared(_: Context, value: Any) -> Any:
    """Charge a value that is about to be compared."""
    if isinstance(value, CONTAINERS):
        current().weigh(value)
    else:
        current().tick()
    return value


@pass_context
def tilde(_: Context, *parts: Any) -> str:
    """The operator `~`."""
    current().weigh(parts)
    return "".join(map(str, parts))


@pass_context
def built(_: Context, value: Any) -> Any:
    """A list or dictionary the template wrote down: weighed, so that none can hold itself a million times over."""
    current().weigh(value)
    return value


@pass_context
def sliced(_: Context, value: Any) -> Any:
    """A part of a text or list, which is a copy."""
    current().charge(len(value) * (1 if isinstance(value, str) else LIST_ENTRY))
    return value


QUESTIONS = {_name_of(question): question for question in (tick, spend, compared, tilde, built, sliced)}


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates are written for, with a budget on everything they do."""

    intercepted_binops = frozenset(OPERATOR_GROWTH)

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", GenerationTag]
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=QuietUndefined,
            finalize=_written,
            extensions=extensions,
        )
        self.globals["namespace"] = QuietNamespace
        del self.globals["lipsum"]  # the text would differ at each rendering
        known = {name: function for name, function in self.filters.items() if name in FILTERS}
        known["tojson"] = _to_json
        self.filters = {name: _guarded_filter(name, function) for name, function in known.items()} | QUESTIONS
        self.tests = {name: _guarded_test(name, test) for name, test in cast(Tests, self.tests).items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        # Every expression takes time once even without loops, and compiling grows faster than what is compiled.
        if sum(1 for _ in parsed.find_all(nodes.Node)) > MAX_NODES:
            raise OverBudget(f"has more than {MAX_NODES} parts")
        tree = Metering().visit(parsed)
        tree.set_environment(self)
        assert isinstance(tree, nodes.Template)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, LoopContext):  # most templates use `loop` for every message
            return not attr.startswith("_")
        if (isinstance(obj, dict) and attr == "fromkeys") or (isinstance(obj, Cycler) and attr == "items"):
            return False  # methods that make values which nothing has weighed
        return not isinstance(obj, (bytes, int, float, type, *SETS)) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as Jinja names them)
        budget = current()
        budget.tick()
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        on_text = isinstance(owner, (str, bytes, int))
        if on_text and (growth := METHOD_GROWTH.get(method.__name__)):
            args = _listed(args)
            weigh_containers(args)
            budget.admit(growth(owner, *args, **named(kwargs)))
        elif isinstance(owner, (list, tuple)) or (isinstance(owner, LoopContext) and method.__name__ == "changed"):
            weigh_containers((owner, *args))  # comparisons
        elif isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs):
            budget.weigh((args, named(kwargs)))  # arguments that become values
        made = super().call(__context, __obj, *args, **kwargs)
        if __obj is dict:
            budget.weigh(made)
        is_copy = isinstance(made, list) if on_text else owner is not None and isinstance(made, type(owner))
        budget.charge(len(made) * LIST_ENTRY if is_copy and not isinstance(made, str) else size_of(made))
        return made

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a filter by its name for `map`."""
        if name in QUESTIONS:
            raise OverBudget("asks for what is no filter")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        if operator == "+" and type(left) is type(right) is str:  # nearly all templates nearly always do this
            n_chars = len(left) + len(right)
            if n_chars > budget.max_chars:  # `admit` without the call
                budget.admit(n_chars)
            budget.charge(n_chars)
            return left + right
        budget.admit(OPERATOR_GROWTH[operator](left, right))
        made = super().call_binop(context, operator, left, right)
        budget.charge(budget.weigh(made) if isinstance(made, CONTAINERS) else size_of(made))
        return made

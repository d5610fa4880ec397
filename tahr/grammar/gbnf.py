"""llama.cpp's GBNF as llguidance reads it.

GBNF matches character by character, llguidance's terminals greedily. A grammar without recursion becomes one regular
expression. In any other, what is not recursive becomes terminals where `gbnf_terminals` shows that greed loses no text;
else every character is a terminal of its own, which costs more for every token.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tahr.errors import GrammarError
from tahr.grammar.gbnf_parser import UNBOUNDED, Alternatives, Class, Node, Reference, Repeat, parse
from tahr.grammar.gbnf_terminals import Terminal, split_terminals

MAX_REGEX_CHARS = 50_000
ROOT = "root"
SOMETHING = r"/[\s\S]+/"  # a terminal is never empty


def to_lark(source: str) -> str:
    """The grammar in Lark."""
    rules = parse(source)
    if ROOT not in rules:
        raise GrammarError(f"The GBNF grammar has no rule {ROOT}, where every text begins: add one.")
    for name, node in rules.items():
        for each in references(node):
            if each not in rules:
                raise GrammarError(f"The GBNF rule {name} uses {each}, which is not defined: add a rule {each}.")
    recursive = recursive_rules(rules)
    regex = Expansion(rules).regex(rules[ROOT]) if ROOT not in recursive else None
    if regex is not None:
        return f"start: /{regex}/\n" if regex else 'start: ""\n'
    return with_terminals(rules, recursive) or by_characters(rules)


def with_terminals(rules: dict[str, Node], recursive: set[str]) -> str | None:
    """The grammar with its parts that are not recursive as terminals; None if that would lose texts."""
    split = split_terminals(rules, recursive)
    if split is None:
        return None
    expand = Expansion(rules)
    regexes = [expand.regex(each.node) for each in split.terminals]
    if None in regexes:
        return None
    numbers = {name: f"r_{i}" for i, name in enumerate(split.rules)}
    lines = [f"{numbers[name]}: {lark(node, numbers)}" for name, node in split.rules.items()]
    lines += [f"{each.name}: /{regex}/ & {SOMETHING}" for each, regex in zip(split.terminals, regexes, strict=True)]
    return "\n".join([f"start: {numbers[ROOT]}", *lines]) + "\n"


def by_characters(rules: dict[str, Node]) -> str:
    """The grammar with every character as a terminal."""
    numbers = {name: f"r_{i}" for i, name in enumerate(rules)}
    lines = [f"{numbers[name]}: {lark(node, numbers)}" for name, node in rules.items()]
    return "\n".join([f"start: {numbers[ROOT]}", *lines]) + "\n"


def references(node: Node) -> set[str]:
    """The rules that a node uses."""
    if isinstance(node, Reference):
        return {node.name}
    return set().union(*map(references, node.parts)) if not isinstance(node, Class) else set()


def recursive_rules(rules: dict[str, Node]) -> set[str]:
    """The rules that use themselves, and those that use such rules."""
    uses = {name: references(node) for name, node in rules.items()}
    while leaves := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in leaves:
            del uses[name]
    return set(uses)


@dataclass
class Expansion:
    """Regular expressions of nodes, with the rules they use in place."""

    rules: dict[str, Node]

    def __post_init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def regex(self, node: Node) -> str | None:
        """The expression of a node; None if it is too long."""
        if isinstance(node, Class):
            return node.regex
        if isinstance(node, Reference):
            if node.name not in self._known:
                self._known[node.name] = self.regex(self.rules[node.name])
            return self._known[node.name]
        return joined(node, self.regex, "", "|", lambda text: f"(?:{text})")


def lark(node: Node, numbers: dict[str, str]) -> str:
    """A node as the right side of a rule in Lark."""
    if isinstance(node, Class):
        return f"/{node.regex}/"
    if isinstance(node, Terminal):
        return f"{node.name}?" if node.is_nullable else node.name
    if isinstance(node, Reference):
        return numbers[node.name]
    return joined(node, lambda part: lark(part, numbers), " ", " | ", lambda text: f"({text})") or '""'


def joined(
    node: Node, write: Callable[[Node], str | None], between: str, either: str, group: Callable[[str], str]
) -> str | None:
    """The parts of a node, written and put together; None if that is too long."""
    parts = [write(part) for part in node.parts]
    texts = [part for part in parts if part is not None]
    if len(texts) < len(parts) or sum(map(len, texts)) > MAX_REGEX_CHARS:
        return None
    if isinstance(node, Repeat):
        return group(texts[0] or '""' if between else texts[0]) + times(node)
    if isinstance(node, Alternatives):
        return group(either.join(text or ('""' if between else "") for text in texts))
    return between.join(texts)


def times(node: Repeat) -> str:
    if node.most == UNBOUNDED:
        return {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}")
    return "?" if (node.least, node.most) == (0, 1) else f"{{{node.least},{node.most}}}"

"""llama.cpp's GBNF as llguidance reads it.

GBNF matches character by character. A grammar without recursion becomes one regular expression; in any other, every
character is a terminal of its own. Longer terminals would be matched greedily, and some texts be lost by that.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tahr.errors import GrammarError
from tahr.grammar.gbnf_parser import UNBOUNDED, Alternatives, Class, Node, Reference, Repeat, parse

MAX_REGEX_CHARS = 50_000
ROOT = "root"


def to_lark(source: str) -> str:
    """The grammar in Lark."""
    rules = parse(source)
    if ROOT not in rules:
        raise GrammarError(f"The GBNF grammar has no rule {ROOT}, where every text begins: add one.")
    for name, node in rules.items():
        for each in references(node):
            if each not in rules:
                raise GrammarError(f"The GBNF rule {name} uses {each}, which is not defined: add a rule {each}.")
    regex = Expansion(rules).regex(rules[ROOT]) if not is_recursive(rules) else None
    if regex is not None:
        return f"start: /{regex}/\n" if regex else 'start: ""\n'
    numbers = {name: f"r_{i}" for i, name in enumerate(rules)}
    lines = [f"{numbers[name]}: {lark(node, numbers)}" for name, node in rules.items()]
    return "\n".join([f"start: {numbers[ROOT]}", *lines]) + "\n"


def references(node: Node) -> set[str]:
    """The rules that a node uses."""
    if isinstance(node, Reference):
        return {node.name}
    return set().union(*map(references, node.parts)) if not isinstance(node, Class) else set()


def is_recursive(rules: dict[str, Node]) -> bool:
    """Whether a rule uses itself, by way of others or not."""
    uses = {name: references(node) for name, node in rules.items()}
    while leaves := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in leaves:
            del uses[name]
    return bool(uses)


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

"""llama.cpp's GBNF as llguidance reads it.

GBNF matches character by character, llguidance's terminals greedily. A grammar without recursion becomes one regular
expression. In any other, what is not recursive becomes terminals where `gbnf_terminals` shows that greed loses no text;
else every character is a terminal of its own, which costs more for every token.
"""

from collections.abc import Callable, Mapping, Sequence, Set

from tahr.errors import GrammarError
from tahr.grammar.gbnf.parser import UNBOUNDED, Alternatives, Class, Node, Reference, Repeat, parse, references
from tahr.grammar.gbnf.terminals import Terminal, split_terminals

MAX_REGEX_CHARS = 200_000
MAX_EXPANDED_CHARS = 4_000_000  # limit on all expressions together: rules may use each other again and again
ROOT = "root"
SOMETHING = r"/[\s\S]+/"  # a terminal is never empty


def to_lark(source: str) -> str:
    """The grammar in Lark."""
    rules = parse(source)
    if ROOT not in rules:
        raise GrammarError(f"The GBNF grammar has no rule {ROOT}, where every text begins: add one.")
    uses = {name: references(node) for name, node in rules.items()}
    for name, used in uses.items():
        for each in used:
            if each not in rules:
                raise GrammarError(f"The GBNF rule {name} uses {each}, which is not defined: add a rule {each}.")
    order = leaves_first(uses)
    expand = Expansion(rules, order)
    if ROOT not in expand.regexes:  # a recursive root has no expression
        recursive = rules.keys() - set(order)
        return with_terminals(rules, recursive, expand) or by_characters(rules)
    regex = expand.regexes[ROOT]
    if regex is None:
        return by_characters(rules)
    return f"start: /{regex}/\n" if regex else 'start: ""\n'


def with_terminals(rules: dict[str, Node], recursive: Set[str], expand: "Expansion") -> str | None:
    """The grammar with its parts that are not recursive as terminals; None if that would lose texts."""
    split = split_terminals(rules, recursive)
    if split is None:
        return None
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


def leaves_first(uses: Mapping[str, Set[str]]) -> list[str]:
    """The rules that are not recursive, each after those it uses. The others use themselves, or use such rules."""
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for each in used:
            users[each].append(name)
    n_left = {name: len(used) for name, used in uses.items()}
    found = [name for name, n in n_left.items() if not n]
    for name in found:  # grows meanwhile
        for user in users[name]:
            n_left[user] -= 1
            if not n_left[user]:
                found.append(user)
    return found


class Expansion:
    """Regular expressions of rules and of nodes over them, with the rules they use in place."""

    def __init__(self, rules: dict[str, Node], order: Sequence[str]):
        self._n_chars = 0
        self.regexes: dict[str, str | None] = {}  # None: too long
        for name in order:
            self.regexes[name] = self.regex(rules[name])

    def regex(self, node: Node) -> str | None:
        """The expression of a node whose rules are known; None if it is too long."""
        if isinstance(node, Class):
            return node.regex
        if isinstance(node, Reference):
            return self.regexes[node.name]
        parts = [self.regex(part) for part in node.parts]
        texts = [part for part in parts if part is not None]
        n_chars = sum(map(len, texts))
        self._n_chars += n_chars
        if len(texts) < len(parts) or n_chars > MAX_REGEX_CHARS or self._n_chars > MAX_EXPANDED_CHARS:
            return None
        return joined(node, texts, "", "|", lambda text: f"(?:{text})")


def lark(node: Node, numbers: dict[str, str]) -> str:
    """A node as the right side of a rule in Lark."""
    if isinstance(node, Class):
        return f"/{node.regex}/"
    if isinstance(node, Terminal):
        return f"{node.name}?" if node.is_nullable else node.name
    if isinstance(node, Reference):
        return numbers[node.name]
    parts = [lark(part, numbers) for part in node.parts]
    return joined(node, parts, " ", " | ", lambda text: f"({text})") or '""'


def joined(
    node: Node,
    parts: Sequence[str],
    between: str,
    either: str,
    group: Callable[[str], str],
) -> str:
    """The parts of a node, which are written already, put together."""
    if isinstance(node, Repeat):
        return group(parts[0] or '""' if between else parts[0]) + times(node)
    if isinstance(node, Alternatives):
        return group(either.join(part or ('""' if between else "") for part in parts))
    return between.join(parts)


def times(node: Repeat) -> str:
    if node.most == UNBOUNDED:
        return {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}")
    return "?" if (node.least, node.most) == (0, 1) else f"{{{node.least},{node.most}}}"

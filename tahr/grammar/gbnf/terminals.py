"""Which parts of a recursive GBNF grammar may be terminals that are matched greedily, without losing a text.

Parts that are not recursive are candidates. The grammar over them is checked like one for a parser that looks one
character ahead (LL(1)): where there is a choice, the first characters of its branches differ, so that at every place
the next character says which terminal begins. And no character that can continue a complete terminal may follow it, so
that taking the longest one is always right. Sets of characters are whole numbers: one bit for each range of characters
that the grammar does not tell apart.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

from tahr.grammar.gbnf.parser import (
    UNBOUNDED,
    Alternatives,
    Class,
    Node,
    Range,
    Reference,
    Repeat,
    Series,
    nodes_in,
    references,
)

MAX_STATES = 3000
MAX_VISITED = 30_000  # nodes of one terminal: the rules it uses may use each other again and again


@dataclass(frozen=True)
class Terminal:
    """A part without recursion."""

    name: str
    node: Node
    first: int  # characters it may begin with
    after: int  # characters that may continue a complete one
    is_nullable: bool
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Split:
    """A grammar over terminals."""

    rules: dict[str, Node]
    terminals: list[Terminal]


class TooLarge(Exception):
    """The automaton of a terminal has too many states."""


def split_terminals(rules: dict[str, Node], recursive: Set[str]) -> Split | None:
    """The grammar over terminals; None if greedy ones could lose a text."""
    splitter = Splitter(rules, recursive)
    try:
        made = Split({name: splitter.split(rules[name]) for name in rules if name in recursive}, splitter.terminals)
    except TooLarge:
        return None
    return made if Lookahead(made.rules).holds() else None


# ---- terminals ------------------------------------------------------------------------------------------------------


class Splitter:
    """Finds the largest parts that are not recursive."""

    def __init__(self, rules: dict[str, Node], recursive: Set[str]):
        self._rules = rules
        self._recursive = recursive
        self._alphabet = Alphabet(each for node in rules.values() for each in nodes_in(node) if isinstance(each, Class))
        self._known: dict[Node, Terminal] = {}

    @property
    def terminals(self) -> list[Terminal]:
        return list(self._known.values())

    def split(self, node: Node) -> Node:
        """Rewrite a node over terminals."""
        if self._is_plain(node):
            return self._terminal(node)
        if isinstance(node, Series):
            return Series(tuple(self._joined(node.parts)))
        if isinstance(node, Repeat):
            return Repeat((self.split(node.parts[0]),), node.least, node.most)
        return Alternatives(tuple(map(self.split, node.parts))) if isinstance(node, Alternatives) else node

    def _joined(self, parts: tuple[Node, ...]) -> list[Node]:
        """Parts of a sequence, with neighbours that are not recursive as one."""
        made: list[Node] = []
        plain: list[Node] = []
        for part in parts:
            if self._is_plain(part):
                plain.append(part)
                continue
            made += [self._terminal(Series(tuple(plain)))] if plain else []
            plain = []
            made.append(self.split(part))
        return made + ([self._terminal(Series(tuple(plain)))] if plain else [])

    def _is_plain(self, node: Node) -> bool:
        if isinstance(node, Reference):
            return node.name not in self._recursive
        return all(map(self._is_plain, node.parts))

    def _terminal(self, node: Node) -> Node:
        known = self._known.get(node)
        if known is None:
            first, after, is_nullable = Automaton(self._rules, self._alphabet).facts(node)
            known = self._known[node] = Terminal(f"T_{len(self._known)}", node, first, after, is_nullable)
        return known  # type: ignore[return-value]


class Alphabet:
    """The ranges of characters between all borders of all classes, and classes as sets of them."""

    def __init__(self, found: Iterable[Class]):
        ranges = {each for node in set(found) for each in node.ranges}
        self._borders = sorted({edge for first, last in ranges for edge in (first, last + 1)})
        self.ranges: list[Range] = [(first, following - 1) for first, following in pairwise(self._borders)]
        self._sets: dict[Class, int] = {}

    def set_of(self, node: Class) -> int:
        """The bits of the ranges that a class is made of."""
        if node not in self._sets:
            self._sets[node] = union(self._bits(low, high) for low, high in node.ranges)
        return self._sets[node]

    def _bits(self, low: int, high: int) -> int:
        return (1 << bisect_left(self._borders, high + 1)) - (1 << bisect_left(self._borders, low))


Way = tuple[Node, int, int]  # a node that is to lead from one state to another


class Automaton:
    """A part of a grammar as states with characters between them."""

    def __init__(self, rules: dict[str, Node], alphabet: Alphabet):
        self._rules = rules
        self._alphabet = alphabet
        self._silent: list[list[int]] = []  # moves without a character, by state
        self._moves: list[list[tuple[int, int]]] = []  # moves by state: characters, and their targets

    def facts(self, node: Node) -> tuple[int, int, bool]:
        """Characters it may begin with, characters that may continue a complete text, and whether it may be empty."""
        begin = self._state()
        end = self._state()
        self._add(node, begin, end)
        start = self._closure([begin])
        after = 0
        seen = {start}
        waiting = [start]
        while waiting:
            states = waiting.pop()
            after |= self._first(states) if end in states and states != start else 0
            for bit in bits(self._first(states)):
                following = self._closure([to for s in states for on, to in self._moves[s] if on & bit])
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
            if len(seen) > MAX_STATES:
                raise TooLarge
        return self._first(start), after, end in start

    def _first(self, states: frozenset[int]) -> int:
        found = 0
        for state in states:
            for on, _ in self._moves[state]:
                found |= on
        return found

    def _closure(self, states: list[int]) -> frozenset[int]:
        found = set(states)
        waiting = list(states)
        while waiting:
            for to in self._silent[waiting.pop()]:
                if to not in found:
                    found.add(to)
                    waiting.append(to)
        return frozenset(found)

    def _state(self) -> int:
        if len(self._moves) > MAX_STATES:
            raise TooLarge
        self._silent.append([])
        self._moves.append([])
        return len(self._moves) - 1

    def _add(self, node: Node, begin: int, end: int) -> None:
        """Lead from one state to another by a node."""
        left = [(node, begin, end)]
        n_visited = 0
        while left:
            n_visited += 1
            if n_visited > MAX_VISITED:
                raise TooLarge
            left += self._added(*left.pop())

    def _added(self, node: Node, begin: int, end: int) -> list[Way]:
        """Add a node; the ways that its parts still have to lead are returned."""
        if isinstance(node, Class):
            self._moves[begin].append((self._alphabet.set_of(node), end))
            return []
        if isinstance(node, Reference):
            return [(self._rules[node.name], begin, end)]
        if isinstance(node, Repeat):
            return self._add_repeat(node, begin, end)
        if isinstance(node, Alternatives):
            return [(part, begin, end) for part in node.parts]
        ways: list[Way] = []
        for part in node.parts:
            following = self._state()
            ways.append((part, begin, following))
            begin = following
        self._silent[begin].append(end)
        return ways

    def _add_repeat(self, node: Repeat, begin: int, end: int) -> list[Way]:
        n_times = node.least if node.most == UNBOUNDED else node.most
        at = self._state()
        self._silent[begin].append(at)
        ways: list[Way] = []
        for i in range(n_times):
            if i >= node.least:
                self._silent[at].append(end)
            following = self._state()
            ways.append((node.parts[0], at, following))
            at = following
        if node.most == UNBOUNDED:
            again = self._state()
            ways.append((node.parts[0], at, again))
            self._silent[again].append(at)
        self._silent[at].append(end)
        return ways


def bits(number: int) -> Iterable[int]:
    while number:
        lowest = number & -number
        yield lowest
        number ^= lowest


# ---- one character ahead --------------------------------------------------------------------------------------------


class Lookahead:
    """First terminals of a grammar, and those that may follow its rules."""

    def __init__(self, rules: dict[str, Node]):
        self._rules = rules
        self._firsts = dict.fromkeys(rules, 0)
        self._nullable = dict.fromkeys(rules, False)
        self._follows = dict.fromkeys(rules, 0)
        self._waiting = Waiting(rules)  # rules to check, because their followers have changed

    def holds(self) -> bool:
        """Whether the next character always decides, and the longest terminal is always right."""
        self._settle_firsts()
        found = {name: self._check(self._rules[name], self._follows[name]) for name in self._waiting}
        return all(found.values())

    def _settle_firsts(self) -> None:
        users: dict[str, set[str]] = {name: set() for name in self._rules}
        for name, node in self._rules.items():
            for each in references(node):
                users[each].add(name)
        waiting = Waiting(self._rules)
        for name in waiting:
            before = self._firsts[name], self._nullable[name]
            self._firsts[name], self._nullable[name] = self._first(self._rules[name])
            if (self._firsts[name], self._nullable[name]) != before:
                waiting.add(users[name])

    def _first(self, node: Node) -> tuple[int, bool]:
        """The first characters of a node, and whether it may be empty."""
        if isinstance(node, Terminal):
            return node.first, node.is_nullable
        if isinstance(node, Reference):
            return self._firsts[node.name], self._nullable[node.name]
        parts = [self._first(part) for part in node.parts]
        if isinstance(node, Repeat):
            return parts[0][0], parts[0][1] or node.least == 0
        if isinstance(node, Alternatives):
            return union(first for first, _ in parts), any(is_nullable for _, is_nullable in parts)
        found = 0
        for first, is_nullable in parts:
            found |= first
            if not is_nullable:
                return found, False
        return found, True

    def _check(self, node: Node, follow: int) -> bool:
        """Whether a node is decided by the next character where these may follow it; notes what may follow rules."""
        if isinstance(node, Terminal):
            return not node.after & follow and not (node.is_nullable and node.first & follow)
        if isinstance(node, Reference):
            if follow & ~self._follows[node.name]:
                self._follows[node.name] |= follow
                self._waiting.add([node.name])
            return True
        if isinstance(node, Repeat):
            first, is_nullable = self._first(node.parts[0])
            is_decided = node.least == node.most or not first & follow
            is_fine = self._check(node.parts[0], follow | first if node.most != 1 else follow)
            return is_fine and is_decided and not is_nullable
        if isinstance(node, Alternatives):
            return self._check_choice(node, follow)
        return self._check_series(node.parts, follow)

    def _check_series(self, parts: tuple[Node, ...], follow: int) -> bool:
        """All parts are visited, also after one that fails: what may follow rules is noted on the way."""
        is_fine = True
        for part in reversed(parts):
            is_fine &= self._check(part, follow)
            first, is_nullable = self._first(part)
            follow = first | follow if is_nullable else first
        return is_fine

    def _check_choice(self, node: Alternatives, follow: int) -> bool:
        firsts = [self._first(part) for part in node.parts]
        n_empty = sum(is_nullable for _, is_nullable in firsts)
        together = union(first for first, _ in firsts)
        is_apart = sum(first.bit_count() for first, _ in firsts) == together.bit_count()
        is_decided = is_apart and n_empty <= 1 and not (n_empty and together & follow)
        found = [self._check(part, follow) for part in node.parts]
        return all(found) and is_decided


class Waiting:
    """Names to be looked at, each once, and again when it is added."""

    def __init__(self, names: Iterable[str]):
        self._names = deque(names)
        self._is_waiting = set(self._names)

    def add(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self._is_waiting]
        self._names.extend(new)
        self._is_waiting.update(new)

    def __iter__(self) -> Iterator[str]:
        while self._names:
            name = self._names.popleft()
            self._is_waiting.discard(name)
            yield name


def union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found

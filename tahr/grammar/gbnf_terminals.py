"""Which parts of a recursive GBNF grammar may be terminals that are matched greedily, without losing a text.

Parts that are not recursive are candidates. The grammar over them is checked like one for a parser that looks one
character ahead (LL(1)): where there is a choice, the first characters of its branches differ, so that at every place
the next character says which terminal begins. And no character that can continue a complete terminal may follow it, so
that taking the longest one is always right. Sets of characters are whole numbers: one bit for each range of characters
that the grammar does not tell apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from tahr.grammar.gbnf_parser import UNBOUNDED, Alternatives, Class, Node, Range, Reference, Repeat, Series

MAX_STATES = 3000


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


def split_terminals(rules: dict[str, Node], recursive: set[str]) -> Split | None:
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

    def __init__(self, rules: dict[str, Node], recursive: set[str]):
        self._rules, self._recursive = rules, recursive
        self._atoms = atoms(each for node in rules.values() for each in classes(node))
        self.terminals: list[Terminal] = []

    def split(self, node: Node) -> Node:
        """The same node over terminals."""
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
        known = next((each for each in self.terminals if each.node == node), None)
        if known is None:
            machine = Automaton(self._rules, self._atoms)
            first, after, is_nullable = machine.facts(node)
            known = Terminal(f"T_{len(self.terminals)}", node, first, after, is_nullable)
            self.terminals.append(known)
        return known  # type: ignore[return-value]


def classes(node: Node) -> Iterable[Class]:
    if isinstance(node, Class):
        yield node
    for part in node.parts:
        yield from classes(part)


def atoms(found: Iterable[Class]) -> list[Range]:
    """The ranges of characters between all borders of all classes."""
    borders = {edge for each in found for first, last in each.ranges for edge in (first, last + 1)}
    return [(first, following - 1) for first, following in pairwise(sorted(borders))]


class Automaton:
    """A part of a grammar as states with characters between them."""

    def __init__(self, rules: dict[str, Node], alphabet: list[Range]):
        self._rules, self._alphabet = rules, alphabet
        self._silent: list[list[int]] = []  # by state: where it goes without a character
        self._moves: list[list[tuple[int, int]]] = []  # by state: characters, and where they lead

    def facts(self, node: Node) -> tuple[int, int, bool]:
        """Characters it may begin with, characters that may continue a complete text, and whether it may be empty."""
        begin, end = self._state(), self._state()
        self._add(node, begin, end)
        start = self._closure([begin])
        after, seen, waiting = 0, {start}, [start]
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
        found, waiting = set(states), list(states)
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
        if isinstance(node, Class):
            self._moves[begin].append((self._set(node), end))
        elif isinstance(node, Reference):
            self._add(self._rules[node.name], begin, end)
        elif isinstance(node, Repeat):
            self._add_repeat(node, begin, end)
        elif isinstance(node, Alternatives):
            for part in node.parts:
                self._add(part, begin, end)
        else:
            for part in node.parts:
                following = self._state()
                self._add(part, begin, following)
                begin = following
            self._silent[begin].append(end)

    def _add_repeat(self, node: Repeat, begin: int, end: int) -> None:
        n_times = node.least if node.most == UNBOUNDED else node.most
        at = self._state()
        self._silent[begin].append(at)
        for i in range(n_times):
            if i >= node.least:
                self._silent[at].append(end)
            following = self._state()
            self._add(node.parts[0], at, following)
            at = following
        if node.most == UNBOUNDED:
            again = self._state()
            self._add(node.parts[0], at, again)
            self._silent[again].append(at)
        self._silent[at].append(end)

    def _set(self, node: Class) -> int:
        found = 0
        for i, (first, _) in enumerate(self._alphabet):
            found |= any(low <= first <= high for low, high in node.ranges) << i
        return found


def bits(number: int) -> Iterable[int]:
    while number:
        lowest = number & -number
        yield lowest
        number ^= lowest


# ---- one character ahead --------------------------------------------------------------------------------------------


class Lookahead:
    """What a grammar over terminals may begin with, and what may follow its rules."""

    def __init__(self, rules: dict[str, Node]):
        self._rules = rules
        self._firsts = dict.fromkeys(rules, 0)
        self._nullable = dict.fromkeys(rules, False)
        self._follows = dict.fromkeys(rules, 0)

    def holds(self) -> bool:
        """Whether the next character always decides, and the longest terminal is always right."""
        self._settle_firsts()
        while True:
            before = dict(self._follows)
            found = [self._check(node, self._follows[name]) for name, node in self._rules.items()]
            if self._follows == before:
                return all(found)

    def _settle_firsts(self) -> None:
        while True:
            before = dict(self._firsts), dict(self._nullable)
            for name, node in self._rules.items():
                self._firsts[name], self._nullable[name] = self._first(node)
            if (self._firsts, self._nullable) == before:
                return

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
            self._follows[node.name] |= follow
            return True
        if isinstance(node, Repeat):
            first, is_nullable = self._first(node.parts[0])
            is_decided = node.least == node.most or not first & follow
            is_fine = self._check(node.parts[0], follow | first if node.most != 1 else follow)
            return is_fine and is_decided and not is_nullable
        if isinstance(node, Alternatives):
            return self._check_choice(node, follow)
        # All parts are visited, also after one that fails: what may follow rules is noted on the way.
        found = [self._check(part, self._follow(node.parts[i + 1 :], follow)) for i, part in enumerate(node.parts)]
        return all(found)

    def _check_choice(self, node: Alternatives, follow: int) -> bool:
        firsts = [self._first(part) for part in node.parts]
        n_empty = sum(is_nullable for _, is_nullable in firsts)
        together = union(first for first, _ in firsts)
        is_apart = sum(first.bit_count() for first, _ in firsts) == together.bit_count()
        is_decided = is_apart and n_empty <= 1 and not (n_empty and together & follow)
        found = [self._check(part, follow) for part in node.parts]
        return all(found) and is_decided

    def _follow(self, rest: tuple[Node, ...], follow: int) -> int:
        first, is_nullable = self._first(Series(rest))
        return first | follow if is_nullable else first


def union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found

"""The door for JSON schemas: what a grammar cannot enforce exactly is refused by name, and some of the rest rewritten.

llguidance compiles what is left exactly: of the JSON-Schema-Test-Suite, all valid instances of the schemas that pass
are accepted and all invalid ones rejected (docs/json-schema.md).
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

from tahr.errors import GrammarError
from tahr.grammar.ecma_regex import to_rust
from tahr.grammar.formats import EXACT, KNOWN_TO_LLGUIDANCE, REFUSED

Schema = dict[str, Any]

MAX_DEPTH = 64
MAX_COPIED = 1 << 16  # values in branches of oneOf that stand in place of references
LEAST_COPIED = 32  # values that a branch counts for at least: a small one takes time, too
MAX_EXACT = 2**53  # llguidance's numbers are doubles
MAX_SHOWN = 200  # letters of a place
MOVED = "tahr.place."  # beginning of all names of definitions
WHOLE = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TINY = 1e-6  # share of the distance between two bounds
# A bound that is not allowed itself, the name of one that is, those on the other side, and the way to them.
OPEN_BOUNDS = (
    ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1),
    ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1),
)
OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")  # parts of their names

SCHEMAS = ("additionalProperties", "additionalItems", "items")  # keywords that hold a schema,
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")  # schemas in a list,
MAPS = ("properties", "patternProperties", "$defs", "definitions")  # fields with schemas by name
# fields with schemas of the value itself, where the others describe its parts
OF_THE_SAME = ("allOf", "anyOf", "oneOf")
UNENFORCED = {
    "not": "say what is allowed instead",
    "if": "write the cases as anyOf",
    "then": "write the cases as anyOf",
    "else": "write the cases as anyOf",
    "contains": "use items",
    "minContains": "use items",
    "maxContains": "use items",
    "uniqueItems": "leave it out and check the result",
    "propertyNames": "use patternProperties",
    "dependencies": "write the cases as anyOf",
    "dependentRequired": "write the cases as anyOf",
    "dependentSchemas": "write the cases as anyOf",
    "unevaluatedItems": "use items: false",
    "unevaluatedProperties": "use additionalProperties: false",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $ref",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $ref",
}


class SchemaRefused(GrammarError):
    """A schema is refused because of a part of it."""

    def __init__(self, place: str, problem: str):
        shown = place if len(place) <= MAX_SHOWN else f"{place[:MAX_SHOWN]}..."
        super().__init__(f"The schema at #{shown} {problem}.")
        self.place = place  # a pointer
        self.problem = problem


# Keywords of the above that ask nothing without another one, or with one of these values.
NEED = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
ASK_UNLESS_FALSE = ("not", "uniqueItems")
ASK_UNLESS_EMPTY = (
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
)


def asks_nothing(keyword: str, value: Any, schema: Schema) -> bool:
    """Whether a keyword may as well be left out."""
    if keyword in NEED:
        return not schema.keys() & {*NEED[keyword]}
    is_empty = value is True or value == {}
    return value is False if keyword in ASK_UNLESS_FALSE else is_empty and keyword in ASK_UNLESS_EMPTY


def checked_schema(schema: Any) -> Any:
    """The schema as llguidance gets it."""
    return check_of(schema).whole()


def check_of(schema: Any) -> "Check":
    is_old = isinstance(schema, dict) and any(name in str(schema.get("$schema")) for name in OLD_DRAFTS)
    return Check(schema, is_old)


class Check:
    """One schema under way; `is_old` ones ignore what stands beside `$ref`."""

    def __init__(self, root: Any, is_old: bool):
        self._root = root
        self._is_old = is_old
        self._n_named = 0  # schemas around this one that have a name of their own, where pointers mean other places
        self._moved: dict[str, str] = {}  # references to places that no keyword leads to, and the new ones
        self._origins: dict[str, str] = {}  # the same the other way round
        self._copied: tuple[str, ...] = ()  # references that branches under way have replaced, the outermost first
        self._is_inside = False  # a value in that of such a branch
        self._n_values: dict[str, int] = {}  # counts by reference
        self._n_copied = 0

    def whole(self) -> Any:
        """The schema, and beside its definitions those that it has elsewhere, such as in `components`."""
        made = self.schema(self._root, "", 0)
        found: Schema = {}
        while len(found) < len(self._moved):  # definitions may refer to others
            reference = [*self._moved][len(found)]
            target = self.resolved(reference)
            path = reference.removeprefix("#")
            if isinstance(target, dict) and "$id" in target:
                raise refused(path, "has an $id where no keyword leads to", "put it under $defs")
            found[self._moved[reference].rpartition("/")[2]] = self.schema(target, path, 0)
        definitions = made.get("$defs", {}) if found else None
        if not isinstance(definitions, dict):
            return made
        if taken := found.keys() & definitions.keys():
            raise refused(f"/$defs/{min(taken)}", "has a name that is needed", "call it something else")
        return {**made, "$defs": {**definitions, **found}}

    def schema(self, schema: Any, path: str, depth: int) -> Any:
        """A schema or a part of it, rewritten."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise refused(path, "is no schema", "a schema is an object, true or false")
        if depth > MAX_DEPTH:
            raise refused(path, f"is nested more than {MAX_DEPTH} deep", "make it flatter, or use $ref")
        if self._is_inside and "oneOf" in schema:
            # The reference is resolved there, and may be where this one came from.
            return {"$ref": self._reference(f"#{path}", path)}
        if self._is_old and isinstance(schema.get("$ref"), str):
            schema = {key: value for key, value in schema.items() if key in ("$ref", "definitions", "$defs", "$schema")}
        schema = {key: value for key, value in schema.items() if not asks_nothing(key, value, schema)}
        for keyword, advice in UNENFORCED.items():
            if keyword in schema:
                raise refused(path, f"uses {keyword}, which a grammar cannot enforce", advice)
        is_named = depth > 0 and not str(schema.get("$id", "#")).startswith("#")
        self._n_named += is_named
        made = {key: self._value(key, value, f"{path}/{key}", depth) for key, value in schema.items()}
        if isinstance(schema.get("$ref"), str):
            made["$ref"] = self._reference(schema["$ref"], path)
        self._n_named -= is_named
        for rewrite in REWRITES:
            rewrite(made, path, self)
        if isinstance(made.get("oneOf"), list):
            made["oneOf"] = [self._branch(branch, depth) for branch in made["oneOf"]]
        return made

    def _value(self, keyword: str, value: Any, path: str, depth: int) -> Any:
        was_inside = self._is_inside
        self._is_inside = bool(self._copied) and (was_inside or keyword not in OF_THE_SAME)
        made = self._schemas_in(keyword, value, path, depth)
        self._is_inside = was_inside
        return made

    def _schemas_in(self, keyword: str, value: Any, path: str, depth: int) -> Any:
        if keyword in MAPS and isinstance(value, dict):
            if keyword == "patternProperties":
                value = {rust(name, path): each for name, each in value.items()}
            return {name: self.schema(each, f"{path}/{pointer(name)}", depth + 1) for name, each in value.items()}
        if keyword in LISTS and isinstance(value, list):
            return [self.schema(each, f"{path}/{i}", depth + 1) for i, each in enumerate(value)]
        return self.schema(value, path, depth + 1) if keyword in SCHEMAS else value

    def _reference(self, reference: str, path: str) -> str:
        """A reference as it is, or to where the schema will be that it refers to, if the walk does not come there."""
        document, _, place = reference.partition("#")
        if not place.startswith("/"):
            return reference
        is_elsewhere = bool(document or self._n_named)
        if not is_elsewhere and not isinstance(self.resolved(reference), dict | bool):
            raise refused(path, f"refers to {reference[:MAX_SHOWN]}, where no schema is", "correct the $ref")
        is_led_to = is_walked(parts_of(place))
        if is_elsewhere and not is_led_to:
            raise refused(path, f"refers to {reference[:MAX_SHOWN]}, where no keyword leads to", "put it under $defs")
        if not is_elsewhere:
            reference = "".join(["#", *(f"/{pointer(part)}" for part in parts_of(place))])
        if is_led_to:
            return reference
        moved = self._moved.setdefault(reference, f"#/$defs/{MOVED}{len(self._moved) + 1}")
        self._origins[moved] = reference
        return moved

    def _branch(self, branch: Any, depth: int) -> Any:
        """llguidance tells branches of oneOf apart where it sees them, but not through $ref."""
        reference = branch.get("$ref") if isinstance(branch, dict) and branch.keys() == {"$ref"} else None
        reference = self._origins.get(str(reference), reference)
        if not isinstance(reference, str) or reference in self._copied:
            return branch
        found = self.resolved(reference)
        if not isinstance(found, dict) or "$id" in found or "$ref" in found:
            return branch
        self._count(reference, found)
        before = self._copied, self._is_inside
        self._copied = (*self._copied, reference)
        self._is_inside = False
        made = self.schema(found, reference.removeprefix("#"), depth + 1)
        self._copied, self._is_inside = before
        return made

    def _count(self, reference: str, found: Schema) -> None:
        """Refuse what would grow without measure: branches refer to others, each of them more than once."""
        self._n_values[reference] = self._n_values.get(reference) or sum(1 for _ in values_in(found))
        self._n_copied += max(self._n_values[reference], LEAST_COPIED)
        if self._n_copied > MAX_COPIED:
            raise refused(reference.removeprefix("#"), "is repeated in too many branches of oneOf", "use anyOf")

    def resolved(self, reference: str) -> Any:
        """The target of a pointer into this schema; None if there is none."""
        return part_at(self._root, parts_of(reference[1:])) if reference.startswith("#/") else None

    def origin_of(self, place: str) -> str:
        """Where in the schema as it was given something is."""
        new, origin = next((each for each in self._origins.items() if f"#{place}/".startswith(f"{each[0]}/")), ("", ""))
        return origin[1:] + place[len(new) - 1 :] if new else place

    @property
    def is_old(self) -> bool:
        return self._is_old


def refused(path: str, what: str, advice: str) -> SchemaRefused:
    return SchemaRefused(path, f"{what}: {advice}")


def rust(pattern: str, path: str) -> str:
    try:
        return to_rust(pattern)
    except GrammarError as error:
        why = str(error).removesuffix(".")
        raise SchemaRefused(path, f"has a pattern that a grammar cannot enforce. {why}") from None


def pointer(name: str) -> str:
    """A name as a part of a pointer in a URI."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~!$&'()*+,;=:@")


def parts_of(place: str) -> list[str]:
    """The names in such a pointer."""
    return [unquote(part).replace("~1", "/").replace("~0", "~") for part in place.split("/")[1:]]


def part_at(value: Any, parts: list[str]) -> Any:
    """The value at a place; None if there is none."""
    for part in parts:
        if isinstance(value, list):
            value = value[int(part)] if is_index(part) and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def is_index(part: str = "") -> bool:
    return part.isdecimal() and len(part) < 8


def is_walked(parts: list[str]) -> bool:
    """Whether keywords lead to a place, so that what is there is checked anyway."""
    at = 0
    while at < len(parts):
        is_in_list = parts[at] in LISTS and is_index(*parts[at + 1 : at + 2])
        if not is_in_list and parts[at] not in (*MAPS, *SCHEMAS):
            return False
        at += 2 if is_in_list or parts[at] in MAPS else 1
    return at == len(parts)


# ---- rewrites, each of one schema without those inside it ------------------------------------------------------


def rewrite_pattern(schema: Schema, path: str, check: Check) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = rust(schema["pattern"], path)


def rewrite_format(schema: Schema, path: str, check: Check) -> None:
    """A format becomes a pattern; one that JSON schema does not define is an annotation."""
    name = schema.pop("format", "")
    if not isinstance(name, str):
        raise refused(path, "has a format that is no text", "write a name such as date")
    if name in REFUSED:
        raise refused(path, f"has the format {name}, which a grammar cannot enforce", "describe it by a pattern")
    if name in KNOWN_TO_LLGUIDANCE:
        schema["format"] = name
    elif name in EXACT:
        pattern = f"^{EXACT[name]()}$"
        if "pattern" not in schema:
            schema["pattern"] = pattern
        elif isinstance(schema.setdefault("allOf", []), list):  # llguidance says why another type is wrong
            schema["allOf"] = [*schema["allOf"], {"pattern": pattern}]


def rewrite_numbers(schema: Schema, path: str, check: Check) -> None:
    """2.0 is a whole number in JSON schema; numbers that doubles do not hold are refused."""
    for name in WHOLE:
        value = schema.get(name)
        if isinstance(value, float) and value.is_integer():
            schema[name] = int(value)
    values = [schema[name] for name in NUMBERS if name in schema]
    values += [schema["const"]] if "const" in schema else []
    values += schema["enum"] if isinstance(schema.get("enum"), list) else []
    for value in values:
        if is_inexact(value):
            raise refused(path, "has a number beyond 2^53, which a grammar cannot enforce", "use a string")


def rewrite_bounds(schema: Schema, path: str, check: Check) -> None:
    """Above 0 and up to 0.5: llguidance would allow a whole bound itself where the other one only adds digits to it.

    So the bound is moved by less than anybody writes.
    """
    for excluded, included, others, sign in OPEN_BOUNDS:
        bound: Any = schema.get(excluded)
        ends = [schema[name] for name in others if name in schema]
        numbers = (bound, schema.get(included, 0), *ends)
        if not ends or any(type(each) not in (int, float) for each in numbers) or not float(bound).is_integer():
            continue
        end = min(ends, key=lambda each: sign * each)
        gap = sign * (end - bound)
        if 0 < gap < 1 and sign * bound >= 0:
            del schema[excluded]
            moved = bound + sign * gap * TINY
            schema[included] = max(moved, schema.get(included, moved), key=lambda each: sign * each)


def is_inexact(value: Any) -> bool:
    """Whether it is or holds such a number."""
    return any(isinstance(each, int) and abs(each) > MAX_EXACT for each in values_in(value))


def values_in(value: Any) -> Iterator[Any]:
    """The value and all it holds. Without recursion: a constant may be lists in lists without end."""
    left = [value]
    while left:
        yield (each := left.pop())
        if isinstance(each, dict | list):
            left += each.values() if isinstance(each, dict) else each


def check_min_properties(schema: Schema, path: str, check: Check) -> None:
    """Keys that are not listed could be written twice, and then count once."""
    least = schema.get("minProperties")
    required = schema.get("required")
    n_required = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, n_required):
        advice = "list the properties, and those that must be there as required"
        raise refused(path, f"has minProperties {least}, which a grammar cannot enforce", advice)


def check_content(schema: Schema, path: str, check: Check) -> None:
    """Encoded content is an annotation, but in draft 7 it may be more; what it holds is no schema of this text."""
    schema.pop("contentSchema", None)
    for name in ("contentMediaType", "contentEncoding"):
        if check.is_old and name in schema:
            raise refused(path, f"uses {name}, which a grammar cannot enforce", "leave it out, or describe a pattern")


REWRITES: tuple[Callable[[Schema, str, Check], None], ...] = (
    rewrite_pattern,
    rewrite_format,
    rewrite_numbers,
    rewrite_bounds,
    check_min_properties,
    check_content,
)

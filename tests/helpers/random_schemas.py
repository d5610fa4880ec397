"""Random JSON schemas as people write them for replies of models, and random values that fit them."""

import random
import string
from typing import Any

Schema = dict[str, Any]

NAMES = [
    "name",
    "title",
    "city",
    "street",
    "email",
    "age",
    "count",
    "price",
    "rating",
    "items",
    "tags",
    "status",
    "note",
    "author",
    "year",
    "month",
    "is_active",
    "score",
    "category",
    "description",
    "address",
    "first_name",
    "last_name",
    "kind",
    "value",
    "total",
    "currency",
    "language",
    "country",
    "phone",
    "options",
    "id",
]
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "while",
    "seven",
    "small",
    "wizards",
    "box",
    "grey",
    "rabbits",
    "near",
    "old",
    "harbour",
    "and",
    "Zoë",
    "sings",
    "über",
    "München's",
    "café,",
    "42",
    "times;",
    "nobody",
    "listens.",
    "Blue",
    "lamps",
    "glow:",
    "a",
    "storm",
    "begins",
]
PATTERNS = {"^[A-Z]{3}-[0-9]{4}$": "ABC-1234", "^#[0-9a-f]{6}$": "#00ff7f", "^(yes|no|maybe)$": "maybe"}
FORMATS = {
    "date": "2024-02-29",
    "time": "12:30:00Z",
    "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
    "ipv4": "10.0.0.1",
    "date-time": "2024-01-05T07:08:09Z",
    "email": "ann.lee@example.com",
}


def schema(rng: random.Random, depth: int = 3) -> Schema:
    """An object with some properties."""
    return object_schema(rng, depth)


def any_schema(rng: random.Random, depth: int) -> Schema:
    kinds = [string_schema, number_schema, choice_schema, plain_schema]
    kinds += [object_schema, array_schema, union_schema] if depth > 0 else []
    return rng.choice(kinds)(rng, depth)


def object_schema(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 5))
    required = [name for name in names if rng.random() < 0.8]
    return {
        "type": "object",
        "properties": {name: any_schema(rng, depth - 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def array_schema(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": any_schema(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }


def string_schema(rng: random.Random, depth: int) -> Schema:
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(list(PATTERNS))}
    if kind == 1:
        return {"type": "string", "format": rng.choice(list(FORMATS))}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.choice([0, 5, 20, 40])}


def number_schema(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(-1000, 1000)
    bounds = {"minimum": low, "maximum": low + rng.choice([0, 1, 50, 12345])}
    if rng.random() < 0.3:
        return {"type": "number", **bounds}
    return {"type": "integer", **bounds}


def choice_schema(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.2:
        return {"const": rng.choice([None, 5, "fixed", True, [1, "a"]])}
    return {"enum": rng.sample(["red", "green", "a b", 'quo"te', 7, 2.5, None, True, "日本"], rng.randint(1, 4))}


def plain_schema(rng: random.Random, depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null", "integer", ["integer", "null"]]), "minimum": -99, "maximum": 99}


def union_schema(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [any_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}


# ---- values ---------------------------------------------------------------------------------------------------------


def value(rng: random.Random, of: Schema) -> Any:
    """A value that fits a schema made here."""
    if "anyOf" in of:
        return value(rng, rng.choice(of["anyOf"]))
    if "enum" in of:
        return rng.choice(of["enum"])
    if "const" in of:
        return of["const"]
    kind = of["type"] if isinstance(of["type"], str) else rng.choice(of["type"])
    if kind == "object":
        kept = [name for name in of["properties"] if name in of["required"] or rng.random() < 0.5]
        return {name: value(rng, of["properties"][name]) for name in kept}
    if kind == "array":
        return [value(rng, of["items"]) for _ in range(rng.randint(of["minItems"], of["maxItems"]))]
    if kind == "string":
        return text(rng, of)
    return {"boolean": True, "null": None}.get(kind, rng.randint(of["minimum"], of["maximum"]))


def text(rng: random.Random, of: Schema) -> str:
    if "pattern" in of:
        return PATTERNS[of["pattern"]]
    if "format" in of:
        return FORMATS[of["format"]]
    words = " ".join(rng.choice(WORDS) for _ in range(10))[: rng.randint(of["minLength"], of["maxLength"])]
    return words + "".join(rng.choice(string.ascii_letters) for _ in range(of["minLength"] - len(words)))

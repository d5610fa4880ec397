"""Random schemas as OpenAPI's descriptions have them, with components that refer to each other, and values to judge."""

import random
from typing import Any

Schema = dict[str, Any]

NAMES = ["id", "name", "tags", "kind", "owner", "size", "note", "a/b", "50%", "é"]
PATTERNS = {"^[A-Z]{3}-[0-9]{4}$": "ABC-1234", "^#[0-9a-f]{6}$": "#00ff7f", "b+": "abba"}
FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-01-05T07:08:09Z",
    "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
    "ipv4": "10.0.0.1",
    "email": "ann.lee@example.com",
    "uri": "https://a.example/x?y=1",
}
NOTES = ["int32", "password", "url", "binary"]  # formats that JSON schema does not define
PLAIN = ["", "a", "abba", "ABC-1234", "#00ff7f", "red", "a text that is longer than the others", *FORMATS.values()]
UNENFORCED: tuple[Schema, ...] = (
    {"type": "array", "uniqueItems": True},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "string", "format": "hostname"},
    {"type": "object", "minProperties": 3},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"type": "string", "pattern": r"^\bword"},
    {"type": "integer", "minimum": 9, "maximum": 3},
    {"type": "integer", "maximum": 2**63 - 1},
)


class Maker:
    """One description: places for components, and schemas that refer to them."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.place = rng.choice(["components/schemas", "components/schemas", "$defs", "x-models", "definitions"])
        self.names = [f"{rng.choice(['Pet', 'User', 'a/b', 'Ü 1'])}{i}" for i in range(rng.randint(1, 4))]

    def description(self) -> Schema:
        components = {name: self.component(i) for i, name in enumerate(self.names)}
        outer, _, inner = self.place.partition("/")
        return {**self.refer(0), outer: {inner: components} if inner else components}

    def refer(self, i: int) -> Schema:
        name = self.names[i].replace("/", "~1").replace(" ", "%20")
        return {"$ref": f"#/{self.place}/{name}"}

    def component(self, i: int) -> Schema:
        rng = self.rng
        if i and rng.random() < 0.3:
            return self.leaf()
        if i + 2 < len(self.names) and rng.random() < 0.2:
            return {rng.choice(["anyOf", "oneOf"]): [self.tagged("one", i), self.tagged("two", i)]}
        return self.object(i, depth=2)

    def tagged(self, kind: str, i: int) -> Schema:
        made = {"type": "object", "properties": {"kind": {"const": kind}, "size": self.leaf()}, "required": ["kind"]}
        return {**made, "additionalProperties": False}

    def object(self, i: int, depth: int) -> Schema:
        rng = self.rng
        names = rng.sample(NAMES, rng.randint(1, 3))
        properties = {name: self.any(i, depth - 1) for name in names}
        made: Schema = {"type": "object", "properties": properties}
        made["required"] = [name for name in names if rng.random() < 0.5 and not refers(properties[name])]
        if rng.random() < 0.7:
            made["additionalProperties"] = rng.choice([False, False, {"type": "integer", "minimum": 0}])
        return made

    def any(self, i: int, depth: int) -> Schema:
        rng = self.rng
        kind = rng.randrange(9 if depth > 0 else 5)
        if kind < 3:
            return self.leaf()
        if kind == 3:
            return {"anyOf": [self.leaf(), {"type": "null"}]}
        if kind == 4:
            return self.refer(rng.randrange(len(self.names)))
        if kind == 5:
            return {"type": "array", "items": self.any(i, depth - 1), "maxItems": rng.randint(1, 3)}
        if kind == 6:
            return {"allOf": [self.object(i, 1), {"type": "object", "properties": {"size": {"type": "integer"}}}]}
        return self.object(i, depth)

    def leaf(self) -> Schema:
        rng = self.rng
        if rng.random() < 0.03:
            return dict(rng.choice(UNENFORCED))
        return rng.choice(LEAVES)(rng)


def refers(schema: Any) -> bool:
    return "$ref" in repr(schema)


LEAVES = (
    lambda rng: {"type": "string", "format": rng.choice([*FORMATS, *NOTES])},
    lambda rng: {"type": "string", "pattern": rng.choice([*PATTERNS])},
    lambda rng: {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 9)},
    lambda rng: {"enum": rng.sample(["red", "green", 7, None, True], rng.randint(1, 3))},
    lambda rng: {"type": "integer", "minimum": rng.randint(-5, 3), "maximum": rng.randint(3, 9), "format": "int64"},
    lambda rng: {"type": "number", "exclusiveMinimum": rng.randint(-5, 3), "example": 2, "title": "A size"},
    lambda rng: {"type": rng.choice(["boolean", ["integer", "null"], ["string", "boolean"]]), "default": None},
)


class Values:
    """Values that mostly fit a description, and such with one part changed."""

    def __init__(self, rng: random.Random, root: Schema):
        self.rng = rng
        self.root = root

    def value(self, schema: Any, depth: int = 0) -> Any:
        rng = self.rng
        if not isinstance(schema, dict) or depth > 6:
            return rng.choice([None, 3, "a", True])
        if "$ref" in schema:
            return self.value(self.found(schema["$ref"]), depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self.value(rng.choice(schema[keyword]), depth + 1)
        if "allOf" in schema:
            parts = [self.value(part, depth + 1) for part in schema["allOf"]]
            return {key: each for part in parts if isinstance(part, dict) for key, each in part.items()}
        if "const" in schema or "enum" in schema:
            return rng.choice(schema.get("enum") or [schema.get("const")])
        kind = schema.get("type")
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            return [
                self.value(schema.get("items"), depth + 1) for _ in range(rng.randint(0, schema.get("maxItems", 2)))
            ]
        if kind == "string":
            known = FORMATS.get(schema.get("format", "")) or PATTERNS.get(schema.get("pattern", ""))
            return known if known and rng.random() < 0.8 else rng.choice(PLAIN)
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        return {"boolean": False, "null": None}.get(str(kind), low + rng.choice([0, 1, 2, 0.5]))

    def object(self, schema: Schema, depth: int) -> Any:
        rng = self.rng
        needed = schema.get("required", [])
        likely = 0.6 if depth < 3 else 0.1
        names = [name for name in schema.get("properties", {}) if name in needed or rng.random() < likely]
        made = {name: self.value(schema["properties"][name], depth + 1) for name in names}
        return made | ({"more": 1} if rng.random() < 0.15 else {})

    def found(self, reference: str) -> Any:
        value: Any = self.root
        for part in reference.split("/")[1:]:
            value = value[part.replace("%20", " ").replace("~1", "/")]
        return value

    def changed(self, value: Any) -> Any:
        """The value with one part that is something else."""
        rng = self.rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            name = rng.choice([*value])
            if rng.random() < 0.25:
                return {key: each for key, each in value.items() if key != name}
            return {**value, name: self.changed(value[name])}
        if isinstance(value, list) and value and rng.random() < 0.8:
            return [self.changed(value[0]), *value[1:]]
        return rng.choice([None, True, -1, 2.5, 99, [], {}, *PLAIN])

"""What others build on: public names, verbs and options, routes and fields.

A release records it, and a test holds the next one to it.

usage: python scripts/surface.py > tests/style/surface.json
"""

import inspect
import json
from typing import Any

import tahr
from tahr.cli.shell.option_table import verb_table
from tahr.server.routes import ROUTES

Surface = dict[str, list[str]]


def surface() -> Surface:
    """Everything public, as names below a heading."""
    return dict(sorted({**library(), **verbs(), **routes()}.items()))


def library() -> Surface:
    found = {}
    for name in tahr.__all__:
        value = getattr(tahr, name)
        if inspect.isclass(value):
            found[f"tahr.{name}"] = sorted(members(value))
    return found


def members(value: type) -> list[str]:
    """Public attributes; callables with the names of their parameters."""
    found = [f"({each})" for each in parameters(value)]
    for name in dir(value):
        if name.startswith("_") or hasattr(Exception, name):
            continue
        member = inspect.getattr_static(value, name)
        called = getattr(member, "__func__", member)
        found += [f"{name}({each})" for each in parameters(called)] if inspect.isfunction(called) else []
        found.append(name)
    return found


def parameters(called: Any) -> list[str]:
    try:
        names = list(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in ("self", "cls", "args", "kwargs")]


def verbs() -> Surface:
    return {
        f"tahr {name}": sorted(flag for option in row.options for flag in option.flags)
        for row in verb_table()
        for name in row.names
    }


def routes() -> Surface:
    found = {}
    for route in ROUTES:
        for path in (route.path, *route.aliases):
            found[f"{route.method} {path}"] = sorted(f"takes {each}" for each in fields(route.takes)) + sorted(
                f"gives {each}" for each in fields(route.gives)
            )
    return found


def fields(body: type | None) -> tuple[str, ...]:
    return tuple(getattr(body, "__struct_fields__", ()))


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1))

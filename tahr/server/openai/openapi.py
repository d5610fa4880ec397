"""The description of this API, made of the same tables and structs that answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tahr import __version__
from tahr.server.openai.openapi_constraints import tighten

if TYPE_CHECKING:
    from tahr.server.state.route import Route

REFERENCE = "#/components/schemas/{name}"
FORM = "multipart/form-data"
STREAMED = "text/event-stream"
LINE: dict[str, Any] = {"type": "object", "description": "One of several lines, each JSON."}
EVENT = {  # each of them
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "A chunk, or an error, as JSON; `[DONE]` ends chats and completions."}
    },
    "required": ["data"],
}


def document(routes: "Sequence[Route]") -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types = {each for route in routes for each in (route.takes, route.gives, route.errors) if each}
    ordered = sorted(types, key=lambda each: each.__name__)
    references, schemas = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    tighten(schemas, {route.takes for route in routes if route.takes})
    known = dict(zip(ordered, references, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(shown_path(route), {})[route.method.lower()] = operation(route, known)
    keys = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tahr", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": keys},
    }


def shown_path(route: "Route") -> str:
    return route.path + "{id}" if route.path.endswith("/") and route.path != "/" else route.path


def operation(route: "Route", known: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """One route: what it takes, gives, and how it refuses."""
    good: dict[str, Any] = {"description": "success"}
    if route.gives:
        good["content"] = {"application/json": {"schema": known[route.gives]}}
        if "stream" in getattr(route.takes, "__struct_fields__", ()):
            good["content"][route.streams] = {"schema": EVENT if route.streams == STREAMED else LINE}
    refused = {"description": "refused", "content": {"application/json": {"schema": known[route.errors]}}}
    made: dict[str, Any] = {"summary": route.summary, "responses": {str(route.status): good, "default": refused}}
    if route.takes:
        content = {FORM if route.takes_form else "application/json": {"schema": known[route.takes]}}
        made["requestBody"] = {"required": True, "content": content}
    if "{id}" in shown_path(route):
        made["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    if not route.is_open:
        made["security"] = [{"bearer": []}, {}]
    return made

"""The parameters of a query, and the part of a list that they ask for."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest

INERT = ("include", "include[]", "api-version")  # parameters that ask for nothing that a reply here lacks
MAX_LISTED = 100


class ListPage(NamedTuple):
    """Places in a list whose oldest entry comes first."""

    places: list[int]
    has_more: bool


def query_of(request: HttpRequest, known: Sequence[str]) -> dict[str, str]:
    """The parameters of a query, each known and there once."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(request.query, keep_blank_values=True):
        if name in INERT:
            continue
        if name not in known:
            message = f"There is no parameter {name[:60]!r} here: leave it out."
            raise bad_field(name[:60], message, "unknown_parameter")
        if name in found:
            raise bad_field(name, f"{name} is there twice: send it once.")
        found[name] = value
    return found


def page_of(requested: dict[str, str], ids: Sequence[str], most: int = MAX_LISTED, default: int = 20) -> ListPage:
    """The part of a list that `limit`, `order` (desc) and `after` ask for."""
    limit = requested.get("limit", str(default))
    order = requested.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= most):
        raise bad_field("limit", f"limit must be a number from 1 to {most}.")
    if order not in ("asc", "desc"):
        raise bad_field("order", "order must be asc or desc.")
    places = list(range(len(ids)) if order == "asc" else range(len(ids) - 1, -1, -1))
    first = after(places, ids, requested["after"]) if "after" in requested else 0
    end = first + int(limit)
    return ListPage(places[first:end], end < len(places))


def after(places: Sequence[int], ids: Sequence[str], id: str) -> int:
    for i, place in enumerate(places):
        if ids[place] == id:
            return i + 1
    raise bad_field("after", f"after is {id[:80]!r}, which is not in this list: take an id of an earlier page.")

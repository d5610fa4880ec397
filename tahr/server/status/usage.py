"""/v1/usage: what a key has used."""

import sqlite3
from datetime import date, timedelta
from typing import Any

from msgspec import Struct

from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.query import query_of
from tahr.server.http.request import HttpRequest
from tahr.server.state.database import reason_of
from tahr.server.state.ledger import MAX_DAYS, as_facts
from tahr.server.state.state import ServerState

DEFAULT_DAYS = 30


class UsageReply(Struct):
    """Usage of a key by day and model, and its limits."""

    key: str
    day: str  # today, in UTC
    tokens_today: int
    tokens_per_day: int | None
    requests_per_minute: int | None
    models: list[str]  # none: all
    data: list[dict[str, Any]]
    object: str = "usage"


async def usage(request: HttpRequest, state: ServerState) -> None:
    """Usage of the key that asks, in the last `days` (30)."""
    account = request.account
    ledger = state.ledger
    n_days = days_of(request)
    tokens_today = ledger.used_today(account)
    first_day = date.fromisoformat(ledger.day) - timedelta(days=n_days - 1)
    try:
        found = ledger.of(account, first_day.isoformat())
    except sqlite3.Error as error:
        raise HttpError(503, f"Usage cannot be read now ({reason_of(error)}): try again later.") from error
    data = [{"day": day, "model": model, **as_facts(use)} for (day, model), use in found.items()]
    limits = account.tokens_per_day, account.requests_per_minute or state.settings.rate_limit
    made = UsageReply(account.name, ledger.day, tokens_today, *limits, list(account.models), data)
    await request.respond_json(made)


def days_of(request: HttpRequest) -> int:
    given = query_of(request, ("days",)).get("days", str(DEFAULT_DAYS))
    if not (given.isascii() and given.isdigit() and len(given) < 9 and 1 <= int(given) <= MAX_DAYS):
        raise bad_field("days", f"days must be a number from 1 to {MAX_DAYS}.")
    return int(given)

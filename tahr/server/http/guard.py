"""Who may ask: keys, origins, rates."""

import base64
import binascii
import hashlib
import hmac
import time
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tahr.server.http.errors import Refusal
from tahr.server.settings import LOOPBACK

if TYPE_CHECKING:
    from tahr.server.http.request import Call
    from tahr.server.settings import Settings

MAX_BUCKETS = 10_000
CORS_ALWAYS = {"access-control-allow-methods": "GET, POST, OPTIONS", "access-control-max-age": "600"}


def check_key(call: "Call") -> None:
    """The key must be one of ours; how long the comparison takes says nothing about how close it was."""
    keys = call.front.settings.api_keys
    if keys and not holds(keys, presented_key(call)):
        message = "The API key is missing or wrong: send it as `Authorization: Bearer KEY`."
        # Basic lets a browser ask for the key, as the password, before it shows the chat page.
        ask = 'Basic realm="tahr"' if call.path == "/" else "Bearer"
        raise Refusal(401, message, code="invalid_api_key", headers={"www-authenticate": ask})


def holds(keys: tuple[str, ...], key: str) -> bool:
    digest = hashlib.sha256(key.encode()).digest()
    # All keys are compared, whichever it is.
    return sum(hmac.compare_digest(digest, hashlib.sha256(each.encode()).digest()) for each in keys) > 0


def presented_key(call: "Call") -> str:
    scheme, _, rest = call.header("authorization").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return rest.strip() if scheme.lower() == "bearer" else ""


def check_origin(call: "Call") -> None:
    """A page of another site gets no answer and causes no work, unless its origin was allowed."""
    origin = call.header("origin")
    if not origin:
        return
    allowed = call.front.settings.cors_origins
    if origin in allowed or "*" in allowed:
        call.more_headers |= {"access-control-allow-origin": origin, "vary": "origin"}
    elif not is_own_page(call, origin):
        message = f"Pages of {origin} may not use this server: start it with --cors-origin {origin} to allow them."
        raise Refusal(403, message, code="origin_not_allowed")


def is_own_page(call: "Call", origin: str) -> bool:
    """Whether it came from this server: a name that somebody else made point to this machine does not count."""
    try:
        page = urlsplit(origin)
        known = not call.front.settings.is_local or page.hostname in LOOPBACK
    except ValueError:
        return False
    return known and page.netloc == call.header("host")


async def preflight(call: "Call") -> None:
    """What a browser asks before it sends a request from another site."""
    asked = call.header("access-control-request-headers")
    wanted = {"access-control-allow-headers": asked or "authorization, content-type"}
    await call.reply(b"", "text/plain", status=204, headers={**CORS_ALWAYS, **wanted})


def check_rate(call: "Call") -> None:
    """Each key, or each address where there are no keys, has its own allowance, and all have one together."""
    for limit, is_shared in call.front.rate_limits:
        who = "" if is_shared else presented_key(call) if call.front.settings.api_keys else call.client
        wait_s = limit.take(who)
        if wait_s:
            call.front.measures.rejected.add(())
            message = f"More than {limit.per_minute} requests a minute: wait {wait_s} seconds."
            raise Refusal(429, message, code="rate_limit_exceeded", headers={"retry-after": str(wait_s)})


def rate_limits(settings: "Settings") -> "list[tuple[RateLimit, bool]]":
    """Those that are set, and whether they are shared by all."""
    asked = ((settings.rate_limit, False), (settings.rate_limit_total, True))
    return [(RateLimit(per_minute), is_shared) for per_minute, is_shared in asked if per_minute]


class RateLimit:
    """A token bucket per client: a minute's requests may come at once, then they come as they are earned."""

    def __init__(self, per_minute: int):
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # who -> (tokens left, when)

    def take(self, who: str) -> int:
        """0 if the request may go on, else the seconds to wait."""
        now = time.monotonic()
        left, then = self._buckets.pop(who, (float(self.per_minute), now))
        left = min(left + (now - then) * self.per_minute / 60, float(self.per_minute))
        fine = left >= 1
        self._buckets[who] = (left - fine, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0 if fine else max(1, round((1 - left) * 60 / self.per_minute))

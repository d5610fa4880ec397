"""How many requests a minute a client may send."""

import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from tahr.server.http.errors import HttpError

MAX_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class RateLimits:
    """One limit for each key (each address where there are no keys), and one for all requests together."""

    per_client: "RateLimit | None" = None
    total: "RateLimit | None" = None
    of_keys: "RateLimit" = field(default_factory=lambda: RateLimit(1))  # clients whose limit is their own

    def check(self, client: str, own: int | None = None) -> None:
        """Count a request; refused with 429 if it is one too many. `own` is the limit of this client alone."""
        of_client = self.of_keys if own else self.per_client
        for limit, bucket, per_minute in ((of_client, client, own), (self.total, "", None)):
            wait_s = limit.take(bucket, per_minute) if limit else 0
            if limit and wait_s:
                if limit is self.total and of_client:
                    of_client.give_back(client)
                message = f"More than {per_minute or limit.per_minute} requests a minute: wait {wait_s} seconds."
                raise HttpError(429, message, code="rate_limit_exceeded", headers={"retry-after": str(wait_s)})


class RateLimit:
    """A token bucket per client: a minute's requests may come at once, then they come as they are earned."""

    def __init__(self, per_minute: int):
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (tokens left, when)

    def take(self, client: str, per_minute: int | None = None) -> int:
        """0 if the request may go on, else the seconds to wait; `per_minute` may be another for each client."""
        rate = per_minute or self.per_minute
        now = time.monotonic()
        left, then = self._buckets.pop(client, (float(rate), now))
        left = min(left + (now - then) * rate / 60, float(rate))
        fine = left >= 1
        self._buckets[client] = (left - fine, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0 if fine else math.ceil((1 - left) * 60 / rate)

    def give_back(self, client: str) -> None:
        """A request that was counted did not go on."""
        left, then = self._buckets[client]
        self._buckets[client] = (left + 1, then)


def rate_limits(per_client: int | None, total: int | None) -> RateLimits:
    """The limits that are set."""
    return RateLimits(RateLimit(per_client) if per_client else None, RateLimit(total) if total else None)

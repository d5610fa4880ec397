"""Server-sent events, built by hand: of each chunk only the text is new."""

from typing import Any

import msgspec

encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def named_event(name: str, fields: Any) -> bytes:
    """One event with a name; its data holds the name once more, as `type`."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **fields}))


def event(data: bytes) -> bytes:
    """One event; JSON holds no raw line break, so one line is enough."""
    return b"data: %b\n\n" % data

"""Server-sent events, built by hand: of each chunk only the text is new."""

import msgspec

encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def event(data: bytes) -> bytes:
    """One event; JSON holds no raw line break, so one line is enough."""
    return b"data: %b\n\n" % data

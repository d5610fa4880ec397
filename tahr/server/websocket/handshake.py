"""The request by which a connection becomes a WebSocket."""

import base64
import binascii
import hashlib
from collections.abc import Mapping

from tahr.server.http.errors import HttpError

VERSION = "13"
KEY_BYTES = 16
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # a constant of RFC 6455
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"


def accepting_head(headers: Mapping[bytes, bytes], request_id: str) -> bytes:
    """The response that makes the connection a WebSocket; extensions and protocols that are offered are not taken."""
    version = headers.get(b"sec-websocket-version", b"").decode("latin-1")
    if version != VERSION:
        message = f"This server speaks version {VERSION} of WebSockets: send `Sec-WebSocket-Version: {VERSION}`."
        raise HttpError(400, message, headers={"sec-websocket-version": VERSION})
    key = headers.get(b"sec-websocket-key", b"").strip()
    if not is_key(key):
        raise HttpError(400, "Sec-WebSocket-Key must be 16 bytes in base64.")
    accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
    return SWITCH + b"sec-websocket-accept: %b\r\nx-request-id: %b\r\n\r\n" % (accept, request_id.encode())


def is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except binascii.Error:
        return False

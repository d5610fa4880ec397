"""What a connection offers beyond ASGI, where our own protocol runs it."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

LINE, COMPLETE = "tahr.line", "tahr.complete"  # in the scope: a `Line`, and whether the whole body has arrived


class Flow(Protocol):
    """Whether a client reads fast enough."""

    write_paused: bool

    async def drain(self) -> None: ...


class Line:
    """Whether a client is still there and reads; whoever wants to know need not wait in a task of its own."""

    def __init__(self, packets: "Packets", flow: Flow) -> None:
        self._packets, self._flow = packets, flow
        self.drained = flow.drain
        self._gone = False
        self._tell: list[Callable[[], None]] = []

    def watch(self, tell: Callable[[], None]) -> None:
        """Call this when the client goes, or at once if it has gone."""
        self._tell.append(tell)
        if self._gone:
            tell()

    def unwatch(self, tell: Callable[[], None]) -> None:
        self._tell.remove(tell)

    def put(self, data: bytes) -> bool:
        """Send a chunk of an answer that comes in chunks; whether the client keeps up."""
        self._packets.put(b"%x\r\n%b\r\n" % (len(data), data))
        return not self._flow.write_paused

    def lost(self) -> None:
        """The client has gone."""
        self._gone = True
        for tell in list(self._tell):
            tell()


class Packets:
    """A transport that sends what is written in one turn of the loop at once: a system call costs more than a join."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def put(self, data: bytes) -> None:
        """Write without waiting for more of this turn; in order, if something waits already."""
        if self._parts:
            self._parts.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._transport.is_closing():
                self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

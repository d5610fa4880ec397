"""The last response of each WebSocket, so that conversations go on there which are not stored."""

import threading
from collections import OrderedDict

from tahr.server.conversations.store import StoredResponse


class RecentResponses:
    """Bounded over all WebSockets; those used least recently go first. Any thread may use it."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._by_socket: OrderedDict[int, StoredResponse] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_socket)

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def put(self, socket: int, response: StoredResponse) -> None:
        """Keep it in place of the one before."""
        with self._lock:
            self._drop(socket)
            self._by_socket[socket] = response
            self._n_bytes += response.n_bytes
            while self._n_bytes > self._max_bytes:
                self._drop(next(iter(self._by_socket)))

    def get(self, socket: int, id: str) -> StoredResponse | None:
        with self._lock:
            found = self._by_socket.get(socket)
            if found is None or found.id != id:
                return None
            self._by_socket.move_to_end(socket)
            return found

    def forget(self, socket: int) -> None:
        """The WebSocket is closed."""
        with self._lock:
            self._drop(socket)

    def _drop(self, socket: int) -> None:
        dropped = self._by_socket.pop(socket, None)
        self._n_bytes -= dropped.n_bytes if dropped else 0

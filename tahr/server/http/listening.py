"""The socket a server listens on: its own, or one that systemd has opened for it."""

import errno
import os
import socket
from typing import NamedTuple

from tahr.errors import ServerError

FIRST_PASSED = 3  # the descriptor of the first socket that systemd passes on
BACKLOG = 2048


class Listener(NamedTuple):
    """A listening socket."""

    socket: socket.socket
    outlives_us: bool = False  # somebody else holds it, too: clients may wait in it for the next server

    @property
    def address(self) -> str:
        """Where clients find it."""
        return url_of(*self.socket.getsockname()[:2])


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def first_address(host: str, port: int) -> str:
    """Where a server of that name and port is found."""
    try:
        return url_of(*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][:2])
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def bind(host: str, port: int) -> Listener:
    """The listening socket, before anything costly happens."""
    passed = passed_socket()
    if passed:
        return Listener(passed, outlives_us=True)
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(*kind[:3])  # asyncio leaves Nagle on without the protocol
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(kind[4])
        listener.listen(BACKLOG)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    return Listener(listener)


def cannot_listen(host: str, port: int, error: OSError) -> ServerError:
    # A name nobody knows, or an address of another machine, has no free port either.
    is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    other = "--host" if is_host else "--port"
    return ServerError(f"Cannot listen on {host}:{port} ({error.strerror or error}): choose another {other}.")


def passed_socket() -> socket.socket | None:
    """The socket of a unit `tahr.socket`, which clients may already wait on; it wins over --host and --port."""
    n_passed = os.environ.pop("LISTEN_FDS", "")
    is_ours = os.environ.pop("LISTEN_PID", "") == str(os.getpid())
    if not is_ours or n_passed == "0":
        return None
    try:
        passed = socket.socket(fileno=FIRST_PASSED)
        is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ServerError(f"systemd passed no socket ({error.strerror}): check the unit tahr.socket.") from error
    if n_passed != "1" or not is_listening or passed.type != socket.SOCK_STREAM:
        raise ServerError(
            "systemd passed something else than one listening TCP socket: give tahr.socket one ListenStream=."
        )
    passed.set_inheritable(False)
    return passed

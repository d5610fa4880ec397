"""Which requests get past the door: keys, hosts, origins."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from tahr.server.http.accounts import KeyRing, digest_of, owner_by
from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest

PREFLIGHT = {"access-control-allow-methods": "GET, POST, DELETE, OPTIONS", "access-control-max-age": "600"}
ANY = "*"


def check_key(request: HttpRequest, keys: KeyRing) -> None:
    """The request becomes that of the key's account; without a key that is known it is refused."""
    if keys.is_open:
        return
    account = keys.find(presented_key(request))
    if account is None:
        raise unknown_key(request)
    request.account = account


def check_admin(request: HttpRequest, admin_key: str | None, keys: KeyRing) -> None:
    """Changing the server takes the admin's key; without one, a client on this machine with a key as any has it."""
    if admin_key is not None:
        # The time of the comparison says nothing about how close the key was.
        if not hmac.compare_digest(digest_of(admin_key), digest_of(presented_key(request))):
            raise unknown_key(request)
        return
    check_key(request, keys)
    if keys.is_open and request.is_of_any_page:
        message = "This route is not for pages of any site: name the page's origin with --cors-origin, or set a key."
        raise HttpError(403, message, code="admin_only")
    if not is_loopback(request.client):
        message = "This route is for this machine alone: start the server with --admin-key to use it from elsewhere."
        raise HttpError(403, message, code="admin_only")


def unknown_key(request: HttpRequest) -> HttpError:
    message = "The API key is missing or wrong: send it as `Authorization: Bearer KEY`."
    # Basic lets a browser ask for the key, as the password, before it shows the chat page.
    scheme = 'Basic realm="tahr"' if request.path == "/" else "Bearer"
    return HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": scheme})


def is_loopback(client: str) -> bool:
    try:
        return ipaddress.ip_address(client.partition("%")[0].removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def owner_of(request: HttpRequest) -> str:
    """Whose responses, files and batches a request may see: those made with the same key, of which a digest is kept."""
    return request.on_behalf.owner if request.on_behalf else owner_by(digest_of(presented_key(request)))


def salt_of(request: HttpRequest, keys: KeyRing) -> str:
    """Keeps the texts of a client apart from those of other keys, without a secret; empty if there is one key or none.

    Texts may outlive a restart, so it depends on the key alone, not on its place among others.
    """
    if request.on_behalf:
        return request.on_behalf.salt
    key = presented_key(request)
    if not keys.is_shared or keys.find(key) is None:
        return ""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"tahr-kv-salt").hexdigest()


def presented_key(request: HttpRequest) -> str:
    sent = as_utf8(request.header("authorization"))
    if not sent:
        return as_utf8(request.header("x-api-key")).strip()  # the header of Anthropic's clients
    scheme, _, rest = sent.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return rest.strip() if scheme.lower() == "bearer" else ""


def as_utf8(header: str) -> str:
    """A header whose bytes were read as Latin-1, as clients mean it that send a key with letters beyond ASCII."""
    try:
        return header if header.isascii() else header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


class HostGuard:
    """Refuses unknown names of this server, and pages of other sites.

    A web page may make any name it owns point to this machine (DNS rebinding). Addresses cannot be made to, so they are
    always fine; names must be known.
    """

    def __init__(self, host: str, allowed_hosts: Collection[str], origins: Collection[str]):
        known = {"localhost", host, socket.gethostname(), *allowed_hosts}
        self._hosts = frozenset(name.lower().rstrip(".") for name in known)
        self._any_host = ANY in allowed_hosts
        self._origins = frozenset(origins)
        self._seen: set[str] = set()  # Host headers that were found to be fine

    def check(self, request: HttpRequest) -> None:
        """Both the name the client used and the page it came from."""
        host = request.header("host")
        if host not in self._seen:
            self._check_host(host)
        origin = request.header("origin")
        if origin:
            self._check_origin(request, origin, host)

    def _check_host(self, host: str) -> None:
        name = name_of(host)
        if not self._any_host and name not in self._hosts and not is_address(name):
            shown = name[:64]
            message = f"This server does not answer to the name {shown!r}: start it with --allowed-hosts {shown}."
            raise HttpError(403, message, code="host_not_allowed")
        if len(self._seen) < 64:  # ports differ, so there may be many
            self._seen.add(host)

    def _check_origin(self, request: HttpRequest, origin: str, host: str) -> None:
        if origin in self._origins or ANY in self._origins:
            request.response_headers |= {"access-control-allow-origin": origin, "vary": "origin"}
            request.is_of_any_page = origin not in self._origins and not is_page_of(host, origin)
        elif not is_page_of(host, origin):
            message = f"Pages of {origin} may not use this server: start it with --cors-origin {origin} to allow them."
            raise HttpError(403, message, code="origin_not_allowed")


def name_of(host: str) -> str:
    """The name in a Host header, without the port; empty if there is none, as in HTTP/1.0."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return "?"


def is_address(name: str) -> bool:
    if not name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_page_of(host: str, origin: str) -> bool:
    """Whether a page came from this server, by the name it was checked for."""
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False


async def preflight(request: HttpRequest) -> None:
    """Answer a browser's question before it sends a request from another site."""
    requested = request.header("access-control-request-headers")
    wanted = {"access-control-allow-headers": requested or "authorization, content-type"}
    await request.respond(b"", "text/plain", status=204, headers={**PREFLIGHT, **wanted})

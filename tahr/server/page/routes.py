"""The chat page and the files it is made of, served from the package."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.state.route import Route
from tahr.server.state.state import ServerState

FILES = Path(__file__).parent / "files"
THIRD_PARTY = Path(__file__).parent / "third_party"  # each with its license and version beside it
PREFIX = "/page/"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".woff2": "font/woff2",
    ".svg": "image/svg+xml",
}
# The page shows what a model wrote, which is hostile: nothing inline runs, nothing comes from elsewhere, no text
# becomes HTML, and no other page may show this one. Images are those that the page itself made (blob:).
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # kept, and asked for again by its tag: an upgrade shows at once
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page as it is sent."""

    content_type: str
    body: bytes
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """All files by their path below /page/. Only these are served, so a path cannot lead anywhere else."""
    return dict(part for folder in (FILES, THIRD_PARTY) for part in files_below(folder))


def files_below(folder: Path) -> Iterator[tuple[str, PageFile]]:
    for path in folder.rglob("*"):
        if path.suffix in TYPES:
            yield path.relative_to(folder).as_posix(), page_file(path)


def page_file(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(TYPES[path.suffix], body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


async def page(request: HttpRequest, state: ServerState) -> None:
    """A page to chat with."""
    await send_file(request, page_files()["index.html"])


async def part(request: HttpRequest, state: ServerState) -> None:
    """A file of the chat page."""
    name = request.path.removeprefix(PREFIX)
    file = page_files().get(name)
    if file is None or name == "index.html":  # its links are relative to /
        raise HttpError(404, "The chat page has no such file.", code="file_not_found")
    await send_file(request, file)


async def send_file(request: HttpRequest, file: PageFile) -> None:
    headers = {**HEADERS, "etag": file.etag}
    if has_tag(request.header("if-none-match"), file.etag):
        await request.begin_stream(headers, status=304)
        await request.end_stream()
    else:
        await request.respond(file.body, file.content_type, headers=headers)


def has_tag(sent: str, etag: str) -> bool:
    """Whether a client holds the file already; a proxy that compressed it may have made the tag a weak one."""
    return sent.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in sent.split(","))


ROUTES = [Route("GET", "/", page), Route("GET", PREFIX, part)]

"""Marks of the prefix cache in Anthropic's bodies: checked, and accounted for."""

from collections.abc import Iterator

from tahr.server.anthropic.bodies import TTLS, CacheControl, ContentBlock, CountTokensBody
from tahr.server.http.errors import bad_field
from tahr.server.models.engine_port import ServedEngine


def has_marks(body: CountTokensBody) -> bool:
    """Whether a body has a mark anywhere; one that says what we do not know is refused."""
    marks = [mark for mark in marks_of(body) if mark is not None]
    for mark in marks:
        if mark.type != "ephemeral" or mark.ttl not in (None, *TTLS):
            raise bad_field(
                "cache_control", f"cache_control must be of type ephemeral, with a ttl of {' or '.join(TTLS)}."
            )
    return bool(marks)


def marks_of(body: CountTokensBody) -> Iterator[CacheControl | None]:
    yield body.cache_control
    for tool in body.tools or ():
        yield tool.cache_control
    for content in (body.system, *(message.content for message in body.messages)):
        yield from marks_in(content)


def marks_in(content: str | list[ContentBlock] | None) -> Iterator[CacheControl | None]:
    """The marks of blocks, and of those in results of tools."""
    for block in content if isinstance(content, list) else ():
        yield block.cache_control
        if isinstance(block.content, list):
            for each in block.content:
                yield each.cache_control


def cache_page_size(engine: ServedEngine) -> int:
    """Tokens in a page of the prefix cache, which keeps whole pages; 0: there is none."""
    found = engine.snapshot()
    return found.page_size if found.prefix_enabled else 0

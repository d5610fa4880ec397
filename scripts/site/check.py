"""Refuses a built site with a link that leads nowhere, or one that fetches something from elsewhere.

usage: python scripts/site/check.py FOLDER
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHES = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
NOT_FETCHED = {"canonical", "prev", "next"}  # links that a browser only keeps


class Page(HTMLParser):
    """The anchors, links and fetched addresses of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values:
                self.links.add(values[name])
                if (tag, name) in FETCHES and values.get("rel") not in NOT_FETCHED:
                    self.fetched.add(values[name])


def complaints(site: Path) -> list[str]:
    found = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = [
        f"{path.name}: {link} leads nowhere"
        for path, page in found.items()
        for link in page.links
        if path.name != "404.html" and is_broken(site.resolve(), path, link, found)
    ]
    outside = [
        f"{path.name}: {link} is fetched" for path, page in found.items() for link in page.fetched if "//" in link
    ]
    return sorted([*broken, *outside])


def is_broken(site: Path, path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    base = site if parts.path.startswith("/") else path.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return True
    return target in pages and unquote(parts.fragment) not in pages[target].anchors


def main() -> None:
    site = Path(sys.argv[1])
    if found := complaints(site):
        sys.exit("\n".join(found))
    print(f"{len(list(site.rglob('*.html')))} pages in {site}")


if __name__ == "__main__":
    main()

"""The chat page as it is served: types, tags, policy, and sources that never turn text into HTML."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.server.page.routes import FILES, PREFIX, THIRD_PARTY, page_files

MODULES = sorted(FILES.rglob("*.mjs"))
# Ways by which a text becomes HTML, a script or a style.
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc|\beval\b"
    r"|new Function|setHTML|javascript:|\bimport\("
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(ScriptedEngine()) as running, httpx.Client(base_url=running.address) as made:
        yield made


def test_types_and_policy(client: httpx.Client) -> None:
    kinds = {"index.html": "text/html", "style.css": "text/css", "app.mjs": "text/javascript", "icon.svg": "image/svg"}
    for name, kind in kinds.items():
        reply = client.get("/" if name == "index.html" else PREFIX + name)
        assert reply.status_code == 200 and reply.headers["content-type"].startswith(kind)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.content == (FILES / name).read_bytes()


def test_a_file_that_has_not_changed_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/page/app.mjs")
    tag = first.headers["etag"]
    for sent in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = client.get("/page/app.mjs", headers={"if-none-match": sent})
        assert again.status_code == 304 and not again.content and again.headers["etag"] == tag
        assert "content-length" not in again.headers
    assert client.get("/page/app.mjs", headers={"if-none-match": '"other"'}).status_code == 200
    assert len({file.etag for file in page_files().values()}) == len(page_files())


@pytest.mark.parametrize("path", ["/", "/page/style.css"])
def test_head(client: httpx.Client, path: str) -> None:
    head, whole = client.head(path), client.get(path)
    assert head.status_code == 200 and not head.content
    assert {k: v for k, v in head.headers.items() if k not in ("date", "x-request-id")} == {
        k: v for k, v in whole.headers.items() if k not in ("date", "x-request-id")
    }


@pytest.mark.parametrize(
    "name", ["index.html", "../routes.py", "%2e%2e/routes.py", "..%2froutes.py", "app.mjs/", "/etc/passwd", "%00", "x"]
)
def test_nothing_else_is_served(client: httpx.Client, name: str) -> None:
    assert client.get(PREFIX + name).status_code == 404


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_modules_stay_here_and_make_no_html(module: object) -> None:
    text = module.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert DANGEROUS.findall(text) == []
    imports = re.findall(r'from "([^"]*)"', text)
    here = module.parent  # type: ignore[attr-defined]
    assert all(name.startswith(".") and (here / name).resolve() in MODULES for name in imports)
    assert set(re.findall(r"\w+://[\w.]+", text)) <= {"http://www.w3.org"}, "the name of SVG, and nobody else's"


def test_the_document_holds_no_script_and_no_style() -> None:
    text = (FILES / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", text) == []
    named = re.findall(r'(?:href|src)="page/([^"]*)"', text)
    assert len(named) > 3 and set(named) <= set(page_files())


def test_every_button_has_a_name() -> None:
    """What has only an icon is named for screen readers; the theme's name says which one it is, so a script sets it."""
    text = (FILES / "index.html").read_text(encoding="utf-8")
    buttons = re.findall(r"<button ([^>]*)>([^<]*)</button>", text)
    assert len(buttons) > 8
    assert [attributes for attributes, label in buttons if not label and "aria-label" not in attributes] == [
        'id="theme" type="button" class="quiet" data-icon="theme"'
    ]


def test_ids_that_modules_ask_for_exist() -> None:
    html = (FILES / "index.html").read_text(encoding="utf-8")
    requested = {name for path in MODULES for name in re.findall(r'\$\("([\w-]+)"\)', path.read_text(encoding="utf-8"))}
    assert sorted(name for name in requested if f'id="{name}"' not in html) == []


def test_katex_is_served_with_its_fonts(client: httpx.Client) -> None:
    """What its style sheet names comes from here; only woff2 fonts are there, which every browser takes first."""
    style = client.get(PREFIX + "katex/katex.min.css").text
    fonts = set(re.findall(r"url\((fonts/[^)]*\.woff2)\)", style))
    assert len(fonts) == 20 and set(re.findall(r"\w+://", style)) == set()
    for name in fonts:
        reply = client.get(f"{PREFIX}katex/{name}")
        assert (reply.status_code, reply.headers["content-type"], reply.content[:4]) == (200, "font/woff2", b"wOF2")
    assert client.get(PREFIX + "katex/katex.min.js").headers["content-type"].startswith("text/javascript")
    assert "font-src 'self'" in client.get("/").headers["content-security-policy"]
    assert client.get(PREFIX + "katex/LICENSE").status_code == 404
    assert (THIRD_PARTY / "katex" / "LICENSE").is_file() and "0.19.1" in (THIRD_PARTY / "katex/README.md").read_text()


@pytest.mark.skipif(shutil.which("node") is None, reason="the modules of the page are tested by Node.js")
def test_modules_do_what_they_say() -> None:
    tests = sorted(str(path) for path in (Path(__file__).parents[1] / "clients/page").glob("*.test.mjs"))
    done = subprocess.run(["node", "--test", *tests], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and tests, done.stdout[-4000:]

"""The site: every page has its place, every link leads somewhere, and the checker sees what is wrong."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import tahr

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))

import check  # noqa: E402
import pages  # noqa: E402

LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as Zensical is given them."""
    folder = tmp_path_factory.mktemp("site")
    pages.write(folder)
    return folder


def anchors(text: str) -> set[str]:
    """Anchors of headings, as Python-Markdown makes them."""
    heads = re.findall(r"^#+ (.+)$", pages.FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def is_broken(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.is_file() or (bool(anchor) and anchor not in anchors(target.read_text(encoding="utf-8")))


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = [f"{name}.md" for names in pages.NAV.values() for name in names]
    assert sorted(named) == sorted([*pages.documents().values(), *pages.MADE])


def test_the_configuration_names_pages_that_are_there(site: Path) -> None:
    sections = tomllib.loads((site / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    entries = [entry for section in sections for entries in section.values() for entry in entries]
    files = [file for entry in entries for file in entry.values()]
    assert len(files) > 40 and [file for file in files if not (site / "pages" / file).is_file()] == []


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    found = {
        page: LINK.findall(pages.FENCE.sub("", page.read_text(encoding="utf-8")))
        for page in [*(site / "pages").rglob("*.md"), site / "pages/llms.txt"]
    }
    assert sum(map(len, found.values())) > 200
    assert [f"{page.name}: {link}" for page, links in found.items() for link in links if is_broken(page, link)] == []


def test_pipes_in_code_are_shown_without_backslashes(site: Path) -> None:
    texts = [page.read_text(encoding="utf-8") for page in (site / "pages").rglob("*.md")]
    assert pages.moved("`a\\|b` c \\| d `e`", "docs/tools.md") == "`a|b` c \\| d `e`"
    spans = [span for text in texts for span in pages.CODE.findall(pages.FENCE.sub("", text))]
    assert len(spans) > 1_000 and [span for span in spans if "\\|" in span] == []


def test_names_of_documents_become_links() -> None:
    text = "`docs/serving.md`, [x](../README.md#use-it)\n```sh\ncat `docs/serving.md`\n```\n`no/page.md`"
    expected = text.replace("`docs/serving.md`,", "[Serving](serving.md),").replace("../README", "index")
    assert pages.moved(text, "docs/tools.md") == expected
    assert pages.moved("`docs/serving.md`", "tahr/native/NOTES.md") == "[Serving](../serving.md)"


def test_the_library_is_described_whole() -> None:
    text = pages.MADE["api.md"]()
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == set(tahr.__all__) - {"__version__"}
    assert "| `chat(" in text and "temperature: float" in text and " at 0x" not in text


def test_commands_are_described_whole() -> None:
    text = pages.MADE["commands.md"]()
    assert "## tahr serve\n" in text and "| `-p, --port" in text and "| `--kv-disk " in text


def html(folder: Path, **texts: str) -> list[str]:
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return check.complaints(folder)


def test_the_checker_lets_sound_pages_pass(tmp_path: Path) -> None:
    link = '<a href="b.html#there">b</a><a href="https://example.org/">out</a><link rel="canonical" href="https://e/">'
    assert html(tmp_path, a=link, b='<h1 id="there">B</h1><a href="#">top</a><a href=".">home</a>', index="") == []


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('<a href="none.html">x</a>', "none.html leads nowhere"),
        ('<a href="b.html#gone">x</a>', "b.html#gone leads nowhere"),
        ('<img src="none.png">', "none.png leads nowhere"),
        ('<script src="https://example.org/x.js"></script>', "https://example.org/x.js is fetched"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "//example.org/x.css is fetched"),
    ],
)
def test_the_checker_sees(text: str, complaint: str, tmp_path: Path) -> None:
    assert html(tmp_path, a=text, b="") == [f"a.html: {complaint}"]

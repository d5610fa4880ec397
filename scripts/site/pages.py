"""Puts the pages of the site together, from the documents and from the code: `make docs`.

usage: python scripts/site/pages.py FOLDER     writes FOLDER/zensical.toml and FOLDER/pages
"""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from posixpath import relpath

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(Path(__file__).parent), str(ROOT / "scripts")]

import api_page  # noqa: E402
import commands_page  # noqa: E402

import log_page  # noqa: E402

# Sections of the navigation: a page's title is its first heading.
NAV = {
    "Start": ("index", "start", "clients", "settings"),
    "Do": (
        "serving",
        "batches",
        "images",
        "speech",
        "tools",
        "json-schema",
        "offload",
        "kv-tiers",
        "vulkan",
        "keys",
        "deploy",
    ),
    "Look up": ("models", "commands", "api", "figures", "changes", "compatibility", "glossary"),
    "Read the code": (
        *("reading", "life-of-a-token", "one-request", "threads", "memory", "states", "devices", "where-things-attach"),
        *("add-a-model", "add-a-format", "add-a-backend", "add-a-route"),
    ),
    "The project": ("roadmap", "decisions", "rows", "releasing", "contributing", "security", "readme-zh"),
    "Notes": ("notes/cpu", "notes/cuda", *(f"log/{month}" for month in sorted(log_page.months(), reverse=True))),
}
# Documents that lie elsewhere in the checkout, and the pages that they become.
ELSEWHERE = {
    "README.md": "index.md",
    "README.zh.md": "readme-zh.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/LOG.md": "figures.md",
    "tahr/native/NOTES.md": "notes/cpu.md",
    "tahr/backends/cuda/kernels/NOTES.md": "notes/cuda.md",
} | {f"benchmarks/log/{month}.md": f"log/{month}.md" for month in log_page.months()}
MADE: dict[str, Callable[[], str]] = {"api.md": api_page.page, "commands.md": commands_page.page}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
SPAN = re.compile(r"(?<!\[)`((?:[\w.-]+/)*[\w.-]+\.md)`")
CODE = re.compile(r"`[^`\n]+`")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CONFIG = """\
[project]
site_name = "Tahr"
site_description = "An LLM inference engine for a laptop CPU or a data-centre GPU"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [
{nav}
]

# Nothing is fetched from elsewhere: no fonts, no icons, no scripts.
[project.theme]
font = false
features = ["content.code.copy", "navigation.sections", "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
"""


def documents() -> dict[str, str]:
    """The documents by where they lie in the checkout, and the pages that they become."""
    own = {f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    return own | ELSEWHERE


def pages() -> dict[str, str]:
    """Every page by its place, with links to where things are in the site."""
    found = {to: moved(text_of(at), at) for at, to in documents().items()}
    return found | {place: make() for place, make in MADE.items()}


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def moved(text: str, at: str) -> str:
    """A document with its links as the site needs them; names of documents become links. Blocks of code stay."""
    parts = []
    end = 0
    for block in FENCE.finditer(text):
        parts += [relinked(text[end : block.start()], at), block[0]]
        end = block.end()
    return "".join([*parts, relinked(text[end:], at)])


def relinked(text: str, at: str) -> str:
    # In a table, GitHub wants `|` escaped in code; Python-Markdown would show the backslash.
    text = CODE.sub(lambda found: found[0].replace("\\|", "|"), text)
    text = LINK.sub(lambda found: found[1] + target(found[2], at) + found[3], text)
    return SPAN.sub(lambda found: named(found[1], at), text)


def target(link: str, at: str) -> str:
    """A link of a document, seen from its page."""
    if re.match(r"[a-z]+:|#", link):
        return link
    path, mark, anchor = link.partition("#")
    file = resolved(PurePosixPath(at).parent / path)
    return seen_from(at, place(file)) + mark + anchor


def named(file: str, at: str) -> str:
    """A document's name in a text, as a link with its title if it has a page."""
    for base in (PurePosixPath(), PurePosixPath(at).parent):
        if (found := resolved(base / file)) in documents() and found != at:
            return f"[{title(text_of(found))}]({seen_from(at, place(found))})"
    return f"`{file}`"


def seen_from(at: str, page: str) -> str:
    """The way from a document's page to another."""
    return relpath(page, PurePosixPath(place(at)).parent)


def resolved(path: PurePosixPath) -> str:
    return relpath(str(path), ".")


def place(file: str) -> str:
    """Where a file of the checkout lies in the site: a document's page, or a picture."""
    return documents().get(file) or file.removeprefix("docs/")


def title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found, "a page begins with its heading"
    return found[1]


def config(texts: dict[str, str]) -> str:
    lines = []
    for section, names in NAV.items():
        entries = [f'{{ "{title(texts[f"{name}.md"])}" = "{name}.md" }}' for name in names]
        lines.append(f'  {{ "{section}" = [{", ".join(entries)}] }},')
    return CONFIG.format(nav="\n".join(lines))


def llms(texts: dict[str, str]) -> str:
    """The pages for programs that read: llms.txt, with the sources of the pages beside them."""
    lines = ["# Tahr", "", "> " + texts["index.md"].split("\n\n")[1].replace("\n", " ")]
    for section, names in NAV.items():
        lines += ["", f"## {section}", ""]
        lines += [f"- [{title(texts[f'{name}.md'])}]({name}.md)" for name in names]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    texts = pages()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for name, text in (texts | {"llms.txt": llms(texts)}).items():
        file = folder / "pages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for picture in [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")]:
        shutil.copy(picture, folder / "pages")
    (folder / "zensical.toml").write_text(config(texts), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""Pages about the code agree with it: links, commands, options, functions, threads, locks and states."""

import re
from functools import cache
from pathlib import Path

from tahr.cli.shell.option_table import verb_table
from tahr.engine.sequences.sequence import NEXT, OVER
from tahr.kv.pages import PagePool

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *(ROOT / "tahr").rglob("NOTES.md")]
)
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*[a-z0-9])")
SPAN = re.compile(r"`([^`\n]+)`")
NAME_IN_FILE = re.compile(r"`(\w+)`,? (?:in|\()\s?`((?:[\w.-]+/)+[\w.-]+\.(?:py|h|cpp|toml))`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
MOST_LINES = 3_000  # of the ten files: what one reads in a weekend
# Options of other programs and of `make`d environments, as pages name them.
FOREIGN = {
    *("--build-from-source", "--compile-bytecode", "--context-shift", "--dry-run", "--now", "--parallel"),
    *("--backends", "--find-links", "--strict", "--targets"),
}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def sources(*suffixes: str) -> str:
    """The text of the package's files with these endings."""
    found = [path for suffix in suffixes for path in sorted((ROOT / "tahr").rglob(f"*{suffix}"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in found)


# ---- links ----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def is_broken(page: Path, link: str) -> bool:
    """Whether a link within the checkout leads nowhere."""
    if re.match(r"[a-z]+:", link):
        return False
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or bool(anchor and anchor not in anchors(target))


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if is_broken(page, link)
    ]
    assert broken == []


def test_names_stand_in_the_files_that_pages_say() -> None:
    """A page that says "`name` in `file`" is right about the file."""
    wrong = [
        f"{page.name}: {name} in {file}"
        for page in PAGES
        for name, file in NAME_IN_FILE.findall(page.read_text(encoding="utf-8"))
        if not is_log(page) and not stands_in(name, file)
    ]
    assert wrong == []


def stands_in(name: str, file: str) -> bool:
    """Whether a file of the checkout or of the package has a name as a word."""
    paths = [path for path in (ROOT / file, ROOT / "tahr" / file) if path.is_file()]
    return any(re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")) for path in paths)


# ---- what readers type ----------------------------------------------------------------------------------------------


def code_of(page: Path) -> str:
    """What stands in code spans and blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(
        [*re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL), *re.findall(r"`([^`\n]+)`", text)]
    )


def test_make_targets_exist() -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"\bmake ([a-z]+)\b", code_of(page))}
    assert named and sorted(named - known) == []


@cache
def named_options() -> dict[str, set[str]]:
    """Each verb's options, and those of the benchmarks under the empty name."""
    table = {name: {flag for row in verb.options for flag in row.flags} for verb in verb_table() for name in verb.names}
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
    return {**table, "": set(FLAG.findall(written))}


def test_verbs_exist() -> None:
    known = {name for verb in verb_table() for name in verb.names}
    named = {name for page in PAGES for name in re.findall(r"^\$? ?tahr ([a-z][a-z-]+)\b", code_of(page), re.MULTILINE)}
    assert len(named) > 10 and sorted(named - known) == []


def test_options_of_commands_exist() -> None:
    """A line that calls a verb names options of that verb."""
    known = named_options()
    calls = [
        call for page in PAGES for call in re.findall(r"^tahr ([a-z][a-z-]+)\b([^#|\n]*)", code_of(page), re.MULTILINE)
    ]
    wrong = {f"{verb} {flag}" for verb, rest in calls for flag in FLAG.findall(rest) if flag not in known[verb]}
    assert len(calls) > 30 and sorted(wrong) == []


def test_options_that_pages_name_exist() -> None:
    """An option in a code span is one of a verb, of a benchmark, or known to be another program's."""
    known = set().union(*named_options().values()) | FOREIGN
    spans = [span for page in PAGES if not is_log(page) for span in SPAN.findall(page.read_text(encoding="utf-8"))]
    named = {flag for span in spans for flag in FLAG.findall(span)}
    assert len(named) > 60 and sorted(named - known) == []


def is_log(page: Path) -> bool:
    """Whether a page tells what once was."""
    return page.parent.name == "log" or page.name == "CHANGELOG.md"


# ---- the path of a request ------------------------------------------------------------------------------------------


def test_functions_of_the_readers_note_are_where_it_says() -> None:
    rows = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \|", text_of("reading.md"), re.MULTILINE)
    missing = [
        f"{file}: {name}"
        for file, name in rows
        if not re.search(rf"^ *(?:async )?(?:def|class) {name}\b", (ROOT / "tahr" / file).read_text(), re.MULTILINE)
    ]
    assert len(rows) == 29 and missing == []


def test_the_ten_files_are_read_in_a_weekend() -> None:
    rows = re.findall(r"^\| \d+ \| `([\w./]+)` \|", text_of("life-of-a-token.md"), re.MULTILINE)
    assert sum(len((ROOT / "tahr" / file).read_text().splitlines()) for file in rows) <= MOST_LINES


def test_decisions_are_few() -> None:
    entries = re.findall(r"^\*\*.*", text_of("decisions.md"), re.MULTILINE)
    assert len(entries) <= 40 and max(len(entry.split()) for entry in entries) <= 230


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


# ---- threads and locks ----------------------------------------------------------------------------------------------


def test_every_named_thread_is_on_its_page() -> None:
    named = set(
        re.findall(r"[\"'](tahr-[a-z-]+)[\"']", "\n".join(re.findall(r".*(?:Thread|thread).*", sources(".py"))))
    )
    assert len(named) > 8 and sorted(name for name in named if f"`{name}`" not in text_of("threads.md")) == []


def test_every_file_with_a_lock_is_on_its_page() -> None:
    python = re.compile(r"\b(?:Lock|RLock|Condition|Semaphore)\(")
    native = re.compile(r"std::mutex \w+;")
    found = [
        path.relative_to(ROOT / "tahr").as_posix()
        for path in sorted((ROOT / "tahr").rglob("*"))
        if (path.suffix == ".py" and python.search(path.read_text()))
        or (path.suffix in (".h", ".cpp") and native.search(path.read_text()))
    ]
    assert len(found) > 15 and [path for path in found if f"`{path}`" not in text_of("threads.md")] == []


# ---- states ---------------------------------------------------------------------------------------------------------


def drawings() -> list[set[tuple[str, str, str]]]:
    """The arrows of each drawing of states: from, to, label."""
    blocks = re.findall(r"^```mermaid\n(.*?)^```", text_of("states.md"), re.MULTILINE | re.DOTALL)
    return [set(re.findall(r"^ +(\w+) --> (\w+)(?:: (.*))?$", block, re.MULTILINE)) for block in blocks]


def test_states_of_a_sequence_are_drawn_as_they_are() -> None:
    over = {state.value for state in OVER}
    arrows = {
        (state.value, "over" if to.value in over else to.value) for state, targets in NEXT.items() for to in targets
    }
    assert {(begin, end) for begin, end, _ in drawings()[0]} == arrows
    assert over == set(re.findall(r"^        (\w+)$", text_of("states.md"), re.MULTILINE))


def test_states_of_a_page_are_entered_by_methods_that_exist() -> None:
    methods = {name for _, _, label in drawings()[1] for name in re.findall(r"^(\w+)|, (drop_hash)", label)}
    assert {name for pair in methods for name in pair if name} >= {
        "take",
        "share",
        "release",
        "landed",
        "evict",
        "loaded",
    }
    assert all(hasattr(PagePool, name) for pair in methods for name in pair if name)

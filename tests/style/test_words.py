"""The field's words: retired names stay away, and a class name has one meaning in the whole tree."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from sources import FILES, PACKAGE, ROOT, parsed, place, text_of

# Words of our own that had a private meaning -> what the field says. A name counts as a whole (a class, a function, an
# argument, an attribute, a variable) or by its parts (`_hear_tokens` holds "hear").
RETIRED_PARTS = {
    "hear": "observe, record",
    "heat": "temperature",
    "knob": "parameter, setting",
    "knobs": "parameters",
    "shortlist": "candidates",
    "overlay": "sparse logits",
    "crowd": "batch",
    "mailbox": "delivery",
    "refusals": "errors",
    "measures": "metrics",
    "dialect": "formatter",
    "picker": "sampler",
    "aside": "draft",
    "distrust": "invalidate",
    "parked": "swapped out",
    "rehearsal": "warm-up",
    "rehearse": "warm up",
    "vain": "misses",
    "lent": "fallbacks",
    "tempering": "attention scaling",
    "tempered": "attention scaling",
    "asked": "requested",
    "room": "capacity, remaining",
    "rooms": "capacity, remaining",
}
RETIRED_NAMES = {
    "Ask": "request",
    "Answer": "output, result",
    "BrokenAnswer": "broken response",
    "Said": "settings given",
    "Take": "chunk",
    "Line": "waiting queue, connection",
    "Call": "request",
    "Front": "server state",
    "Edit": "logit processor",
    "Chance": "uniform",
    "chance": "uniform",
    "let_go": "free",
    "pick_rows": "gather_rows",
    "place_qkv": "rope_and_cache",
    "rope_angles": "cos_sin",
    "row_sampler": "sample",
    "picks": "samples",
    "is_parked": "swapped_out",
    "on_host": "host_bound, host_rows",
}
# Ordinary words elsewhere, private ones in these rooms.
RETIRED_IN_ROOMS: dict[tuple[str, ...], dict[str, str]] = {
    ("engine/engine", "engine/scheduler", "library", "server"): {"lane": "sequence", "lanes": "sequences"},
    ("engine", "server/observe"): {"reading": "prefill", "writing": "decode", "writers": "decoding sequences"},
    ("engine", "library", "server"): {"answer": "output, choice", "answers": "outputs, choices"},
    ("engine", "server"): {"said": "text, given"},
    ("engine",): {"chance": "uniform", "quick": "native", "ways": "numpy"},
    ("server",): {"ask": "request", "front": "server state"},
    ("backends", "engine", "models"): {"spot": "position, slot", "angles": "cos and sin"},
    ("models/decoder", "models/encoders", "models/families", "models/parts"): {
        "half": "sublayer",
        "halves": "sublayers",
        "mix": "attention sublayer",
        "transform": "mlp sublayer",
    },
    ("kv",): {"knows": "lookup", "keep": "insert", "forget": "evict"},
}
# Modules by the names that had a private meaning, in the rooms where they did.
RETIRED_MODULES = {
    "engine": {"line", "lanes", "watch", "probe", "drawing", "decoding", "answers", "assemble", "mailbox"},
    "engine/sampling": {"ways", "quick", "edits", "overlay", "shortlist", "chance", "picker"},
    "library": {"lanes", "watch", "probe", "decoding", "answers", "mailbox"},
    "tools": {"rewrite", "probe"},
    "server": {
        "line",
        "call",
        "front",
        "busy",
        "texts",
        "bounds",
        "bundles",
        "running",
        "faults",
        "refusals",
        "measures",
    },
    "native": {"place", "lane", "partial", "matmul_many", "matmul_pieces"},
    "cli": {"layers", "served", "compared", "saved"},
    "backends": {"cuda_steps", "row_sampler"},
}
# Words and phrases of comments, docstrings, messages and documents that only made sense with the old names.
RETIRED_TEXT = (
    *(r"those that write", r"brings the news", r"what people say", r"\bwho wants\b", r"\ba lane\b"),
    *(r"\bknobs?\b", r"\bshortlists?\b", r"\boverlays?\b", r"\bmailbox\b", r"\bcrowds?\b", r"\bpickers?\b"),
    *(r"\bplace_qkv\b", r"\bpick_rows\b", r"\brope_angles\b", r"\brow_sampler\b", r"\btempering\b"),
)


@cache
def parts(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def words_retired_for(file: str) -> set[str]:
    """The parts of names that are retired in that file."""
    rooms = [set(words) for rooms, words in RETIRED_IN_ROOMS.items() if file.startswith(rooms)]
    return set(RETIRED_PARTS).union(*rooms)


def retired_names(path: Path) -> list[str]:
    words = words_retired_for(place(path))
    found = {n for n in parsed(path).names if n.strip("_") in RETIRED_NAMES or not words.isdisjoint(parts(n))}
    return sorted(found)


def test_names_are_the_fields() -> None:
    assert {place(path): names for path in FILES if (names := retired_names(path))} == {}


def test_modules_are_named_by_what_they_are() -> None:
    sources = [p for p in PACKAGE.rglob("*") if p.suffix in {".py", ".cpp", ".h"}]
    found = {
        place(p)
        for p in sources
        for room, names in RETIRED_MODULES.items()
        if place(p).startswith(room + "/") and p.stem in names
    }
    assert sorted(found) == []


def texts() -> list[Path]:
    """Sources and documents."""
    sources = [p for p in PACKAGE.rglob("*") if p.suffix in {".py", ".cpp", ".h"}]
    return [*sources, *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_texts_use_the_fields_words() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in texts()
        for phrase in RETIRED_TEXT
        if re.search(phrase, text_of(path), re.IGNORECASE)
    }
    assert sorted(found) == []


def test_a_class_name_has_one_meaning() -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for name in parsed(path).classes:
            classes[name].append(place(path))
    double = {name: places for name, places in classes.items() if len(places) > 1}
    assert double == {}

"""What the last release promised is still there: `docs/compatibility.md`."""

import json
import sys

from sources import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import surface

RECORDED = json.loads((ROOT / "tests/style/surface.json").read_text(encoding="utf-8"))


def test_nothing_public_has_gone() -> None:
    now = surface.surface()
    gone = [heading for heading in RECORDED if heading not in now]
    gone += [
        f"{heading}: {name}"
        for heading, names in RECORDED.items()
        for name in names
        if heading in now and name not in now[heading]
    ]
    assert gone == [], "announce it in CHANGELOG.md and warn for two minor releases before it goes"


def test_what_is_recorded_is_a_whole_surface() -> None:
    headings = " ".join(RECORDED)
    assert all(part in headings for part in ("tahr.LLM", "tahr serve", "POST /v1/chat/completions"))
    assert "chat(prompt)" in RECORDED["tahr.LLM"] or any(each.startswith("chat(") for each in RECORDED["tahr.LLM"])
    assert "takes temperature" in RECORDED["POST /v1/chat/completions"]

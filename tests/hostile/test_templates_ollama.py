"""Templates of the Ollama registry that take all the time or memory there is to translate: each is refused, soon."""

import time

import pytest

from tahr.hub.ollama_template import MAX_CHARS, Untranslatable, to_jinja

MOST_S = 2.0
ATTACKS = {
    "many quotes": "{{ " + '"a" ' * 15_000 + "}}",
    "an open quote": "{{ " + "a " * 15_000 + '" }}',
    "many pipes": "{{ .System" + " | len" * 9_000 + " }}",
    "comparisons of comparisons": "{{ if " + "(eq " * 40 + ".System" + " 1 2)" * 40 + " }}{{ end }}",
    "a comparison with many": "{{ if eq " + '"' + "a" * 30_000 + '"' + " 1" * 4_000 + " }}{{ end }}",
    "many comparisons": ("{{ if " + "(eq " * 11 + ".System" + " 1 2)" * 11 + " }}{{ end }}") * 400,
    "parentheses": "{{ " + "(" * 900 + ".System" + ")" * 900 + " }}",
    "half an escape": '{{ "\\x" }}',
    "a name that is none": '{{ "\\N{foo}" }}',
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_is_refused(name: str) -> None:
    start = time.process_time()
    with pytest.raises(Untranslatable):
        to_jinja(ATTACKS[name])
    assert time.process_time() - start < MOST_S


@pytest.mark.parametrize("source", ["{{" + " " * 60_000, "{{- " + " " * 60_000 + "x", "{{ " * 20_000])
def test_a_tag_without_an_end_is_text(source: str) -> None:
    start = time.process_time()
    assert to_jinja(source).endswith("{% endif %}") and len(source) < MAX_CHARS
    assert time.process_time() - start < MOST_S

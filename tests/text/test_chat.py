"""Chat templates: what transformers renders, and what a hostile template cannot do."""

import hashlib
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from assets import need
from tahr.errors import TemplateError
from tahr.text.templates.chat import ChatTemplate, template_for

EXPECTED = json.loads((Path(__file__).parents[1] / "fixtures" / "chat" / "expected.json").read_text(encoding="utf-8"))
# It turns a generator into JSON, which transformers refuses and we read as a list.
OURS_ALONE = {("llama-cpp-deepseek-r1", case) for case in ("tools", "call", "two calls")}
USER = {"role": "user", "content": "Hi"}


def template_named(name: str) -> ChatTemplate:
    source = need(f"chat-templates/{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos="<s>", eos="</s>", now=lambda: datetime.fromisoformat(EXPECTED["now"]))


def render_case(template: ChatTemplate, case: str) -> str:
    given = EXPECTED["cases"][case]
    return template.render(given["messages"], tools=given.get("tools"))


@pytest.mark.parametrize("name", sorted(EXPECTED["digests"]))
def test_every_released_template_renders_as_transformers_does(name: str) -> None:
    template = template_named(name)
    for case, digest in EXPECTED["digests"][name].items():
        if (name, case) in OURS_ALONE:
            assert "function" in render_case(template, case)
        elif digest == "raises":
            with pytest.raises(TemplateError):
                render_case(template, case)
        else:
            assert hashlib.sha256(render_case(template, case).encode()).hexdigest()[:16] == digest, case


@pytest.mark.parametrize("name", sorted(EXPECTED["texts"]))
def test_renderings_letter_by_letter(name: str) -> None:
    template = template_named(name)
    for case, text in EXPECTED["texts"][name].items():
        if text is None:
            with pytest.raises(TemplateError, match="refuses this conversation"):
                render_case(template, case)
        else:
            assert render_case(template, case) == text


def test_all_templates_of_the_assets_are_covered() -> None:
    assert {file.stem for file in need("chat-templates").glob("*.jinja")} == set(EXPECTED["digests"])


def test_what_templates_rely_on() -> None:
    def render(source: str, **variables: Any) -> str:
        clock = datetime(2026, 1, 2)
        return ChatTemplate(source, bos="<s>", eos="</s>", now=lambda: clock).render([USER], **variables)

    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>Hi</s>"
    assert render("{{ strftime_now('%d %b %Y') }}") == "02 Jan 2026"
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ [1, 2] | tojson(indent=1) }}") == "[\n 1,\n 2\n]"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ 'x' }}{% endgeneration %}") == "x"
    assert render("{{ 'a,b'.split(',')[1].upper().strip() }}{{ 'x' ~ 1 ~ none }}") == "Bx1None"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert (
        render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}")
        == "1"
    )
    assert render("{{ enable_thinking is defined }}{{ add_generation_prompt }}{{ tools is none }}") == "FalseTrueTrue"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}") == "1"


def test_a_template_for_tools_is_used_only_with_tools() -> None:
    template = ChatTemplate("plain", tool_use="tools: {{ tools | length }}")
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[{"name": "f"}]) == "tools: 1"


def test_variables_are_the_names_a_template_asks_for() -> None:
    template = ChatTemplate(
        "{% if enable_thinking %}{{ messages }}{% endif %}{% set x = 1 %}{{ x }}", tool_use="{{ y }}"
    )
    assert template.variables == {"enable_thinking", "messages", "y"}


GROW = "{% set s = 'ab' %}" + "{% set s = s OP s %}" * 40
SHARE = "{% set s = [1] %}" + "{% set s = [s, s] %}" * 60
LONG = "{% set s = 'a' * 1000000 %}"
RUNAWAY = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "nested loops that write": "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "a filtered loop": "{% set l = range(100000)|list %}{% for i in l if (i + 1000000) in l %}{% endfor %}",
    "a test in a filter": "{% set l = range(100000)|list %}{{ l|select('in', l)|list }}",
    "a huge range": "{% for i in range(10**12) %}{% endfor %}",
    "two calls each": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless loop calls": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "doubling with ~": GROW.replace("OP", "~"),
    "doubling with +": GROW.replace("OP", "+"),
    "doubling lists": "{% set s = [1] %}" + "{% set s = s + s %}" * 40,
    "repetition": "{{ 'a' * 10**10 }}",
    "repetition of lists": "{{ [1] * 10**10 }}",
    "a power": "{{ 2 ** (10**10) }}",
    "squares": "{% set x = 7 %}" + "{% set x = x * x %}" * 40,
    "a width in %": "{{ '%10000000000d' % 1 }}",
    "a width from a value": "{{ '%*d' % (10000000000, 1) }}",
    "a precision": "{{ '%.999999999f' % 1.5 }}",
    "a width in format": "{{ '{:10000000000}'.format(1) }}",
    "a width from a field": "{{ '{:{w}}'.format(1, w=10000000000) }}",
    "a width for a filter": "{{ 'a'|center(10000000000) }}",
    "a width for a method": "{{ 'a'.ljust(10000000000) }}",
    "tabs": "{{ '\t'.expandtabs(10000000000) }}",
    "bytes": "{{ (5).to_bytes(10000000000, 'big') }}",
    "indentation": "{{ ('a\n' * 1000000)|indent(90000) }}",
    "replace": LONG + "{{ s.replace('a', s) }}",
    "the filter replace": LONG + "{{ s|replace('a', s) }}",
    "join": LONG + "{{ s.join(s) }}",
    "the filter join": LONG + "{{ range(100000)|join(s) }}",
    "translate": LONG + "{{ s.translate({97: s}) }}",
    "the same text again": LONG + "{% for i in range(100000) %}{{ s }}{% endfor %}",
    "the same text kept": "{% set t %}{% for i in range(100000) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    "shared lists written": SHARE + "{{ s }}",
    "shared lists as JSON": SHARE + "{{ s|tojson }}",
    "shared dictionaries": "{% set s = {} %}" + "{% set s = dict(a=s, b=s) %}" * 60 + "{{ s|string }}",
    "shared lists compared": SHARE + SHARE.replace("s", "t").replace("tet", "set") + "{{ s == t }}",
    "rounding": "{{ 1.5|round(10**10, 'ceil') }}",
    "a date's width": "{{ strftime_now('%999999999d') }}",
    "a long output": "{% for i in range(90) %}{{ 'a' * 60000 }}{% endfor %}",
}


@pytest.mark.serial
@pytest.mark.parametrize("case", RUNAWAY)
def test_runaway_templates_are_stopped(case: str) -> None:
    started = time.monotonic()
    with pytest.raises(TemplateError):
        ChatTemplate(RUNAWAY[case], seconds=0.3).render([USER])
    assert time.monotonic() - started < 2


@pytest.mark.serial
def test_a_looping_template_fails_in_two_seconds_by_default() -> None:
    started = time.monotonic()
    with pytest.raises(TemplateError, match="longer than"):
        ChatTemplate(RUNAWAY["nested loops"]).render([USER])
    assert time.monotonic() - started < 2


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__[1].__subclasses__}'.format('').x() }}",
    "{{ self._TemplateReference__context.environment.x }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ namespace.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render([dict(USER)])


def test_what_a_template_may_not_see_reads_as_nothing() -> None:
    for source in ("{{ ''|attr('__class__') }}", "{{ '{0.__class__}'.format('') }}", "{{ range.__class__ }}"):
        assert ChatTemplate(source).render([USER]) == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "broken at line 1"),
        ("\n{{ messages", "broken at line 2"),
        ("{{ raise_exception('Roles must alternate.') }}", "refuses this conversation: Roles must alternate."),
        ("{{ nothing.here }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "too deeply"),
        ("x" * 300_000, "300000 characters"),
    ],
)
def test_failures_say_what_happened(source: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render([USER])
    assert message in str(caught.value)


def test_long_conversations_are_not_mistaken_for_runaways() -> None:
    turns = [USER, {"role": "assistant", "content": "word " * 300}] * 500
    for name in ("Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b"):
        assert len(template_named(name).render([*turns, USER])) > 700_000


class NamesOnly:
    """As much of a tokenizer as `template_for` asks for."""

    bos_id, eos_id = 0, 1

    def piece(self, token: int) -> str:
        return ["<s>", "</s>"][token]


def found(source: Any) -> ChatTemplate | None:
    return template_for(source, NamesOnly())  # type: ignore[arg-type]


def test_templates_are_found_in_gguf_metadata() -> None:
    assert found({}) is None
    template = found({"tokenizer.chat_template": "{{ bos_token }}plain", "tokenizer.chat_template.tool_use": "tools"})
    assert template and template.render([USER]) == "<s>plain"
    assert template.render([USER], tools=[{}]) == "tools"


def test_templates_are_found_in_directories(tmp_path: Path) -> None:
    def rendered() -> str:
        template = found(tmp_path)
        assert template is not None
        return template.render([USER])

    assert found(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert found(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert rendered() == "json"
    named = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "with tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert rendered() == "listed"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert rendered() == "config"
    # Of the two transformers takes this one: the other is what it replaced.
    (tmp_path / "chat_template.jinja").write_text("jinja{{ eos_token }}")
    assert rendered() == "jinja</s>"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(TemplateError, match="tokenizer_config"):
        found(tmp_path)


def test_template_for_tools_in_a_folder_beside_the_other(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    template = found(tmp_path)
    assert template and template.render([USER]) == "plain" and template.render([USER], tools=[{}]) == "tools"

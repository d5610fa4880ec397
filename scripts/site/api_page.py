"""The page of the library: what `tahr` exports, with signatures, members and their first sentences."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import tahr

HEAD = """# Library

Everything that `import tahr` offers; [what stays](compatibility.md) says what of it may change.
Underscored names are not part of it.
"""


def page() -> str:
    return "\n".join([HEAD, *(line for name in sorted(tahr.__all__, key=str.lower) for line in entry(name))]) + "\n"


def entry(name: str) -> Iterator[str]:
    value = getattr(tahr, name)
    if not inspect.isclass(value):
        return
    yield f"## {name}\n"
    if text := own_doc(value):
        yield f"{text}\n"
    if head := signature(name, value):
        yield f"```python\n{head}\n```\n"
    yield from members(value)


def own_doc(value: Any) -> str:
    """What a class or a function says of itself; dataclasses write a signature there where nothing is said."""
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if text.startswith(f"{value.__name__}(") else text


def signature(name: str, value: Any) -> str:
    """How something is called, an argument a line where it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    arguments = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    returns = "" if found.return_annotation is found.empty else f" -> {written(found.return_annotation)}"
    words = spread(arguments)
    line = f"{name}({', '.join(words)})"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"
    return line if inspect.isclass(value) else f"{line}{returns}"


def spread(arguments: list[inspect.Parameter]) -> list[str]:
    words = []
    for argument in arguments:
        is_named = argument.kind is argument.KEYWORD_ONLY
        if is_named and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(parameter(argument))
    return words


def parameter(argument: inspect.Parameter) -> str:
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    text = stars + argument.name
    if argument.annotation is not argument.empty:
        text += f": {written(argument.annotation)}"
    if argument.default is not argument.empty:
        text += f" = {default(argument.default)}"
    return text


def default(value: Any) -> str:
    """A default value, without addresses of objects."""
    text = repr(value)
    return "..." if " at 0x" in text or text.startswith("<") else text


def written(annotation: Any) -> str:
    """A type as it stands in the source, without the modules that it comes from."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=\w)", "", text)


def members(value: type) -> Iterator[str]:
    """Public methods and properties, in the order of the source."""
    rows = list(public(value))
    if rows:
        yield "| member | |\n|---|---|"
        yield from (f"| `{call}` | {sentence} |" for call, sentence in rows)
        yield ""


def public(value: type) -> Iterator[tuple[str, str]]:
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        called = getattr(member, "__func__", member)
        if isinstance(member, property):
            yield name, first_sentence(member.fget)
        elif inspect.isfunction(called):
            call = signature(name, called)
            yield re.sub(r"\(\n +|,\n\)|,\n +", joined, call), first_sentence(called)


def joined(found: re.Match[str]) -> str:
    """The lines of a call as one."""
    return "(" if found[0].startswith("(") else ")" if found[0].endswith(")") else ", "


def first_sentence(called: Any) -> str:
    text = " ".join(own_doc(called).split("\n\n")[0].split())
    return text.replace("|", "\\|")

"""Adapters as options name them: which to load, and which of them a request uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tahr.config.checks import Range
from tahr.errors import ConfigError

LoraChoice = tuple[str, float | None]  # the name of an adapter, and its scale; None: the adapter's own
LORA_SCALE = Range(-1000, 1000)


def clean_lora(lora: Any) -> tuple[LoraChoice, ...]:
    """Adapters by name: one name, or a list of names, (name, scale) pairs or mappings with both."""
    several = [lora] if isinstance(lora, str | Mapping) else lora or ()
    try:
        pairs = [lora_choice(each) for each in several]
    except (TypeError, ValueError, KeyError):
        pairs = [("", None)]
    if not all(type(name) is str and name and (s is None or LORA_SCALE.holds(s)) for name, s in pairs):
        raise ConfigError(
            f"lora is {repr(lora)[:200]}, but it must be the name of an adapter, or a list of names and scales "
            f"({LORA_SCALE})."
        )
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class LoraFile:
    """An adapter to load: what requests call it, where it is, and its scale where a request names none."""

    name: str
    path: str
    scale: float = 1.0

    @staticmethod
    def parse(text: str) -> "LoraFile":
        """`NAME=PATH`, or `NAME=PATH,SCALE`."""
        name, equals, rest = text.partition("=")
        path, comma, scale = rest.rpartition(",")
        try:
            made = LoraFile(name.strip(), path, float(scale)) if comma else LoraFile(name.strip(), rest)
        except ValueError:
            made = LoraFile(name.strip(), rest)  # the comma belongs to the path
        if not equals or not made.name or not made.path or not LORA_SCALE.holds(made.scale):
            raise ConfigError(f"{text!r} names no adapter: write NAME=PATH, or NAME=PATH,SCALE ({LORA_SCALE}).")
        return made


def clean_lora_files(loras: Any) -> tuple[str, ...]:
    """Texts that `LoraFile.parse` reads; one of them alone, or a mapping of names to paths, will do as well."""
    texts = [f"{name}={path}" for name, path in loras.items()] if isinstance(loras, Mapping) else loras
    joined: list[str] = []
    for text in map(str, [texts] if isinstance(texts, str) else texts):
        is_scale = "=" not in text and joined  # a list in the environment is cut at its commas
        joined[len(joined) - bool(is_scale) :] = [f"{joined[-1]},{text}" if is_scale else text]
    names = [LoraFile.parse(text).name for text in joined]
    if len(set(names)) < len(names):
        raise ConfigError(f"Two adapters have the same name ({', '.join(names)}): give each its own.")
    return tuple(joined)


def lora_choice(value: Any) -> LoraChoice:
    if isinstance(value, str):
        return value, None
    name, scale = (value["name"], value.get("scale")) if isinstance(value, Mapping) else value
    return name, scale

"""Which model a request is for, and with which adapters."""

from typing import Any

from tahr.config import LoraChoice, clean_lora
from tahr.errors import ConfigError
from tahr.server.http.errors import bad_field
from tahr.server.models.registry import ModelRegistry, ServedModel


def chosen_model(models: ModelRegistry, name: str | None, lora: Any) -> tuple[ServedModel, tuple[LoraChoice, ...]]:
    """The model a request names, and its adapters: by the name `base:adapter`, or by the field `lora`."""
    model, adapter = models.find_adapted(name)
    requested = checked(with_names(lora, model)) if lora else ()
    if adapter and requested:
        raise bad_field("lora", f"The model {name!r} names an adapter already: leave out lora, or name the base model.")
    known = {each.name for each in model.engine.adapters()} if requested else set()
    unknown = [each for each, _ in requested if each not in known]
    if unknown:
        there = ", ".join(sorted(known)) or "none"
        raise bad_field("lora", f"lora names {unknown[0][:80]!r}, which is not loaded: there is {there}.")
    return model, ((adapter, None),) if adapter else requested


def with_names(lora: Any, model: ServedModel) -> Any:
    """Numbers of adapters are their places in the list of loaded ones."""
    if not isinstance(lora, list):
        return lora
    loaded = model.engine.adapters()
    entries = [each if isinstance(each, tuple) else (each, None) for each in lora]
    wrong = [id for id, _ in entries if isinstance(id, int) and not 0 <= id < len(loaded)]
    if wrong:
        raise bad_field(
            "lora", f"lora has the id {wrong[0]}, but /lora-adapters lists {len(loaded)}: name one of them."
        )
    return [(loaded[name].name if isinstance(name, int) else name, scale) for name, scale in entries]


def checked(lora: Any) -> tuple[LoraChoice, ...]:
    try:
        return clean_lora(lora)
    except ConfigError as error:
        raise bad_field("lora", str(error)) from error

"""Which models to serve, and the settings of each: `--model [NAME=]MODEL[,OPTION=VALUE...]` and `[models.NAME]`."""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tahr.cli.settings import options
from tahr.cli.settings.settings_layers import (
    MODEL_SECTIONS,
    Key,
    Layers,
    as_settings,
    hint,
    option_paths,
    profile_values,
    usable_keys,
)
from tahr.cli.settings.sizes import number_or_share
from tahr.config import EngineConfig, SamplingParams
from tahr.errors import ConfigError
from tahr.hub.refs import ALIASES, SOURCES, quant_of
from tahr.server.models.loading import ModelChoice

Warn = Callable[[str], None]

OPTION = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(?!=)(.*)", re.DOTALL)  # a pin has two of =
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TABLE = {"source": str, "quantization": str, "names": list}  # fields of a [models.NAME] beside the options
FORM = "--model [NAME=]MODEL[,OPTION=VALUE...]"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as it was named, and the settings given with its name or in its table, by path."""

    source: str
    name: str | None = None
    quantization: str | None = None
    other_names: tuple[str, ...] = ()
    own: Mapping[str, Any] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "cli"  # "cli", "config" or "default"

    @property
    def label(self) -> str:
        return self.name or self.source


# ---- on the command line ------------------------------------------------------------------------------------


def parse_model(text: str) -> NamedModel:
    """`MODEL`, `NAME=MODEL`, or Tur's `NAME:MODEL[:QUANT]`; any of them with `,OPTION=VALUE` after it."""
    parts = text.split(",")
    # A comma may belong to the model: to a path, or to pins of packages.
    n = next((i for i, part in enumerate(parts) if i and OPTION.fullmatch(part)), len(parts))
    named = ",".join(parts[:n])
    said = parse_named(named)
    own: dict[str, Any] = {}
    for part in parts[n:]:
        read_option(part, f"--model {named}", own)
    quantization = own.pop("quantization", said.quantization)
    return replace(said, quantization=quantization, own=own)


def parse_named(text: str) -> NamedModel:
    name, equals, source = text.partition("=")
    if equals and "/" not in name and not source.startswith("="):
        if not name or not source:
            raise ConfigError(f"--model {text} is half empty: write --model NAME=MODEL.")
        return NamedModel(source, name)
    name, colon, source = text.partition(":")
    if not colon or not is_tur_form(text, name, source):
        return NamedModel(text)
    rest, colon, quant = source.rpartition(":")
    if colon and quant_of(quant) == quant.upper():
        return NamedModel(rest, name, quant)
    return NamedModel(source, name)


def is_tur_form(text: str, name: str, source: str) -> bool:
    """Whether a colon ends a name: not where all of it is a model already, and only before something that is one."""
    if text.lower() in ALIASES or name.lower() in SOURCES or not NAME.fullmatch(name) or Path(text).exists():
        return False
    return "/" in source or source.lower() in ALIASES or source.partition(":")[0].lower() in SOURCES


def read_option(text: str, where: str, own: dict[str, Any]) -> None:
    found = OPTION.fullmatch(text)
    if found is None:
        raise ConfigError(f"{where} is followed by {text!r}, which is no OPTION=VALUE: write {FORM}.")
    name = found[1].replace("-", "_").lower()
    value = found[2]
    if name in ("quantization", "quant"):
        path = "quantization"
        parsed = value
    else:
        key = key_of(name, where)
        path = key.path
        parsed = parse_value(key, value, f"{name} of {where}")
    if path in own:
        raise ConfigError(f"{where} gives {name} twice: give it once.")
    own |= as_settings(path, parsed)


def parse_value(key: Key, text: str, where: str) -> Any:
    """Read a value as the flag of that name does: a context may be a share of the model's own."""
    if key.path != "engine.context_size" or not text.strip().endswith("%"):
        return key.parse(text, where)
    try:
        return number_or_share(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{where} is wrong: {error}.") from None


def key_of(name: str, where: str) -> Key:
    paths = option_paths()
    if name not in paths:
        raise ConfigError(f"{where} has the option {name}, which is none a model can have{hint(name, paths)}")
    key = usable_keys(MODEL_SECTIONS)[paths[name]]
    if key.many:
        raise ConfigError(f"{name} of {where} is a list: set it in the table [models.NAME] of the settings.")
    return key


# ---- in the settings ----------------------------------------------------------------------------------------


def parse_table(name: str, table: Mapping[str, Any], warn: Warn) -> NamedModel:
    """A table `[models.NAME]`; without a source it speaks of a model that is named elsewhere."""
    where = f"[models.{name}]"
    for field_name, kind in TABLE.items():
        if field_name in table and not isinstance(table[field_name], kind):
            raise ConfigError(f"{where} says {table[field_name]!r} for {field_name}: give a text (a list for names).")
    paths = option_paths()
    keys = usable_keys(MODEL_SECTIONS)
    values = {}
    for option, value in table.items():
        if option in paths:
            values[paths[option]] = keys[paths[option]].check(value, where)
        elif option not in TABLE:
            warn(f"warning: {where} sets {option}, which is none a model can have{hint(option, paths)}")
    names = tuple(map(str, table.get("names", ())))
    return NamedModel(table.get("source", ""), name, table.get("quantization"), names, table=values, origin="config")


def merged(said: NamedModel, tables: Mapping[str, NamedModel]) -> NamedModel:
    """A named model with the values of its table; a name alone means the table's model."""
    alone = not said.name and said.source in tables
    table = tables.get(said.source if alone else said.name or "")
    if table is None:
        return said
    if alone and not table.source:
        raise ConfigError(f'[models.{table.name}] names no source: write source = "..." there, or --model NAME=MODEL.')
    return replace(
        said,
        name=table.name,
        source=table.source if alone else said.source,
        quantization=said.quantization or (table.quantization if alone else None),
        other_names=table.other_names,
        table=table.table,
    )


# ---- all of it ----------------------------------------------------------------------------------------------


def named_models(args: argparse.Namespace, layers: Layers, warn: Warn) -> list[NamedModel]:
    """The models that were named, in that order; those of the settings if none was; else the default one."""
    tables = {name: parse_table(name, table, warn) for name, table in layers.models.items()}
    named = options.model_name(args)
    if named and args.models:
        raise ConfigError(f"The model is named by {named} and by --model: use --model for all of them.")
    if args.weight_path is not None:
        return [NamedModel(str(named), quantization=args.quantization)]
    named = named or options.model_of_environment()
    texts: Sequence[str] = args.models or ([named] if named else [])
    found = [merged(parse_model(text), tables) for text in texts]
    if not found:
        found = [table for table in tables.values() if table.source] or [
            NamedModel(options.default_model(warn), origin="default")
        ]
    return [replace(said, quantization=said.quantization or args.quantization) for said in found]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model to serve, and its settings with their places."""

    model: ModelChoice
    said: NamedModel
    layers: Layers


def models_of(args: argparse.Namespace, layers: Layers, warn: Warn) -> list[ModelSettings]:
    """All models with what holds for each, checked."""
    choices = [settings_for(said, layers, warn) for said in named_models(args, layers, warn)]
    if args.exact:
        models = [replace(each.model, source=options.exact(each.model.source, True)) for each in choices]
        choices = [replace(each, model=model) for each, model in zip(choices, models, strict=True)]
    if args.served_model_name:
        first = choices[0]
        names = (*args.served_model_name, *first.model.other_names)
        choices[0] = replace(first, model=replace(first.model, other_names=names))
    return choices


def settings_for(said: NamedModel, layers: Layers, warn: Warn) -> ModelSettings:
    about = layers.about({**profile_values(said.source, MODEL_SECTIONS, warn), **said.table}, said.own)
    try:
        config = EngineConfig(**about.values("engine"))
        sampling = SamplingParams.of(about.values("sampling"))
    except ConfigError as error:
        raise (ConfigError(f"Of the model {said.label}, {error}") if said.own or said.table else error) from error
    config = options.within_cores(config, warn)
    model = ModelChoice(said.source, said.name, said.quantization, said.other_names, config, sampling)
    return ModelSettings(model, said, about)


def own_values(choice: ModelSettings, warn: Warn) -> dict[str, Any]:
    """The sampling settings that the files of this model recommend."""
    from tahr.cli.settings.model_files import model_values

    return model_values(choice.model.source, choice.model.quantization, warn)


def effective_json(layers: Layers, choices: Sequence[ModelSettings], sections: Sequence[str], warn: Warn) -> str:
    """Every key, its value and where it was set; a key of one of several models begins with `models.NAME`."""
    choices = [replace(choice, layers=choice.layers.over_model(own_values(choice, warn))) for choice in choices]
    if len(choices) == 1:
        return json.dumps(choices[0].layers.effective(sections), indent=1)
    rows = general = layers.effective(sections)
    for choice in choices:
        said = choice.said
        prefix = f"models.{choice.said.label}."
        own = [row for row in choice.layers.effective(sections) if row not in general]
        rows = [*rows, {"key": f"{prefix}source", "value": said.source, "source": said.origin}]
        rows += [{**row, "key": prefix + row["key"]} for row in own]
    return json.dumps(rows, indent=1)

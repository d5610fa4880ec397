"""Where a setting comes from: defaults, below a file, below the environment, below the command line.

A key is `section.field`, and the fields are those of the checked configuration: nothing here lists them twice.
"""

import argparse
import json
import os
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from tahr.cli.settings.sizes import Share, whole_number
from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.errors import ConfigError
from tahr.regular_file import read_text
from tahr.server.state.settings import Settings


@dataclass(frozen=True, slots=True)
class Chat:
    """Beginning of a conversation."""

    system: str | None = None


SECTIONS: dict[str, type] = {"sampling": SamplingParams, "engine": EngineConfig, "server": Settings, "chat": Chat}
# Shorter names in the environment for what is set most often; every key also has its long one.
SHORT = {
    "TAHR_TEMP": "sampling.temperature",
    "TAHR_TOP_K": "sampling.top_k",
    "TAHR_TOP_P": "sampling.top_p",
    "TAHR_MAX_NEW": "sampling.max_tokens",
    "TAHR_CTX": "engine.context_size",
    "TAHR_MAX_CTX": "engine.context_size",
    "TAHR_BACKEND": "engine.backend",
    "TAHR_NCMOE": "engine.cpu_experts",
    "TAHR_SPEC_DRAFT": "engine.spec_draft",
    "TAHR_SPEC_K": "engine.spec_tokens",
    "TAHR_THREADS": "engine.n_threads",
    "TAHR_HOST": "server.host",
    "TAHR_PORT": "server.port",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "server.otlp_endpoint",
}
PREFIX = "TAHR_"
# Keys by their names of earlier releases.
RENAMED = {"server.grace_s": "server.drain_timeout_s"}
# Variables that are no settings: what reads them reads them itself.
READ_ELSEWHERE = {
    *(
        "TAHR_HOME",
        "TAHR_API_KEY",
        "TAHR_DEBUG",
        "TAHR_PROFILE",
        "TAHR_NO_FLASH",
        "TAHR_CPU_ISA",
        "TAHR_VULKAN_DEVICE",
        "TAHR_OLLAMA_REGISTRY",
    ),
    *("TAHR_TEST_ASSETS", "TAHR_TEST_BACKENDS", "TAHR_TEST_CACHE", "TAHR_TEST_OFFLINE", "TAHR_TESTS"),
}
SECRET = {"server.api_keys", "server.admin_key"}
# Fields that decide what a reply looks like: only the request that gets the reply can set them.
REQUEST_ONLY = {
    "sampling.n",
    "sampling.lora",
    "sampling.grammar",
    "sampling.logprobs",
    "sampling.prompt_logprobs",
    "sampling.pinned",
}
WORDS = {
    word: value for value, words in {True: "true yes on 1", False: "false no off 0"}.items() for word in words.split()
}
READERS: dict[type, Callable[[str], Any]] = {int: whole_number, bool: lambda text: WORDS[text.lower()]}
KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def variable_of(path: str) -> str:
    return PREFIX + path.replace(".", "_").upper()


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its type, and whether it is a list of that."""

    path: str
    kind: type
    many: bool
    default: Any

    @property
    def variable(self) -> str:
        """Its long name in the environment."""
        return variable_of(self.path)

    @property
    def expected(self) -> str:
        return f"a list, each entry {KINDS[self.kind]}" if self.many else KINDS[self.kind]

    def parse(self, text: str, where: str) -> Any:
        """A value that was written as text; entries of a list have commas between them."""
        try:
            return tuple(map(self._one, text.split(","))) if self.many else self._one(text)
        except (ValueError, KeyError, argparse.ArgumentTypeError):
            raise ConfigError(f"{where} is {text!r}, but {self.path} is {self.expected}.") from None

    def _one(self, text: str) -> Any:
        return READERS.get(self.kind, self.kind)(text.strip())

    def check(self, value: Any, where: str) -> Any:
        """A value that has a type of its own."""
        if self.many and isinstance(value, list) and all(map(self._fits, value)):
            return tuple(value)
        if not self.many and self._fits(value):
            return value
        raise ConfigError(f"{where} says {value!r} for {self.path}, but it is {self.expected}.")

    def _fits(self, value: Any) -> bool:
        kinds = (int, float) if self.kind is float else (self.kind,)
        return type(value) in kinds  # a bool is an int, but `true` does not mean 1


@cache
def all_keys() -> Mapping[str, Key]:
    """Every setting that can be written down as a value or a list of values."""
    hints = {cls: get_type_hints(cls) for cls in SECTIONS.values()}
    made = [key_of(section, each, hints[cls][each.name]) for section, cls in SECTIONS.items() for each in fields(cls)]
    return {key.path: key for key in made if key and key.path not in REQUEST_ONLY}


def key_of(section: str, field: "Field[Any]", hint: Any) -> Key | None:
    many = get_origin(hint) is tuple
    kinds = [kind for kind in get_args(hint) or (hint,) if kind not in (NoneType, Ellipsis)]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        return None
    default = field.default if field.default is not MISSING else None
    if section == "sampling" and default is None:
        default = getattr(NEUTRAL_SAMPLING, field.name)
    return Key(f"{section}.{field.name}", kinds[0], many, default)


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """Values from one place."""

    source: str  # model, config, env or cli
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layers:
    """Lowest first; and the tables `[models.NAME]` of the file, unread."""

    layers: Sequence[SettingsLayer] = ()
    models: Mapping[str, Any] = field(default_factory=dict)

    def about(self, file: Mapping[str, Any], own: Mapping[str, Any]) -> "Layers":
        """For one model: its own files go over the general file, options given with its name over everything."""
        general, *rest = self.layers
        return Layers([general, SettingsLayer("config", file), *rest, SettingsLayer("cli", own)])

    def over_model(self, values: Mapping[str, Any]) -> "Layers":
        """With the model's own values below everything that was set."""
        return Layers([SettingsLayer("model", values), *self.layers], self.models)

    def values(self, section: str) -> dict[str, Any]:
        """The values set in a section; what is not set is left to its defaults."""
        merged = {path: value for layer in self.layers for path, value in layer.values.items()}
        return {path.split(".")[1]: value for path, value in merged.items() if path.startswith(f"{section}.")}

    def effective(self, sections: Sequence[str]) -> list[dict[str, Any]]:
        """Every key of these sections, its value, and where it was set."""
        rows = {key.path: (key.default, "default") for key in all_keys().values() if key.path.split(".")[0] in sections}
        for layer in self.layers:
            rows |= {path: (value, layer.source) for path, value in layer.values.items()}
        return [{"key": path, "value": shown(path, value), "source": source} for path, (value, source) in rows.items()]


def shown(path: str, value: Any) -> Any:
    n_secrets = len(value) if isinstance(value, tuple) else 1
    return f"{n_secrets} hidden" if path in SECRET and value else value


def effective_json(layers: Layers, sections: Sequence[str]) -> str:
    return json.dumps(layers.effective(sections), indent=1)


def read_layers(
    args: argparse.Namespace,
    sections: Sequence[str],
    flags: Mapping[str, Any],
    warn: Callable[[str], None],
) -> Layers:
    """All layers; `flags` are the options that were given, by path."""
    known = all_keys()
    usable = usable_keys(sections)
    file = read_file(find_file(args.config), warn)
    models = file.content.pop("models", {})
    layers = [
        SettingsLayer("config", mine(file_values(file, known, warn), usable)),
        SettingsLayer("env", mine(env_values(os.environ, known, warn), usable)),
        SettingsLayer("cli", set_values(args.sets or [], usable)),
    ]
    for path in sorted(layers[-1].values.keys() & flags.keys()):
        warn(f"warning: {path} is set by --set and by an option of its own, which wins.")
    if not isinstance(models, dict) or not all(isinstance(table, dict) for table in models.values()):
        raise ConfigError("models in the settings must be tables, one for each model: write [models.NAME].")
    return Layers([*layers, SettingsLayer("cli", flags)], models)


def usable_keys(sections: Sequence[str]) -> dict[str, Key]:
    return {path: key for path, key in all_keys().items() if path.split(".")[0] in sections}


def mine(values: Mapping[str, Any], usable: Mapping[str, Key]) -> dict[str, Any]:
    """Without the settings of other verbs, which may share a file."""
    return {path: value for path, value in values.items() if path in usable}


def flags_in(args: argparse.Namespace, sections: Sequence[str]) -> dict[str, Any]:
    """The options that were given, by path: an option's name in `args` is that of the field it sets."""
    given = {path: getattr(args, path.split(".")[1], None) for path in all_keys() if path.split(".")[0] in sections}
    given |= as_settings("engine.context_size", given.get("engine.context_size"))
    return {
        path: tuple(value) if isinstance(value, list) else value for path, value in given.items() if value is not None
    }


def as_settings(path: str, value: Any) -> dict[str, Any]:
    """The settings that a value stands for: a share of the context has a field of its own."""
    if isinstance(value, Share):
        return {path: 0, "engine.context_share": value}
    return {path: value}


# ---- the file -----------------------------------------------------------------------------------------------


MAX_FILE_BYTES = 1 << 20


def find_file(requested: Path | None) -> Path | None:
    """The file that was named, else the first that is there; files are never mixed."""
    if requested is not None:
        if not requested.is_file():
            raise ConfigError(f"--config {requested} is not a file: name one that exists, or leave the option out.")
        return requested
    return next((path for path in (Path("tahr.toml"), home() / "tahr.toml") if path.is_file()), None)


def home() -> Path:
    """Where a user's settings are."""
    from tahr.hub.store import expanded

    return Path(os.environ.get("XDG_CONFIG_HOME") or expanded(Path("~/.config"))) / "tahr"


def profile_of(model: str) -> Path:
    """The file about one model: `qwen3-0.6b.toml` for qwen3:0.6b, `x-q8_0.toml` for some/where/x-q8_0.gguf."""
    stem = model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").replace(":", "-")
    return home() / "models" / f"{stem}.toml"


def profile_values(model: str, sections: Sequence[str], warn: Callable[[str], None]) -> dict[str, Any]:
    """Values in a user's file about this model."""
    path = profile_of(model)
    file = read_file(path if path.is_file() else None, warn)
    short = option_paths() | {"system": "chat.system"}
    named = {short.get(name, name): value for name, value in flat(file.content).items()}
    return mine(file_values(File(file.where, named), all_keys(), warn), usable_keys(sections))


MODEL_SECTIONS = ("engine", "sampling")  # sections that one model can have of its own


def option_paths() -> dict[str, str]:
    """The paths of all options a model can have, by every name: those of the flags, and those of the fields."""
    from tahr.cli.settings import options

    paths = {path.split(".")[1]: path for path in usable_keys(MODEL_SECTIONS)}
    for table in (options.ENGINE, options.BATCHING, options.SPECULATION, options.SAMPLING):
        for option in table:
            spelled = [flag[2:].replace("-", "_") for flag in option.flags if flag.startswith("--")]
            paths |= dict.fromkeys(spelled, paths[option.field])
    return paths


@dataclass(frozen=True, slots=True)
class File:
    """A settings file and its values."""

    where: str = ""
    content: dict[str, Any] = field(default_factory=dict)


def read_file(path: Path | None, warn: Callable[[str], None]) -> File:
    if path is None:
        return File()
    try:
        content = tomllib.loads(read_text(path, MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The settings in {path} cannot be read: {error}.") from error
    warn(f"Settings from {path}.")
    return File(str(path), content)


def file_values(file: File, known: Mapping[str, Key], warn: Callable[[str], None]) -> dict[str, Any]:
    values = {}
    for name, value in flat(file.content).items():
        path = RENAMED.get(name, name)
        if path != name:
            warn(f"warning: {file.where} sets {name}, which is called {path} now.")
        if path in known:
            values[path] = known[path].check(value, file.where)
        else:
            warn(f"warning: {file.where} sets {name}, which is no setting{hint(name, known)}")
    return values


def flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of one level as `section.field`; deeper ones stay values, and no key has such."""
    pairs = [
        (f"{name}.{inner}", value) for name, table in content.items() if isinstance(table, dict)
        for inner, value in table.items()
    ]  # fmt: skip
    return dict(pairs) | {name: value for name, value in content.items() if not isinstance(value, dict)}


# ---- the environment and --set ------------------------------------------------------------------------------


def env_values(environ: Mapping[str, str], known: Mapping[str, Key], warn: Callable[[str], None]) -> dict[str, Any]:
    old = {variable_of(name): path for name, path in RENAMED.items() if path in known}
    names = SHORT | old | {key.variable: path for path, key in known.items()}
    values: dict[str, Any] = {}
    for name in sorted(environ):
        path = names.get(name)
        if name in old:
            warn(f"warning: {name} is set, which is called {variable_of(old[name])} now.")
        if path is None and name.startswith(PREFIX) and name not in READ_ELSEWHERE:
            warn(f"warning: {name} is set, but is no setting{hint(name, [*names, *READ_ELSEWHERE])}")
        elif path in values:
            raise ConfigError(f"{name} sets {path}, which another variable sets too: keep one of them.")
        elif path is not None and environ[name]:
            values[path] = known[path].parse(environ[name], name)
    return values


def set_values(sets: Sequence[str], usable: Mapping[str, Key]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        path = RENAMED.get(name, name)
        if not equals:
            raise ConfigError(f"--set {text} has no value: write --set KEY=VALUE.")
        if path not in usable:
            raise ConfigError(f"--set {path} is no setting{hint(path, usable)}")
        if path in values:
            raise ConfigError(f"--set gives {path} twice: give it once.")
        values[path] = usable[path].parse(value, f"--set {path}")
    return values


def hint(name: str, known: Collection[str]) -> str:
    """The end of a complaint about a name."""
    near = get_close_matches(name, known, 1) or [path for path in known if path.endswith(f".{name}")]
    return f": did you mean {near[0]}?" if near else ": `--effective-config-json` lists them all."

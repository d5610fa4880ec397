"""Options of `tahr run` as tables, and the checked objects they become."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr.config import SamplingParams, sampling_names
from tahr.errors import ConfigError, ModelNotFound


@dataclass(frozen=True, slots=True)
class Option:
    """One option that takes a value: its spellings, the configuration field it sets, its type and its help."""

    flags: tuple[str, ...]
    field: str
    type: type
    help: str
    many: bool = False

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        action = "append" if self.many else "store"
        group.add_argument(*self.flags, dest=self.field, type=self.type, help=self.help, metavar="X", action=action)


SAMPLING = (
    Option(("--temperature", "--temp"), "temperature", float, "0 always takes the most likely token"),
    Option(("--top-k",), "top_k", int, "choose among the X most likely tokens (0: off)"),
    Option(("--top-p",), "top_p", float, "choose among the tokens that make up X of the probability"),
    Option(("--min-p",), "min_p", float, "drop tokens less likely than X times the best one"),
    Option(("--repeat-penalty",), "repetition_penalty", float, "make recent tokens less likely (1: off)"),
    Option(("--repeat-last-n",), "repeat_last_n", int, "how many tokens count as recent"),
    Option(("-s", "--seed"), "seed", int, "the same seed gives the same reply"),
    Option(("-n", "--max-tokens", "--n-predict", "--sample-len"), "max_tokens", int, "longest reply in tokens"),
    Option(("--stop",), "stop", str, "end the reply before this text (may be repeated)", many=True),
)

ENGINE = (
    Option(("--backend",), "backend", str, "where to run (`tahr devices` lists what is here)"),
    Option(("-t", "--threads"), "n_threads", int, "CPU threads (default: one per core)"),
    Option(("-c", "--ctx-size", "--n-ctx", "--max-model-len"), "context_size", int, "longest conversation in tokens"),
    Option(("--kv-dtype",), "kv_dtype", str, "number format of keys and values: f16, f32, bf16 or q8_0"),
    Option(("--quantize",), "quantize", str, "quantise a float checkpoint at load: int8, int4, q8_0, q4_k, ..."),
    Option(("--gpu-memory-utilization",), "gpu_memory_utilization", float, "share of a GPU's memory (default 0.9)"),
)

THINKING = {
    True: ("--think", "--thinking", "--enable-thinking"),
    False: ("--no-think", "--no-thinking", "--disable-thinking"),
}


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The options that become SamplingParams."""
    group = parser.add_argument_group("sampling (what is not given, the model's authors chose)")
    for option in SAMPLING:
        option.add_to(group)
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on when the model says it is done")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The options that become EngineConfig."""
    group = parser.add_argument_group("engine")
    for option in ENGINE:
        option.add_to(group)
    text = "replies never depend on other requests: always so on the CPU, slower on a GPU"
    group.add_argument("--deterministic", action="store_true", default=None, help=text)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options by which settings come from elsewhere (`layers` reads them)."""
    group = parser.add_argument_group("settings (flags, over TAHR_ variables, over a file, over defaults)")
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="settings to read (else ./tahr.toml, ~/.config/tahr)"
    )
    group.add_argument("--set", dest="sets", action="append", metavar="KEY=VALUE", help="any setting, by its key")
    group.add_argument("--effective-config-json", action="store_true", help="show all settings and who set them")


def add_thinking(parser: argparse.ArgumentParser) -> None:
    """The switch of models that can think before they answer."""
    group = parser.add_mutually_exclusive_group()
    for value, flags in THINKING.items():
        text = "let the model think first" if value else "answer without thinking"
        group.add_argument(*flags, dest="thinking", action="store_const", const=value, help=text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, in all the ways it can be said."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="alias, org/repo[:quant], ollama:name, file or directory"
    )
    parser.add_argument("--model-id", metavar="MODEL", help="the same as MODEL")
    parser.add_argument("--weight-path", type=Path, metavar="PATH", help="a local file or directory instead of MODEL")
    parser.add_argument("-q", "--quantization", metavar="Q", help="which quantisation to fetch, such as q4_k_m")


def given(args: argparse.Namespace, options: tuple[Option, ...]) -> dict[str, Any]:
    """Only what was said, so that defaults stay in one place: the configuration."""
    values = {option.field: getattr(args, option.field) for option in options}
    return {name: value for name, value in values.items() if value is not None}


def model_name(args: argparse.Namespace) -> str | None:
    """The one model that was named, or None; naming it twice is an error."""
    ways = {"MODEL": args.model, "--model-id": args.model_id, "--weight-path": args.weight_path}
    said = {way: value for way, value in ways.items() if value is not None}
    if len(said) > 1:
        raise ConfigError(f"The model is named by {' and by '.join(said)}: name it once (-p gives the prompt).")
    if args.weight_path is not None:
        return local(args.weight_path)
    return next(iter(said.values()), None)


def local(path: Path) -> str:
    """A path as a model name that can only mean that path."""
    if not path.exists():
        raise ModelNotFound(f"--weight-path {path} does not exist: give a .gguf file or a directory with safetensors.")
    return str(path.resolve())


def said(params: SamplingParams) -> dict[str, Any]:
    """The sampling values that say something, under the names `/set` uses."""
    return {name: getattr(params, name) for name in sampling_names() if params.asks_for(name)}

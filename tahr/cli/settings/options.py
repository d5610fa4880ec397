"""Options of `tahr run` as tables, and the checked objects they become."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tahr.cli.settings.sizes import number_or_share, whole_number
from tahr.config import EngineConfig, SamplingParams, kv_type, sampling_names
from tahr.errors import ConfigError, ModelNotFound


@dataclass(frozen=True, slots=True)
class Option:
    """One option that takes a value: its spellings, the configuration field it sets, its type and its help."""

    flags: tuple[str, ...]
    field: str
    type: Callable[[str], Any]
    help: str
    many: bool = False

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        action = "append" if self.many else "store"
        group.add_argument(*self.flags, dest=self.field, type=self.type, help=self.help, metavar="X", action=action)


SAMPLING = (
    Option(("--temperature", "--temp"), "temperature", float, "0 always takes the most likely token"),
    Option(("--top-k",), "top_k", whole_number, "choose among the X most likely tokens (0: off)"),
    Option(("--top-p",), "top_p", float, "choose among the tokens that make up X of the probability"),
    Option(("--min-p",), "min_p", float, "drop tokens less likely than X times the best one"),
    Option(("--repeat-penalty",), "repetition_penalty", float, "make recent tokens less likely (1: off)"),
    Option(("--repeat-last-n",), "repeat_last_n", whole_number, "how many tokens count as recent (-1: all)"),
    Option(("--presence-penalty",), "presence_penalty", float, "subtract X from tokens the reply has (0: off)"),
    Option(
        ("--frequency-penalty",), "frequency_penalty", float, "subtract X for each time the reply has them (0: off)"
    ),
    Option(("-s", "--seed"), "seed", whole_number, "the same seed gives the same reply (-1: a new one each time)"),
    Option(
        ("-n", "--max-tokens", "--n-predict", "--sample-len"),
        "max_tokens",
        whole_number,
        "longest reply in tokens (-1: as long as the context allows)",
    ),
    Option(
        ("--thinking-budget", "--reasoning-budget"),
        "thinking_budget",
        whole_number,
        "most tokens of thinking before the reply (0: none)",
    ),
    Option(("--min-tokens",), "min_tokens", whole_number, "shortest reply in tokens"),
    Option(
        ("--stop", "-r", "--reverse-prompt"), "stop", str, "end the reply before this text (may be repeated)", many=True
    ),
    Option(("--typical", "--typical-p"), "typical_p", float, "keep tokens of typical surprise up to X (1: off)"),
    Option(("--top-n-sigma",), "top_n_sigma", float, "keep logits within X standard deviations of the best (0: off)"),
    Option(("--top-a",), "top_a", float, "drop tokens below X times the best one's squared probability (0: off)"),
    Option(("--eta-cutoff",), "eta_cutoff", float, "drop tokens below a floor that follows the entropy (0: off)"),
    Option(("--xtc-probability",), "xtc_probability", float, "how often the likeliest tokens are left out (0: off)"),
    Option(("--xtc-threshold",), "xtc_threshold", float, "which tokens count as likely for that (default 0.1)"),
    Option(("--dry-multiplier",), "dry_multiplier", float, "penalise tokens that would repeat a sequence (0: off)"),
    Option(("--dry-base",), "dry_base", float, "how fast that penalty grows (default 1.75)"),
    Option(
        ("--dry-allowed-length",), "dry_allowed_length", whole_number, "repeated tokens without penalty (default 2)"
    ),
    Option(("--dry-penalty-last-n",), "dry_penalty_last_n", whole_number, "tokens looked back at (default -1: all)"),
    Option(("--mirostat",), "mirostat", whole_number, "2: hold the surprise of the text steady (0: off)"),
    Option(("--mirostat-ent", "--mirostat-tau"), "mirostat_tau", float, "the surprise mirostat aims at (default 5)"),
    Option(("--mirostat-lr", "--mirostat-eta"), "mirostat_eta", float, "how fast it corrects (default 0.1)"),
)

ENGINE = (
    Option(("--backend",), "backend", str, "where to run (`tahr devices` lists what is here)"),
    Option(("-t", "--threads"), "n_threads", whole_number, "CPU threads (default: one per core)"),
    Option(
        ("-c", "--ctx", "--ctx-size", "--n-ctx", "--max-model-len"),
        "context_size",
        number_or_share,
        "longest conversation in tokens: 4096, 8k, or 50%% of the model's own (0: all of it)",
    ),
    Option(
        ("--kv-dtype",),
        "kv_dtype",
        str,
        "format of keys and values: f16, f32, bf16, q8_0 (int8), fp8 (on a GPU), or KEYS/VALUES",
    ),
    Option(
        ("--quantize",),
        "quantize",
        str,
        "quantise a float checkpoint at load: int8, int4, q8_0, q4_k, ...; on a GPU also fp8",
    ),
    Option(("--gpu-memory-utilization",), "gpu_memory_utilization", float, "share of a GPU's memory (default 0.9)"),
    Option(("--gpu-budget",), "gpu_budget", str, "a GPU's memory for weights, KV and steps: 8g, 512m or 50%%"),
    Option(
        ("-tp", "--tensor-parallel", "--tensor-parallel-size"),
        "tensor_parallel",
        whole_number,
        "processes that share the model, each with a part of every large matrix (CPU only; default 1)",
    ),
    Option(("--ram-budget",), "ram_budget", str, "the host's memory for weights and KV: 8g, 512m or 50%%"),
    Option(
        ("-ncmoe", "--cpu-experts", "--n-cpu-moe"),
        "cpu_experts",
        str,
        "layers whose experts stay in the host's memory: auto, all or a number",
    ),
    Option(("--offload-dir",), "offload_dir", str, "a folder for matrices that are not read from the model's files"),
    Option(("--kv-host-size",), "kv_host_size", str, "host memory for KV pages that may return: 4g, 512m or 10%%"),
    Option(
        ("--kv-disk",),
        "kv_disk",
        str,
        "a directory, yours alone, for KV pages that outlive the process; prompts can be read from them",
    ),
    Option(("--kv-disk-size",), "kv_disk_size", str, "what that directory may hold (default 20g)"),
    Option(("--kv-disk-key",), "kv_disk_key", str, "a file with 64 hexadecimal digits that seals its files"),
    Option(
        ("--lora",),
        "loras",
        str,
        "an adapter to load, NAME=PATH or NAME=PATH,SCALE: a folder of PEFT's or a GGUF (repeatable)",
        many=True,
    ),
    Option(
        ("--lora-rows",),
        "lora_rows",
        whole_number,
        "ranks of adapters, added up, that a GPU keeps room for behind its matrices (default 128 with --lora)",
    ),
    Option(("--tokenizer",), "tokenizer", str, "a tokenizer.json or its directory, instead of the model's own"),
    Option(
        ("--chat-template", "--chat-template-file"), "chat_template", str, "a Jinja file, instead of the model's own"
    ),
    Option(
        ("-mm", "--mmproj"), "mmproj", str, "the file of a GGUF's tower for images, if it does not lie beside the model"
    ),
    Option(
        ("--tool-call-parser",),
        "tool_call_parser",
        str,
        "how the model writes tool calls: hermes, llama3, mistral, ...",
    ),
)
KV_SIDES = {"-ctk": "--cache-type-k", "-ctv": "--cache-type-v"}

BATCHING = (
    Option(
        ("--max-batch-size", "--max-num-seqs", "--parallel", "-np", "--np"),
        "max_batch_size",
        whole_number,
        "requests that run at once (default 16, on a GPU 256)",
    ),
    Option(
        ("--max-prefill-batch",),
        "max_prefill_batch",
        whole_number,
        "of them, those whose prompt is in one step",
    ),
    Option(("--max-decode-batch",), "max_decode_batch", whole_number, "of them, those that get a token in one step"),
    Option(("--max-decode-tokens",), "max_decode_tokens", whole_number, "tokens that all of those get (default 4096)"),
    Option(
        ("--prefill-chunk-size",),
        "prefill_chunk_size",
        whole_number,
        "tokens of one prompt in one step (default 512, on a GPU 4096)",
    ),
    Option(
        ("--max-num-batched-tokens",),
        "max_prefill_tokens",
        whole_number,
        "tokens of all prompts in one step (default: one chunk, on a GPU 8192)",
    ),
    Option(
        ("--active-decode-prefill-chunk",),
        "active_prefill_tokens",
        whole_number,
        "the same while others get tokens (default: as many as take 0.1 s, on a GPU 0.2)",
    ),
    Option(
        ("--prefill-first-until-active",),
        "prefill_first_until_active",
        whole_number,
        "compute prompts first while fewer than N get tokens",
    ),
    Option(("--scheduling-policy",), "scheduling_policy", str, "fcfs, priority or sjf"),
    Option(("--cache-max-entries",), "cache_max_entries", whole_number, "prompts the prefix cache has room for"),
    Option(("--cache-max-tokens",), "cache_max_tokens", whole_number, "tokens of a prompt that the prefix cache keeps"),
)
SPECULATION = (
    Option(
        ("--spec-draft", "--model-draft"),
        "spec_draft",
        str,
        "a smaller model of the same vocabulary, or an EAGLE-3 drafter of the model, that guesses",
    ),
    Option(("--spec-tokens", "--draft-max"), "spec_tokens", whole_number, "tokens guessed at once, at most (1 to 64)"),
)
TRACES = (
    Option(("--decision-trace-jsonl",), "decision_trace_jsonl", str, "a file that gets a line per step of the engine"),
    Option(("--chrome-trace",), "chrome_trace", str, "the same for chrome://tracing or Perfetto"),
)
SPECULATION_SWITCHES = {
    ("--spec-ngram", "--spec-lookup"): "guess what followed the same words earlier in the text: no model is needed",
    ("--spec-off",): "guess nothing, whatever the settings say",
}
PREFIX_CACHE = {
    True: ("--prefix-cache", "--enable-prefix-cache", "--enable-prefix-caching"),
    False: ("--no-prefix-cache", "--disable-prefix-cache", "--no-enable-prefix-caching"),
}
THINKING = {
    True: ("--think", "--thinking", "--enable-thinking"),
    False: ("--no-think", "--no-thinking", "--disable-thinking"),
}


def add_sampling(
    parser: argparse.ArgumentParser, title: str = "sampling (what is not given, the model's authors chose)"
) -> None:
    """The options that become SamplingParams."""
    group = parser.add_argument_group(title)
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
    for flags in KV_SIDES.items():
        text = f"--kv-dtype for the {'keys' if flags[0] == '-ctk' else 'values'} alone"
        group.add_argument(*flags, metavar="X", help=text)
    group.add_argument(
        "-ngl", "--n-gpu-layers", "--gpu-layers", metavar="N", help="0: all on the CPU; 99 or all: all on the GPU"
    )


def add_speculation(parser: argparse.ArgumentParser) -> None:
    """The options of EngineConfig about guessing tokens ahead."""
    group = parser.add_argument_group("speculation (replies stay the same, and come sooner where guesses are right)")
    for option in SPECULATION:
        option.add_to(group)
    for flags, text in SPECULATION_SWITCHES.items():
        group.add_argument(*flags, action="store_true", default=None, help=text)


def add_batching(parser: argparse.ArgumentParser) -> None:
    """The options of EngineConfig about requests that run together."""
    group = parser.add_argument_group("batching")
    for option in BATCHING:
        option.add_to(group)
    text = "always so: requests share the steps of the engine"
    group.add_argument("--enable-batching", action="store_true", help=text)
    for value, flags in PREFIX_CACHE.items():
        text = "share prompts that begin alike (default)" if value else "compute every prompt anew"
        group.add_argument(*flags, dest="prefix_cache_flags", action="append_const", const=value, help=text)


def engine_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The settings behind flags that are not written like the setting itself."""
    flags: dict[str, Any] = {}
    switched = set(args.prefix_cache_flags or ())
    if len(switched) > 1:
        raise ConfigError("The prefix cache is switched on and off at once: choose one of the two.")
    if switched:
        flags["engine.prefix_cache"] = switched.pop()
    if args.n_gpu_layers is not None:
        flags["engine.backend"] = backend_for(args.n_gpu_layers, args.backend)
    sides = {args.cache_type_k, args.cache_type_v}
    if sides != {None}:
        flags["engine.kv_dtype"] = kv_types(args)
    return flags


def engine_flag(field: str, value: Any) -> str:
    """How a setting of the engine is written as a flag."""
    if field == "prefix_cache":
        return PREFIX_CACHE[value][0]
    field = "context_size" if field == "context_share" else field
    spelled = {each.field: each.flags for each in (*ENGINE, *BATCHING, *SPECULATION)}
    return next((flag for flag in spelled.get(field, ()) if flag.startswith("--")), f"--{field.replace('_', '-')}")


def kv_types(args: argparse.Namespace) -> str | None:
    """The formats of keys and values as one setting; --kv-dtype is that of a side nothing is said about."""
    if args.kv_dtype is not None and "/" in args.kv_dtype:
        raise ConfigError("--kv-dtype names a type for each side already: leave --cache-type-k and --cache-type-v out.")
    sides = (args.cache_type_k, args.cache_type_v)
    return kv_type("/".join(side or args.kv_dtype or "" for side in sides))


ALL_LAYERS = 99  # other programs' number for all layers


def backend_for(n_gpu_layers: str, requested: str | None) -> str:
    """llama.cpp's way of choosing a device; a model is never split between two."""
    named = n_gpu_layers.strip().lower()
    try:
        number = ALL_LAYERS if named == "all" else whole_number(named)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"-ngl is 0 (all on the CPU) or 99 (all on the GPU): {error}.") from None
    if requested not in (None, "auto") or 0 < number < ALL_LAYERS:
        raise ConfigError("-ngl is 0 (all on the CPU) or 99 (all on the GPU), and goes without --backend.")
    return "cuda" if number else "cpu"


def within_cores(config: EngineConfig, warn: Callable[[str], None]) -> EngineConfig:
    """More threads than the machine has would only wait for each other, so they are cut, with a note."""
    from tahr.backends.cpu.processor.info import read_cpu_info

    most = read_cpu_info().n_threads
    if config.n_threads is None or config.n_threads <= most:
        return config
    warn(f"note: {config.n_threads} threads were asked for, but this machine runs {most} at once: using {most}.")
    return replace(config, n_threads=most)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options by which settings come from elsewhere (`layers` reads them)."""
    group = parser.add_argument_group("settings (flags, over TAHR_ variables, over a file, over defaults)")
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="settings to read (else ./tahr.toml, ~/.config/tahr)"
    )
    group.add_argument("--set", dest="sets", action="append", metavar="KEY=VALUE", help="any setting, by its key")
    group.add_argument("--effective-config-json", action="store_true", help="show all settings and where each was set")


def add_thinking(parser: argparse.ArgumentParser) -> None:
    """The switch of models that can think before they answer."""
    group = parser.add_mutually_exclusive_group()
    for value, flags in THINKING.items():
        text = "let the model think first" if value else "answer without thinking"
        group.add_argument(*flags, dest="thinking", action="store_const", const=value, help=text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, by every option that names one."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="alias, org/repo[:quant], ollama:name, file or directory"
    )
    parser.add_argument("--model-id", metavar="MODEL", help="the same as MODEL")
    parser.add_argument("-hf", "--hf-repo", metavar="REPO", help="the same as MODEL, for a Hugging Face repository")
    parser.add_argument("--weight-path", type=Path, metavar="PATH", help="a local file or directory instead of MODEL")
    parser.add_argument("-q", "--quantization", metavar="Q", help="which quantisation to fetch, such as q4_k_m")
    add_exact(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what the model's name stands for, fetch nothing")


def add_exact(parser: argparse.ArgumentParser) -> None:
    """The switch against quantised twins."""
    text = "the bf16 repository of a name such as qwen3:8b, even where a quantised file would fit better"
    parser.add_argument("--exact", action="store_true", help=text)


def exact(model: str, requested: bool) -> str:
    """The model's name, or the one that means its repository alone."""
    from tahr.hub.refs import EXACT

    return f"{EXACT}{model}" if requested else model


def given(args: argparse.Namespace, options: tuple[Option, ...]) -> dict[str, Any]:
    """Only the options that were given, so that defaults stay in one place: the configuration."""
    values = {option.field: getattr(args, option.field) for option in options}
    return {name: value for name, value in values.items() if value is not None}


def model_name(args: argparse.Namespace) -> str | None:
    """The one model that was named, or None; naming it twice is an error."""
    ways = {
        "MODEL": args.model, "-m": getattr(args, "model_option", None), "--model-id": args.model_id,
        "-hf": args.hf_repo and f"hf:{args.hf_repo.removeprefix('hf:')}", "--weight-path": args.weight_path,
    }  # fmt: skip
    said = {way: value for way, value in ways.items() if value is not None}
    if len(said) > 1:
        raise ConfigError(f"The model is named by {' and by '.join(said)}: name it once (-p gives the prompt).")
    if args.weight_path is not None:
        return local(args.weight_path)
    return next(iter(said.values()), None)


def model_of_environment() -> str | None:
    """The model that HF_MODEL_ID or MODEL_WEIGHT_PATH names, where no option does."""
    return os.environ.get("HF_MODEL_ID") or os.environ.get("MODEL_WEIGHT_PATH") or None


def default_model(warn: Callable[[str], None]) -> str:
    """The model for those who name none, and a line that says so."""
    from tahr.hub.refs import DEFAULT_MODEL

    warn(f"No model was named: using {DEFAULT_MODEL}.")
    return DEFAULT_MODEL


def local(path: Path) -> str:
    """A path as a model name that can only mean that path."""
    if not path.exists():
        raise ModelNotFound(f"--weight-path {path} does not exist: give a .gguf file or a directory with safetensors.")
    return str(path.resolve())


def said(params: SamplingParams) -> dict[str, Any]:
    """The sampling values that say something, under the names `/set` uses."""
    return {name: getattr(params, name) for name in sampling_names() if params.asks_for(name)}

"""`tahr run`: one prompt and its reply, or a chat."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tahr.cli.settings import options
from tahr.cli.settings.grammar_options import add_grammar, grammar_of
from tahr.cli.settings.tool_options import add_tools, chat_options_of, for_template
from tahr.cli.terminal.console import OUTPUTS, BenchOutput, JsonlOutput, note, values_line
from tahr.config import EngineConfig, SamplingParams
from tahr.errors import ConfigError, ModelNotFound, TahrError, TemplateError

if TYPE_CHECKING:
    from tahr import LLM
    from tahr.cli.chat.conversation import Conversation
    from tahr.cli.chat.prefix_files import PrefixFiles
    from tahr.cli.settings.settings_layers import Layers
    from tahr.cli.terminal.console import ChatOutput
    from tahr.grammar import Grammar

HELP = "talk to a model, or ask it one thing"

EXAMPLES = """\
examples:
  tahr run                                           chat; /help lists what can be typed
  tahr run -p "Why is the sky blue?" -n 100          one reply of at most 100 tokens
  tahr run Qwen/Qwen3-0.6B-GGUF:Q8_0 "Hello there"   from a repository
  tahr run --raw -p "The capital of France is"       continue a text, no chat template
  tahr run qwen3:0.6b --lora sql=adapters/sql        with an adapter; several add up
  cat notes.txt | tahr run -p "Summarise:" -f -      `-` reads standard input, here after the prompt
  tahr run -p "Name a fruit" --choice apple,pear     the reply is one of these; also --json-schema, --regex, --grammar
  tahr run Qwen/Qwen3-VL-2B-Instruct --image cat.jpg -p "What is this?"
  tahr run --tools tools.json -p "Warm in Rome?"     functions the model may call; calls are shown, never run
  tahr run --output-format jsonl < turns.txt         for programs: a line in is a turn, events out
  tahr run --server                                  with the model of the server on this machine: at once

Replies are all that is written to stdout; everything else goes to stderr. Without MODEL: smollm2:135m.
Standard input is read only where there is no prompt, or where -p or -f is `-`."""

EXIT_INTERRUPTED = 128 + 2
DEFAULT_ADDRESS = "http://127.0.0.1:8080"  # address of `tahr serve`
# Options beside those of the engine that mean something only where the model is loaded.
RUN_HERE = (
    *("quantization", "weight_path", "hf_repo", "exact", "dry_run", "effective_config_json"),
    *("profile", "decision_trace_jsonl", "chrome_trace"),
)
SECTIONS = ("sampling", "engine", "chat")  # sections of the settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a run."""
    parser.epilog = EXAMPLES
    options.add_model(parser)
    parser.add_argument("message", nargs="*", metavar="MESSAGE", help="the prompt, as plain words")
    parser.add_argument("-m", "--model", dest="model_option", metavar="MODEL", help="the same as MODEL")
    parser.add_argument("-p", "--prompt", help="the prompt (-: standard input)")
    parser.add_argument("-f", "--file", type=Path, help="a file that is the prompt, or follows -p (-: standard input)")
    parser.add_argument(
        "--image",
        dest="images",
        type=Path,
        action="append",
        metavar="FILE",
        help="an image before the prompt, for models that read images; may be given several times",
    )
    parser.add_argument("-sys", "--system", "--system-prompt", metavar="TEXT", help="the system prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it stands, without a chat template")
    options.add_thinking(parser)
    parser.add_argument("--output-format", choices=list(OUTPUTS), default="text", help="text, or a JSON event per line")
    parser.add_argument("--no-stats", action="store_true", help="no summary line after a reply")
    parser.add_argument("--bench-mode", action="store_true", help="print the summary line in place of the reply")
    parser.add_argument("--quiet", "--silent", action="store_true", help="no banner and no summary: warnings alone")
    parser.add_argument(
        "--no-context-shift", action="store_true", help="end with an error where old turns would have to be dropped"
    )
    parser.add_argument(
        "--server",
        nargs="?",
        const=DEFAULT_ADDRESS,
        metavar="URL",
        help=f"talk to a running server, whose model it is (default {DEFAULT_ADDRESS}; TAHR_API_KEY is its key)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say which kernel each kind of tensor got")
    options.add_sampling(parser)
    add_grammar(parser)
    add_tools(parser)
    options.add_engine(parser)
    options.add_batching(parser)
    options.add_speculation(parser)
    group = parser.add_argument_group("logs and traces (none holds prompts or replies)")
    group.add_argument("--profile", action="store_true", help="time per op, at the end (as TAHR_PROFILE=1)")
    for option in options.TRACES:
        option.add_to(group)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Check everything that needs no model first: a wrong option must not cost a download."""
    from tahr.cli.chat.prompt import read_prompt
    from tahr.cli.settings.model_files import model_values
    from tahr.cli.settings.settings_layers import effective_json, flags_in, profile_values, read_layers
    from tahr.hub.refs import DEFAULT_MODEL

    refuse_contradictions(args)
    grammar = grammar_of(args)
    requested = chat_options_of(args)
    named = options.model_name(args) or options.model_of_environment()
    if named and looks_like_a_prompt(named):
        raise ModelNotFound(f"`{named}` is not a model: to ask the default one, write `tahr run -p ...`.")
    if args.server is not None:
        return run_attached(args, options.model_name(args), grammar, requested)
    general = read_layers(args, SECTIONS, flags_in(args, SECTIONS) | options.engine_flags(args), note)
    source, table, quantization = written_down(named, general)
    layers = general.about({**profile_values(source or DEFAULT_MODEL, SECTIONS, note), **table}, {})
    sampling = SamplingParams.of(layers.values("sampling"))
    config = options.within_cores(EngineConfig(**layers.values("engine")), note)
    if args.effective_config_json:
        own = model_values(source or DEFAULT_MODEL, args.quantization or quantization, note)
        print(effective_json(layers.over_model(own), SECTIONS))
        return 0
    name = options.exact(source or options.default_model(silent if args.quiet else note), args.exact)
    if args.dry_run:
        from tahr.cli.verbs.doctor import describe_model

        print(describe_model(name, args.quantization or quantization))
        return 0
    prompt = read_prompt(args)

    from tahr.cli.chat.conversation import Conversation

    chosen = args.quantization or quantization
    with opened(args, name, config, chosen) as llm:
        output = output_of(args)
        raw = args.raw or is_base_model(llm, layers.values("chat").get("system"))
        variables = {} if raw else for_template(requested, llm.template, note)
        conversation = Conversation(
            llm,
            output,
            sampling,
            variables,
            raw=raw,
            shifts=not args.no_context_shift,
            images=images_of(args),
            grammar=grammar,
            prefix_files=prefix_files(llm, name, chosen, config.quantize),
        )
        system = layers.values("chat").get("system")
        if system and not raw:
            conversation.system = system
        if not args.quiet:
            show_banner(conversation, args.verbose)
        output.ready(llm.name, llm.backend_summary)
        return chat(conversation, args.quiet) if prompt is None else one_shot(conversation, prompt)


@contextmanager
def opened(args: argparse.Namespace, name: str, config: EngineConfig, quantization: str | None) -> "Iterator[LLM]":
    """The model with its adapters, its steps written to the files that were asked for."""
    from tahr import LLM
    from tahr.cli.verbs.serve import step_logs
    from tahr.engine.step_log import Watch
    from tahr.hub.progress import Progress

    if args.profile:
        os.environ["TAHR_PROFILE"] = "1"
    with (
        step_logs(args.decision_trace_jsonl, args.chrome_trace) as logs,
        LLM(name, config=config, quantization=quantization, progress=Progress(sys.stderr)) as llm,
    ):
        llm.engine.watch = Watch(llm.name, logs) if logs else None
        llm.apply_lora([(each.name, None) for each in llm.loras()])
        yield llm


def run_attached(
    args: argparse.Namespace, name: str | None, grammar: "Grammar | None", requested: dict[str, Any]
) -> int:
    """Chat with a model that a server has loaded."""
    from tahr.cli.chat.conversation import Conversation
    from tahr.cli.chat.prompt import read_prompt
    from tahr.cli.chat.remote import RemoteModel, ServerClient
    from tahr.cli.settings.settings_layers import flags_in, read_layers

    refuse_engine_options(args)
    layers = read_layers(args, SECTIONS, flags_in(args, SECTIONS), note)
    prompt = read_prompt(args)
    output = output_of(args)
    model = RemoteModel(ServerClient(args.server), name)
    conversation = Conversation(
        model,
        output,
        SamplingParams.of(layers.values("sampling")),
        requested,
        raw=args.raw,
        shifts=not args.no_context_shift,
        images=images_of(args),
        grammar=grammar,
    )
    if (system := layers.values("chat").get("system")) and not args.raw:
        conversation.system = system
    if not args.quiet:
        show_banner(conversation, args.verbose)
    output.ready(model.name, model.backend_summary)
    return chat(conversation, args.quiet) if prompt is None else one_shot(conversation, prompt)


def images_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The images of the first message."""
    from tahr.cli.chat.chat_images import image_part

    return [image_part(path) for path in args.images or ()]


def refuse_engine_options(args: argparse.Namespace) -> None:
    """A server has chosen these when it started."""
    from tahr.cli.settings.settings_layers import flags_in

    set_here = flags_in(args, ("engine",)) | options.engine_flags(args)
    given = {options.engine_flag(path.split(".")[1], value) for path, value in set_here.items()}
    given |= {f"--{name.replace('_', '-')}" for name in RUN_HERE if getattr(args, name)}
    if given:
        names = " and ".join(sorted(given))
        raise ConfigError(f"--server talks to a model that is loaded already: give {names} to `tahr serve` instead.")


def output_of(args: argparse.Namespace) -> "ChatOutput":
    kind = BenchOutput if args.bench_mode else OUTPUTS[args.output_format]
    return kind(stats=not (args.no_stats or args.quiet), thinking=not args.hide_thinking)


def written_down(named: str | None, layers: "Layers") -> "tuple[str | None, Mapping[str, Any], str | None]":
    """A model that the settings know by that name: where it comes from, its options, which quantisation of it."""
    if named is None or named not in layers.models:
        return named, {}, None
    from tahr.cli.settings.model_settings import NamedModel, merged, parse_table

    said = merged(NamedModel(named), {named: parse_table(named, layers.models[named], note)})
    return said.source, said.table, said.quantization


def refuse_contradictions(args: argparse.Namespace) -> None:
    """Options that others would make meaningless."""
    if args.bench_mode and (args.output_format != "text" or args.no_stats or args.quiet):
        raise ConfigError("--bench-mode prints the summary alone: leave out --output-format, --no-stats and --quiet.")
    if args.raw and args.system is not None:
        raise ConfigError("--raw has no system prompt: put the text of --system into the prompt, or leave out --raw.")
    for flag in ("images", "thinking", "tools", "tool_choice", "reasoning_effort"):
        if args.raw and getattr(args, flag) is not None:
            option = flag.replace("images", "image").replace("_", "-")
            raise ConfigError(f"--raw uses no chat template, which --{option} needs: leave out one of the two.")


def looks_like_a_prompt(name: str) -> bool:
    # Path.exists would raise for a text too long to be a path.
    return " " in name and not name.startswith("pypi:") and not os.path.exists(name)  # noqa: PTH110


def prefix_files(llm: "LLM", name: str, quantization: str | None, quantize: str | None) -> "PrefixFiles":
    """Keeps keys and values in files; they belong to the weights as they were made at load."""
    from tahr import hub
    from tahr.cli.chat.prefix_files import PrefixFiles, identity_of
    from tahr.loading.fingerprint import fingerprint_of_files

    def fingerprint() -> str:
        files = hub.resolve(name, quant=quantization, download=False)
        return identity_of(fingerprint_of_files(files.weights), quantize, llm.model_config)

    return PrefixFiles(llm, fingerprint)


def silent(text: str) -> None:
    """Drop a note, for --quiet."""


def is_base_model(llm: "LLM", system: str | None) -> bool:
    """Whether the model has no chat template: then it can only continue a text, and the user is told."""
    llm.engine.check_generates()
    if llm.template is not None:
        return False
    if system:
        raise TemplateError(
            f"{llm.name} has no chat template, so it takes no system prompt: put the text into the prompt itself."
        )
    note(f"{llm.name} has no chat template (a base model): it continues your text as it stands, as with --raw.")
    return True


def show_banner(conversation: "Conversation", verbose: bool) -> None:
    """Which model, where, and with which sampling values in force."""
    llm = conversation.llm
    note(f"{llm.name} on {llm.backend_summary}, context {llm.context_size} tokens")
    note(values_line(options.said(conversation.sampling)) or "The server's own sampling values are in force.")
    if verbose:
        for line in llm.load_log:
            note(f"  {line}")


def one_shot(conversation: "Conversation", prompt: str) -> int:
    try:
        finished = conversation.reply(prompt)
    except TahrError:
        conversation.output.leave("error")
        raise
    conversation.output.leave("done" if finished else "interrupted")
    return 0 if finished else EXIT_INTERRUPTED


def chat(conversation: "Conversation", quiet: bool = False) -> int:
    from tahr.cli.chat.prompt import stdin_is_terminal
    from tahr.cli.chat.repl import Script, ask_pipe, ask_terminal, history, repl
    from tahr.cli.terminal.keyboard import Keyboard
    from tahr.hub.store import home

    if not stdin_is_terminal() or isinstance(conversation.output, JsonlOutput):
        repl(conversation, Script(ask_pipe))  # programs need no prompt
        return 0
    if not quiet:
        note("/help lists the commands; Ctrl-D leaves.")
    with history(home() / "history"):
        repl(conversation, Keyboard(ask_terminal))
    return 0

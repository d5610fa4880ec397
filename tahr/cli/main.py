"""The command `tahr`: a table of verbs, and what becomes of an error.

The builtin `list` is not used in this file: importing the verb of that name puts its module in the builtin's place.
"""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, cast

from tahr.cli.termination import Terminated, raised_signals
from tahr.errors import ConfigError, TahrError

EXIT_UNEXPECTED = 1
WIDEST = 17  # names in the list of verbs
EXIT_IO = 6
EXIT_INTERRUPTED = 128 + 2  # SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # SIGPIPE


@dataclass(frozen=True, slots=True)
class Verb:
    """A subcommand: the module of this package that defines HELP, add_arguments and run, and other names for it."""

    module: str
    also: tuple[str, ...] = ()
    own_signals: bool = False  # the verb handles SIGTERM itself


VERBS = {
    "run": Verb("verbs.run", also=("chat",)),
    "serve": Verb("verbs.serve", own_signals=True),
    "pull": Verb("verbs.pull"),
    "list": Verb("verbs.list", also=("ls",)),
    "rm": Verb("verbs.rm"),
    "cp": Verb("models.cp"),
    "ps": Verb("models.ps"),
    "stop": Verb("models.stop"),
    "cache": Verb("models.cache"),
    "hub": Verb("verbs.hub"),
    "info": Verb("verbs.info"),
    "verify": Verb("verbs.verify"),
    "devices": Verb("verbs.devices"),
    "doctor": Verb("verbs.doctor"),
    "embed": Verb("texts.embed"),
    "transcribe": Verb("texts.transcribe"),
    "tts": Verb("texts.tts"),
    "batch": Verb("texts.batch", own_signals=True),
    "tokenize": Verb("verbs.tokenize"),
    "detokenize": Verb("verbs.detokenize"),
    "quantize": Verb("verbs.quantize"),
    "convert": Verb("verbs.convert"),
    "merge": Verb("verbs.merge"),
    "keys": Verb("accounts.keys"),
    "usage": Verb("accounts.usage"),
    "bench": Verb("bench.bench"),
    "bench-serve": Verb("bench.bench_serve"),
    "compare": Verb("bench.compare"),
    "replay-bundle": Verb("verbs.replay_bundle"),
    "perplexity": Verb("bench.perplexity"),
    "completions": Verb("shell.completions"),
    "man": Verb("shell.manpage", also=("generate-manpage",)),
    "version": Verb("verbs.version"),
}
NAMES = {name: verb.module for verb_name, verb in VERBS.items() for name in (verb_name, *verb.also)}
OWN_SIGNALS = {verb.module for verb in VERBS.values() if verb.own_signals}

EXAMPLES = """\
examples:
  tahr run                                  chat with a small model; fetched the first time
  tahr run -p "Why is the sky blue?"        one question, one reply on stdout
  tahr run qwen3:0.6b "Write a haiku"       another model, the message as plain words
  git diff | tahr run -p "Review:" -f -     what is piped in, after the prompt
  tahr serve                                the same over HTTP: any OpenAI client, and a chat page
  tahr pull qwen3:0.6b && tahr list         fetch a model; see what is here
  tahr doctor                               what this machine has

`tahr VERB --help` says more about each verb."""


UNKNOWN = "unrecognized arguments: "  # beginning of argparse's message
# Options of other servers, and what to use here: pages of the KV cache follow from sizes, and a model is on one device.
INSTEAD = {
    **dict.fromkeys(("--kv-max-blocks", "--kv-capacity", "--num-gpu-blocks-override"), "--ctx and --gpu-budget"),
    "--pipeline-parallel-size": "--tensor-parallel, for several processes",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors like all others, with the exit code of a wrong option."""

    def error(self, message: str) -> NoReturn:
        if message.startswith(UNKNOWN):
            message = self._unknown(message.removeprefix(UNKNOWN).split())
        raise ConfigError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` lists what is possible.")

    def _unknown(self, words: Sequence[str]) -> str:
        from difflib import get_close_matches

        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            return f"`{' '.join(words)}` is not understood"
        near = get_close_matches(options[0], self._option_string_actions, 1)
        known = INSTEAD.get(options[0]) or next(iter(near), "")
        return f"there is no option {' or '.join(options)}" + (f", but {known}" if known else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character must not end the reply
    try:
        code = dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BaseException as error:
        return report(error)


def open_closed_streams() -> None:
    """Streams the caller has closed (`2>&-`) are as /dev/null: print() would write to stdout what is for stderr."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 (open until the end)


def dispatch(argv: Sequence[str]) -> int:
    """Find the verb, import its module alone, parse its arguments, run it; options alone are those of `run`."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if argv[0].startswith("-") and argv[0] not in ("-V", "--version"):
        argv = ["run", *argv]  # Tur's command has no verbs
    name = "version" if argv[0] in ("-V", "--version") else argv[0]
    if name not in NAMES:
        raise ConfigError(unknown_verb(name))
    verb = import_module(f"tahr.cli.{NAMES[name]}")
    parser = Parser(
        prog=f"tahr {name}",
        description=verb.HELP,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_arguments(parser)
    parser.usage = usage_of(parser)
    # Intermixed, so that options may stand between the words of a message.
    args = parser.parse_intermixed_args(argv[1:])
    with nullcontext() if NAMES[name] in OWN_SIGNALS else raised_signals():
        return cast(int, verb.run(args))


def usage_of(parser: argparse.ArgumentParser) -> str:
    """One line: the options are listed below it anyway, and some verbs have a hundred."""
    words = [
        f"[{action.metavar or action.dest}]" if action.nargs in ("?", "*") else str(action.metavar or action.dest)
        for action in parser._actions
        if not action.option_strings
    ]
    return " ".join(["%(prog)s [options]", *words])


def overview() -> str:
    """The text of `tahr --help`."""
    lines = ["usage: tahr VERB [options]", "", "Run language models on this machine.", "", "verbs:"]
    for name, verb in VERBS.items():
        names = ", ".join((name, *verb.also))
        shown = names if len(names) <= WIDEST else name
        lines.append(f"  {shown:<{WIDEST}} {import_module(f'tahr.cli.{verb.module}').HELP}")
    return "\n".join([*lines, "", EXAMPLES])


def unknown_verb(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, NAMES, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"the verbs are {', '.join(VERBS)}."
    return f"There is no verb `{name}`: {hint} `tahr --help` shows examples."


def report(error: BaseException) -> int:
    """Say what went wrong on stderr, and return the exit code for it."""
    if isinstance(error, SystemExit):  # argparse after printing help
        return error.code if isinstance(error.code, int) else 0
    if is_broken_pipe(error):
        # The reader has left: there is nobody to tell, and the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_BROKEN_PIPE
    if os.environ.get("TAHR_DEBUG"):
        traceback.print_exception(error)
    from tahr.cli.terminal.console import note

    message, code = sentence(error)
    note(message)
    return code


def is_broken_pipe(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def sentence(error: BaseException) -> tuple[str, int]:
    """The message for an error, and its exit code."""
    if isinstance(error, TahrError):
        return f"error: {error}", error.exit_code
    if isinstance(error, Terminated):
        return f"terminated by {error}", error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"error: The system refused: {error.strerror}{where}.", EXIT_IO
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"error: Tahr failed unexpectedly ({what}). Please report it with what TAHR_DEBUG=1 shows.", EXIT_UNEXPECTED

"""`tahr man`: the manual page, made from the same tables as the help."""

import argparse

from tahr.cli.shell.option_table import OptionRow, VerbRow, verb_table

HELP = "print the manual page"

EXAMPLES = """\
examples:
  tahr man | man -l -                                           read it
  tahr man > ~/.local/share/man/man1/tahr.1                     keep it for `man tahr`"""

INTRODUCTION = (
    "Tahr runs language models: it chats, serves them over HTTP, fetches, converts and measures them. A MODEL is a "
    "short name (qwen3:0.6b), a repository of the Hugging Face hub (org/name[:quant]), a model of the Ollama registry "
    "(ollama:name), a .gguf file or a directory with safetensors."
)
ENVIRONMENT = {
    "TAHR_HOME": "models of other sources than the hub, and the history (else $XDG_CACHE_HOME/tahr, ~/.cache/tahr)",
    "HF_HOME, HF_HUB_CACHE": "where models of the Hugging Face hub are",
    "HF_TOKEN": "the token for gated repositories",
    "TAHR_API_KEY": "the key a server asks for, and that `tahr run --server` sends",
    "TAHR_SECTION_KEY": "any setting, such as TAHR_ENGINE_N_THREADS",
    "TAHR_DEBUG": "1: show where an unexpected error came from",
    "TAHR_PROFILE": "1: print the time per op",
}
FILES = {
    "tahr.toml": "settings: in the working directory, else in ~/.config/tahr",
    "~/.cache/huggingface/hub": "the shared cache of the Hugging Face hub",
}
EXIT_STATUS = {
    "0": "success",
    "1": "an unexpected error",
    "2": "no such model",
    "3": "a wrong option, setting or request",
    "4": "a generation failed",
    "5": "a server cannot start or go on",
    "6": "a file or a download failed",
    "130": "interrupted",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""
    parser.epilog = EXAMPLES


def run(args: argparse.Namespace) -> int:
    from tahr import __version__

    verbs = verb_table()
    lines = [
        f'.TH TAHR 1 "" "tahr {__version__}" "User Commands"',
        *section("NAME", "tahr \\- run language models on this machine"),
        *section("SYNOPSIS", ".B tahr\n.I VERB\n[options]"),
        *section("DESCRIPTION", escaped(INTRODUCTION)),
        *section("VERBS", *(tagged(", ".join(verb.names), verb.help) for verb in verbs)),
        *(line for verb in verbs for line in verb_section(verb)),
        *section("ENVIRONMENT", *(tagged(name, text) for name, text in ENVIRONMENT.items())),
        *section("FILES", *(tagged(name, text) for name, text in FILES.items())),
        *section("EXIT STATUS", *(tagged(name, text) for name, text in EXIT_STATUS.items())),
    ]
    print("\n".join(lines))
    return 0


def section(title: str, *parts: str) -> list[str]:
    return [f".SH {title}", *parts]


def tagged(tag: str, text: str) -> str:
    return f".TP\n.B {escaped(tag)}\n{escaped(text)}"


def verb_section(verb: VerbRow) -> list[str]:
    """A verb with what follows it, its options and its examples."""
    words = " ".join(f"[{each.takes}]" if each.is_optional else each.takes for each in verb.arguments)
    return [
        f".SH TAHR {verb.names[0].upper()}",
        escaped(f"{verb.help[:1].upper()}{verb.help[1:]}."),
        f".PP\n.B tahr {escaped(verb.names[0])}\n{escaped(f'[options] {words}'.strip())}",
        *(option_entry(each) for each in (*verb.arguments, *verb.options)),
        *([f".PP\n.nf\n{escaped(verb.examples)}\n.fi"] if verb.examples else []),
    ]


def option_entry(option: OptionRow) -> str:
    value = "{" + ",".join(option.choices) + "}" if option.choices else option.takes
    names = ", ".join(option.flags)
    return tagged(f"{names} {value}".strip() if names else value, option.help)


def escaped(text: str) -> str:
    """Text as troff prints it: no line begins with a command, a backslash and a minus are themselves."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)

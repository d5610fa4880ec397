"""`tahr completions`: what a shell needs to complete verbs and options."""

import argparse
from importlib import import_module

HELP = "print a script that lets bash, zsh or fish complete verbs and options"

EXAMPLES = """\
examples:
  tahr completions bash > ~/.local/share/bash-completion/completions/tahr
  tahr completions zsh > ~/.zfunc/_tahr
  tahr completions fish > ~/.config/fish/completions/tahr.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=tuple(SHELLS), help="which shell")


def run(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell](options_of_verbs()))
    return 0


def options_of_verbs() -> dict[str, list[str]]:
    """Every verb with its options."""
    from tahr.cli.main import NAMES, Parser

    found = {}
    for name, module in NAMES.items():
        parser = Parser(prog=f"tahr {name}")
        import_module(f"tahr.cli.{module}").add_arguments(parser)
        found[name] = sorted(option for option in parser._option_string_actions if option.startswith("--"))
    return found


def bash(verbs: dict[str, list[str]]) -> str:
    cases = "\n".join(f"    {verb}) words='{' '.join(options)}' ;;" for verb, options in verbs.items())
    return f"""_tahr() {{
  local words='{" ".join(verbs)}' current=${{COMP_WORDS[COMP_CWORD]}}
  if (( COMP_CWORD > 1 )); then case ${{COMP_WORDS[1]}} in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _tahr tahr"""


def zsh(verbs: dict[str, list[str]]) -> str:
    return f"#compdef tahr\nautoload -U +X bashcompinit && bashcompinit\n{bash(verbs)}"


def fish(verbs: dict[str, list[str]]) -> str:
    lines = [f"complete -c tahr -n __fish_use_subcommand -a '{' '.join(verbs)}'"]
    for verb, options in verbs.items():
        lines += [f"complete -c tahr -n '__fish_seen_subcommand_from {verb}' -l {option[2:]}" for option in options]
    return "\n".join(lines)


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}

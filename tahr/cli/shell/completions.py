"""`tahr completions`: what a shell needs to complete verbs, options, their values and names of models."""

import argparse
from collections.abc import Sequence

from tahr.cli.shell.option_table import OptionRow, VerbRow, verb_table

HELP = "print a script that lets bash, zsh or fish complete verbs, options and models"

EXAMPLES = """\
examples:
  tahr completions bash > ~/.local/share/bash-completion/completions/tahr
  tahr completions zsh > ~/.zfunc/_tahr            # with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  tahr completions fish > ~/.config/fish/completions/tahr.fish"""

MODELS = "tahr list --quiet 2>/dev/null"  # names of the models that are here; the short names are in the script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=tuple(SHELLS), help="which shell")


def run(args: argparse.Namespace) -> int:
    from tahr.hub.aliases import ALIASES

    print(SHELLS[args.shell](verb_table(), sorted(ALIASES)))
    return 0


def names_of(verbs: Sequence[VerbRow]) -> str:
    return " ".join(name for verb in verbs for name in verb.names)


# ---- bash -----------------------------------------------------------------------------------------------------


def bash(verbs: Sequence[VerbRow], aliases: Sequence[str]) -> str:
    cases = "\n".join(bash_case(verb) for verb in verbs)
    return f"""_tahr() {{
  local line=${{COMP_LINE:0:COMP_POINT}} words='{names_of(verbs)}' models='' before='' current
  local -a typed
  read -ra typed <<< "$line"
  current=${{line##* }}
  (( ${{#typed[@]}} )) && before=${{typed[-1]}}
  [[ -n $current ]] && (( ${{#typed[@]}} > 1 )) && before=${{typed[-2]}}
  if [[ $line == *\\ *\\ * ]]; then
    words=''
    case ${{typed[1]}} in
{cases}
    esac
  fi
  [[ -n $models && $current != -* ]] && words=$models' {" ".join(aliases)} '$({MODELS})
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  # Bash ends words at colons: what stands before the last one is not replaced.
  if [[ $current == *:* && $COMP_WORDBREAKS == *:* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#"${{current%"${{current##*:}}"}}"}}")
  fi
}}
complete -o default -F _tahr tahr"""


def bash_case(verb: VerbRow) -> str:
    """Completions after a verb: the choices of the option before, else options, else models."""
    flags = " ".join(flag for option in verb.options for flag in option.flags)
    choices = [(option.flags, option.choices) for option in verb.options if option.choices]
    values = "".join(f" {'|'.join(names)}) words='{' '.join(of)}' ;;" for names, of in choices)
    free = " ".join(choice for argument in verb.arguments for choice in argument.choices)
    own = f"words='{flags} {free}'" + (f"; models='{free} '" if verb.takes_model else "")
    return f"      {'|'.join(verb.names)}) case $before in{values} *) {own} ;; esac ;;"


# ---- zsh ------------------------------------------------------------------------------------------------------


def zsh(verbs: Sequence[VerbRow], aliases: Sequence[str]) -> str:
    described = "\n".join(f"    {quoted(f'{name}:{verb.help}')}" for verb in verbs for name in verb.names)
    cases = "\n".join(zsh_case(verb) for verb in verbs)
    return f"""#compdef tahr
_tahr_models() {{
  local -a models
  models=({" ".join(quoted(alias) for alias in aliases)} ${{(f)"$({MODELS})"}})
  compadd -a models || _files
}}
_tahr() {{
  local -a verbs
  verbs=(
{described}
  )
  if (( CURRENT == 2 )); then _describe -t verbs verb verbs; return; fi
  local verb=$words[2]
  shift words; (( CURRENT-- ))
  case $verb in
{cases}
  esac
}}
if [[ $funcstack[1] == _tahr ]]; then _tahr "$@"; else compdef _tahr tahr; fi"""


def zsh_case(verb: VerbRow) -> str:
    specs = [zsh_option(option, flag) for option in verb.options for flag in option.flags]
    specs += [f"'*:{argument.takes}:{zsh_values(argument)}'" for argument in verb.arguments[:1]]
    return f"    {'|'.join(verb.names)}) _arguments -S {' '.join(specs)} ;;"


def zsh_option(option: OptionRow, flag: str) -> str:
    text = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = f":{':' if option.is_optional else ''}{option.takes}:{zsh_values(option)}" if option.takes else ""
    return quoted(f"*{flag}[{text}]{value}")


def zsh_values(row: OptionRow) -> str:
    if row.choices:
        return f"({' '.join(row.choices)})"
    return "_tahr_models" if "MODEL" in row.takes else "_files"


# ---- fish -----------------------------------------------------------------------------------------------------


def fish(verbs: Sequence[VerbRow], aliases: Sequence[str]) -> str:
    lines = ["complete -c tahr -f"]
    models = quoted(f"{' '.join(aliases)} ({MODELS})")
    for verb in verbs:
        names = " ".join(verb.names)
        lines.append(f"complete -c tahr -n __fish_use_subcommand -a {quoted(names)} -d {quoted(verb.help)}")
        after = f"complete -c tahr -n {quoted(f'__fish_seen_subcommand_from {names}')}"
        lines += [f"{after} {fish_option(option)}" for option in verb.options]
        free = " ".join(choice for argument in verb.arguments for choice in argument.choices)
        if verb.takes_model:
            lines.append(f"{after} -F -a {models}")
        if free:
            lines.append(f"{after} -a {quoted(free)}")
    return "\n".join(lines)


def fish_option(option: OptionRow) -> str:
    kinds = {flag: "-l" if flag.startswith("--") else "-s" if len(flag) == 2 else "-o" for flag in option.flags}
    names = " ".join(f"{kind} {flag.lstrip('-')}" for flag, kind in kinds.items())
    value = f" -x -a {quoted(' '.join(option.choices))}" if option.choices else " -r -F" if option.takes else ""
    return f"{names}{value} -d {quoted(option.help)}"


def quoted(text: str) -> str:
    """A word of a shell script; a single quote, which none of the shells escapes alike, becomes a typographic one."""
    return "'" + text.replace("'", "’") + "'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}

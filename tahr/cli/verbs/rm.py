"""`tahr rm`: delete a model from this machine."""

import argparse
import sys

from tahr.errors import ConfigError, LoadError, ModelNotFound

HELP = "delete a model from this machine"

EXAMPLES = """\
examples:
  tahr rm smollm2:135m                            a name as `tahr list` shows it
  tahr rm unsloth/Qwen3-4B-GGUF:Q4_K_M --force    one quantisation, without being asked

Hugging Face models live in a cache that other programs share: what you remove is gone for them too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr rm` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("name", metavar="NAME", help="the model, as `tahr list` shows it")
    parser.add_argument("-f", "--force", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Ask, delete, and say how much room that made."""
    from tahr import hub
    from tahr.hub.progress import human_bytes

    _check_is_here(args.name)
    if not args.force and not _agrees(args.name):
        print("Nothing was removed.", file=sys.stderr)
        return 0
    freed_bytes = hub.remove(args.name)
    print(f"Removed {args.name}: {human_bytes(freed_bytes)} freed.", file=sys.stderr)
    return 0


def _check_is_here(name: str) -> None:
    """Nobody is asked about a model that is not here; one that was fetched in part is."""
    from tahr import hub

    try:
        hub.resolve(name, download=False)
    except LoadError as error:
        stem = hub.parse(name).name.lower().partition(":")[0]
        if not any(entry.name.lower().startswith(stem) for entry in hub.list_models()):
            raise ModelNotFound(f"{name} is not on this machine: `tahr list` shows what is.") from error


def _agrees(name: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"Removing {name} needs a yes, and there is no terminal to ask on: add --force.")
    print(f"Remove {name} from this machine? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

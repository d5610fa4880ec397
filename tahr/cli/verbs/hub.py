"""`tahr hub`: the files of models on this machine, listed, checked, fetched and removed."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tahr.cli.terminal.console import counted
from tahr.errors import ConfigError, printable

HELP = "list, check, fetch and remove the files of models on this machine"

EXAMPLES = """\
examples:
  tahr hub list                                 every model with its files and their sizes
  tahr hub list smollm2:135m --verify-sha256    the digests of its files, computed anew
  tahr hub pull Qwen/Qwen3-0.6B --revision main
  tahr hub rm Qwen/Qwen3-0.6B --force           as `tahr rm`"""

# Options that do something for some actions alone; above all, `rm` removes a model in all its revisions.
ONLY = {"revision": ("pull", "list"), "force": ("rm",), "verify_sha256": ("list",)}
PLACES = ("HF_HUB_CACHE", "TAHR_HOME")  # variables that --cache sets for this call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and the model."""
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=tuple(ACTIONS), help="what to do")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="which model; without it, `list` shows all")
    parser.add_argument("--cache", metavar="DIR", help="a directory of models instead of the usual ones")
    parser.add_argument("--revision", help="a branch, tag or commit of a Hugging Face repository")
    parser.add_argument("-f", "--force", action="store_true", help="remove without asking")
    parser.add_argument("--verify-sha256", action="store_true", help="compute the digests of the files listed")


def run(args: argparse.Namespace) -> int:
    for name, actions in ONLY.items():
        if getattr(args, name) and args.action not in actions:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is for `tahr hub {actions[0]}`: leave it out of `tahr hub {args.action}`.")
    if args.model is None and args.action != "list":
        raise ConfigError(f"Name the model: tahr hub {args.action} MODEL.")
    with models_in(args.cache):
        return ACTIONS[args.action](args)


@contextmanager
def models_in(directory: str | None) -> Iterator[None]:
    """Let models be in another directory for a while."""
    before = {name: os.environ.get(name) for name in PLACES}
    if directory:
        os.environ.update(dict.fromkeys(PLACES, directory))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


def pull(args: argparse.Namespace) -> int:
    from tahr import hub
    from tahr.loading.unfit import unfit_for
    from tahr.models.loader.runnable import refuse_unsupported_draft

    progress = hub.Progress(sys.stderr)
    print(
        hub.pull(
            args.model, revision=args.revision, progress=progress, check=refuse_unsupported_draft, unfit=unfit_for()
        ).path
    )
    return 0


def remove(args: argparse.Namespace) -> int:
    from tahr.cli.verbs import rm

    return rm.run(argparse.Namespace(name=args.model, force=args.force))


def show(args: argparse.Namespace) -> int:
    """Every file of one model, or of all."""
    from tahr import hub
    from tahr.errors import ModelNotFound
    from tahr.hub.progress import human_bytes
    from tahr.hub.transfer import file_digest

    names = [args.model] if args.model else [entry.name for entry in hub.list_models() if entry.status == "ready"]
    n_files = 0
    for name in names:
        try:
            files = hub.resolve(name, revision=args.revision, download=False)
        except ModelNotFound:
            if args.model:
                raise
            continue
        print(printable(name))
        for path in (*files.weights, *files.sidecars):
            digest = f"  sha256 {file_digest(path, 'sha256')}" if args.verify_sha256 else ""
            print(printable(f"  {human_bytes(path.stat().st_size):>9}  {path}{digest}"))
            n_files += 1
    print(f"{counted(n_files, 'file')} of {counted(len(names), 'model')}", file=sys.stderr)
    return 0


ACTIONS = {"list": show, "pull": pull, "rm": remove}

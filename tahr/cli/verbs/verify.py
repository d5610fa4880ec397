"""`tahr verify`: is a weight file whole?"""

import argparse
import json
import re
from pathlib import Path

from tahr.cli.terminal.console import counted
from tahr.errors import ConfigError, printable

HELP = "check the files of a model for damage"

EXAMPLES = """\
examples:
  tahr verify model.gguf
  tahr verify smollm2:135m                       a model that is on this machine
  tahr verify model.gguf --sha256 b179c952...    also compare the digest of the whole file"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which file, and what it should be."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="a file, a directory, or the name of a model that is here")
    parser.add_argument("--sha256", metavar="HEX", help="the digest the file should have")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(args: argparse.Namespace) -> int:
    if args.sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", args.sha256):
        raise ConfigError("--sha256 must be the 64 hexadecimal digits of a SHA-256 digest.")
    from tahr.weights import verify

    found = verify(path_of(args.model), expected_sha256=args.sha256)
    facts = {
        "kind": found.kind,
        "files": [str(path) for path in found.paths],
        "size_bytes": found.n_bytes,
        "metadata": found.n_metadata,
        "tensors": found.n_tensors,
        "values": found.n_values,
        "formats": found.formats,
        "sha256": {str(path): digest for path, digest in found.sha256.items()},
    }
    if args.json:
        print(json.dumps(facts, indent=1))
    else:
        digest = ", sha256 as expected" if args.sha256 else ""
        size = f"{counted(found.n_tensors, 'tensor')}, {found.n_bytes} bytes"
        print(printable(f"{args.model} is sound: {found.kind}, {size}{digest}"))
    return 0


def path_of(model: str) -> Path:
    """The file or directory that is meant; a model by name must be here, because a fetched one was checked already."""
    from tahr.hub import resolve
    from tahr.hub.refs import expanded
    from tahr.weights.safetensors import INDEX_NAME, WHOLE_NAME

    path = expanded(model)
    if path.is_file() or any((path / name).exists() for name in (WHOLE_NAME, INDEX_NAME)):
        return path  # a bare folder of weights will do, without the config.json that running them takes
    files = resolve(model, download=False)
    # Several safetensors files have an index, which the folder stands for; any part of a GGUF stands for all.
    return files.path if files.format == "safetensors" and len(files.weights) > 1 else files.weights[0]

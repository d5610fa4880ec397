"""`tahr verify`: is a weight file whole?"""

import argparse
import json
import re
from pathlib import Path

from tahr.errors import ConfigError, ModelNotFound

HELP = "check a .gguf or .safetensors file for damage"

EXAMPLES = """\
examples:
  tahr verify model.gguf
  tahr verify model.gguf --sha256 b179c952...    also compare the digest of the whole file"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which file, and what it should be."""
    parser.epilog = EXAMPLES
    parser.add_argument("file", type=Path, metavar="FILE", help="a .gguf or .safetensors file, or a directory")
    parser.add_argument("--sha256", metavar="HEX", help="the digest the file should have")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(args: argparse.Namespace) -> int:
    if args.sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", args.sha256):
        raise ConfigError("--sha256 must be the 64 hexadecimal digits of a SHA-256 digest.")
    if not args.file.exists():
        raise ModelNotFound(f"{args.file} does not exist.")

    from tahr.weights import verify

    found = verify(args.file, expected_sha256=args.sha256)
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
        print(f"{args.file} is sound: {found.kind}, {found.n_tensors} tensors, {found.n_bytes} bytes{digest}")
    return 0

"""`tahr convert`: a safetensors checkpoint as one GGUF file."""

import argparse
from pathlib import Path

HELP = "write a safetensors checkpoint as a GGUF"

EXAMPLES = """\
examples:
  tahr convert Qwen/Qwen3-0.6B qwen3.gguf              weights stay in the format they have
  tahr convert path/to/checkpoint model.gguf --type Q8_0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of input and output."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="IN", help="a checkpoint directory, or a model's name")
    parser.add_argument("out", type=Path, metavar="OUT", help="the GGUF to write")
    parser.add_argument("--type", metavar="TYPE", help="such as F16, Q8_0, Q4_K_M; without it, as they are")


def run(args: argparse.Namespace) -> int:
    from tahr.cli.settings.export_options import export

    return export(args.model, args.out, args.type)

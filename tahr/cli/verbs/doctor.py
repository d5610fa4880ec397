"""`tahr doctor`: what this machine has, and what a model's name stands for, without fetching the model.

Of a model that is here it says what a load would take, and where; its weights are not read.
"""

import argparse
from typing import TYPE_CHECKING, NamedTuple

from tahr.errors import ConfigError, LoadError, TahrError, printable

if TYPE_CHECKING:
    from tahr.hub import ModelFiles, Ref
    from tahr.loading.placement import Placement

HELP = "check this machine, and what a model's name stands for, without fetching it"

EXAMPLES = """\
examples:
  tahr doctor                   version, devices, directories, models that are here
  tahr doctor qwen3:4b          which repository and file that is, how large, and whether it runs
  tahr doctor model.gguf        the same, and what it takes in memory, part by part
  tahr doctor model.gguf --backend cuda --gpu-budget 8g    the same within a part of a GPU's memory
  tahr doctor model.gguf --backend cuda --cpu-experts auto    with experts that do not fit on the host
  tahr doctor model.gguf --tensor-parallel 2    and what each of two ranks would have of it"""


class PlanBounds(NamedTuple):
    """Bounds that a load is planned for, and where it would run."""

    backend: str = "auto"
    ram_budget: str | None = None
    gpu_budget: str | None = None
    cpu_experts: str | None = None


NO_BOUNDS = PlanBounds()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, if any."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model to look up")
    parser.add_argument("-q", "--quantization", metavar="Q", help="which quantisation of it")
    parser.add_argument("--backend", metavar="NAME", default="auto", help="plan for this backend: cpu, cuda or vulkan")
    parser.add_argument("--gpu-budget", metavar="SIZE", help="plan for so much of a GPU's memory: 8g, 512m or 50%%")
    parser.add_argument(
        "-ncmoe",
        "--cpu-experts",
        "--n-cpu-moe",
        metavar="N",
        help="layers with experts on the host: auto, all or a number",
    )
    parser.add_argument("--ram-budget", metavar="SIZE", help="plan for so much of the host's memory: 8g, 512m or 50%%")
    parser.add_argument(
        "--tensor-parallel", metavar="N", type=int, help="what each of N ranks would have of every tensor"
    )


def run(args: argparse.Namespace) -> int:
    if args.tensor_parallel is not None:
        check_ranks(args.model, args.tensor_parallel)
    for line in machine():
        print(line)
    bounds = PlanBounds(args.backend, args.ram_budget, args.gpu_budget, args.cpu_experts)
    return check_model(args.model, args.quantization, bounds, args.tensor_parallel) if args.model else 0


def check_ranks(model: str | None, n_ranks: int) -> None:
    """Refuse a number of ranks that no model has, or of no model."""
    from tahr.models.sharding.plan import MOST_RANKS

    if not 1 <= n_ranks <= MOST_RANKS:
        raise ConfigError(f"--tensor-parallel is {n_ranks}, but it must be a number of ranks from 1 to {MOST_RANKS}.")
    if model is None:
        raise ConfigError("--tensor-parallel says how a model would be shared: name the model too.")


def check_model(model: str, quant: str | None, bounds: PlanBounds = NO_BOUNDS, n_ranks: int | None = None) -> int:
    """Print what there is to say of a model; 1 if that could not be found out."""
    from tahr.cli.terminal.console import note

    found = look_up(model, quant)
    print(f"\n{found.text}")
    if found.files and not found.problem:
        try:
            print(printable("\n".join(["", *plan_lines(found.files, bounds)])))
            if n_ranks is not None:
                print(printable("\n".join(["", *sharding_table(found.files, n_ranks)])))
        except TahrError as error:
            found = found._replace(problem=str(error))
    if found.problem:
        reason = "." if found.problem in found.text else f": {found.problem}"
        note(printable(f"{model} could not be checked{reason}"))
    return 1 if found.problem else 0


def plan_lines(files: "ModelFiles", bounds: PlanBounds = NO_BOUNDS) -> list[str]:
    """The plan of a load of these files on this machine, and how fast its steps can be if they copy weights."""
    from tahr.backends import open_backend
    from tahr.config import EngineConfig
    from tahr.loading.budgets import speed_note, within_budget, within_gpu_budget
    from tahr.loading.sizing import plan_of
    from tahr.models.loader.load import open_model

    config = EngineConfig(**bounds._asdict())
    backend = open_backend(config.backend)
    config = within_gpu_budget(within_budget(config), backend)
    plan = plan_of(open_model(files.weights, files.directory), backend, config)
    return [*placement_table(plan), *filter(None, [speed_note(plan, backend)])]


def placement_table(plan: "Placement") -> list[str]:
    """Parts of the model and pools, their sizes and homes."""
    from tahr.hub.progress import human_bytes

    home = plan.place_of(plan.default_home)
    parts = plan.parts()
    counts = [f"{part.n_tensors} tensors" if part.n_tensors > 1 else "" for part in parts]
    weights = [(p.part, count, p.n_bytes, plan.place_of(p.home)) for p, count in zip(parts, counts, strict=True)]
    pools = [(pool.name, f"{pool.n} {pool.unit}", pool.n_bytes, home) for pool in plan.pools]
    sums = [("in memory", "", plan.resident_bytes + plan.pool_bytes, ""), ("in files", "", plan.file_bytes, "")]
    if plan.step_bytes:
        bus = ("copied a step", "any tokens", plan.step_bytes, "over the bus")
        disk = ("read a step", "one token", plan.step_bytes, "from disk")
        sums.append(bus if plan.streamed_bytes else disk)
    if plan.host_step_bytes:
        sums.append(("experts a step", "one token", plan.host_step_bytes, "from host memory"))
    rows = [(name, count, human_bytes(size), place) for name, count, size, place in [*weights, *pools, *sums]]
    width = max(len(name) for name, *_ in rows)
    return [f"{name:<{width}}  {count:>14}  {size:>10}  {place}".rstrip() for name, count, size, place in rows]


def sharding_table(files: "ModelFiles", n_ranks: int) -> list[str]:
    """Parts of every kind of tensor by rank, and their bytes."""
    from tahr.hub.progress import human_bytes
    from tahr.models.loader.load import open_model, sharding_of
    from tahr.models.sharding.table import sharding_rows

    plan = sharding_of(open_model(files.weights, files.directory), n_ranks)
    found = sharding_rows(plan)
    sizes = [*[row.n_bytes for row in found], tuple(map(plan.rank_bytes, range(n_ranks)))]
    words = [(row.name, f"{row.n_tensors}", row.how, row.parts) for row in found]
    rows = [("tensors", "", "each rank has", "of it"), *words, ("all", f"{len(plan.tensors)}", "", "")]
    columns = [[f"rank {rank}" for rank in range(n_ranks)], *[list(map(human_bytes, each)) for each in sizes]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*map(str.ljust, row, widths), *[f"{size:>9}" for size in column]]).rstrip()
        for row, column in zip(rows, columns, strict=True)
    ]


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
        *kv_files(),
    ]


def kv_files() -> list[str]:
    """The directory of keys and values that settings name, and what is in it."""
    from tahr.cli.settings.settings_layers import read_layers
    from tahr.hub.progress import human_bytes
    from tahr.hub.refs import expanded
    from tahr.kv.tiers.janitor import look_at

    settings = read_layers(argparse.Namespace(config=None, sets=None), ("engine",), {}, lambda line: None)
    directory = settings.values("engine").get("kv_disk")
    if not directory:
        return []
    try:
        files = look_at(expanded(directory))
    except TahrError as error:
        return [fact("kv files", str(error))]
    return [fact("kv files", f"{len(files)}, {human_bytes(sum(file.n_bytes for file in files))} in {directory}")]


class Found(NamedTuple):
    """Facts about a model: its files if they are here, and the reason why the rest is missing."""

    text: str
    files: "ModelFiles | None" = None
    problem: str = ""


def describe_model(model: str, quant: str | None = None, revision: str | None = None) -> str:
    """Describe a model: the meaning of its name, whether it is here, its size, and whether Tahr runs it."""
    return look_up(model, quant, revision).text


def look_up(model: str, quant: str | None = None, revision: str | None = None) -> Found:
    """Find the facts about a model, with the files that are here."""
    from tahr import hub
    from tahr.loading.unfit import unfit_for

    ref = hub.choose(model, quant=quant, revision=revision, unfit=unfit_for())
    lines = [fact("model", ref.name), fact("source", SOURCES[ref.kind])]
    facts = {
        "repository": ref.repo,
        "file": ref.selector,
        "revision": ref.revision,
        "packages": ", ".join(ref.packages),
    }
    lines += [fact(name, value) for name, value in facts.items() if value]
    try:
        files = hub.resolve(model, quant=quant, revision=revision, download=False)
    except LoadError as error:
        is_path = ref.kind == "path"
        lines.append(fact("here", str(error) if is_path else "no"))
        more, problem = ([], str(error)) if is_path else remote_facts(ref)
        return Found(printable("\n".join([*lines, *more])), problem=problem)
    lines.append(fact("here", f"yes, {files.path}"))
    return Found(printable("\n".join(lines)), files)


def remote_facts(ref: "Ref") -> tuple[list[str], str]:
    """Facts about a model from its source, and the error where it gave none."""
    from tahr import hub
    from tahr.hub.progress import human_bytes
    from tahr.models.loader.runnable import refuse_unsupported

    try:
        seen = hub.preview(ref)
    except TahrError as error:
        return [fact("size", f"unknown: {error}")], str(error)
    size = fact(
        "size", human_bytes(seen.size_bytes) if seen.size_bytes is not None else "not told before it is fetched"
    )
    if seen.config is None and seen.architecture is None:
        return [size], ""
    try:
        refuse_unsupported(seen)
    except LoadError as error:
        return [size, fact("runs", f"no: {error}")], ""
    return [size, fact("runs", "yes")], ""


SOURCES = {"hf": "Hugging Face hub", "ollama": "Ollama registry", "pypi": "package index", "path": "a local path"}


def fact(name: str, value: str) -> str:
    return f"{name:<14} {value}"

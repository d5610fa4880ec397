"""`tahr bench-serve`: how a running server holds under load."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tahr.cli.settings import options
from tahr.cli.settings.options import Option
from tahr.cli.terminal.console import note
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.bench_serve.bench import BenchTarget, Cell
    from tahr.bench_serve.loads import Encode
    from tahr.bench_serve.plan import BenchPlan, Level

HELP = "put load on a running server and measure what its clients see"

EXAMPLES = """\
examples:
  tahr bench-serve                                   32 clients at once ask the server on this machine
  tahr bench-serve --concurrency-sweep 1,4,16 --picture load.svg
  tahr bench-serve --request-rate 4 --goodput ttft:500,tpot:50
                                                     four requests per second, as strangers would send them
  tahr bench-serve --dataset shared-prefix --n-repeats 3 --require-ci --output json --out result.json

Times are what a client sees: to the first text, per token after it, between chunks, to the end. Any server of
OpenAI's API will do; one that has no /tokenize needs --tokenizer."""

FORMATS = ("md", "json", "jsonl")
DRIVER = Path("/proc/driver/nvidia/version")
LOAD = (
    Option(("--dataset",), "dataset", str, "random, sharegpt or shared-prefix"),
    Option(("--dataset-path",), "dataset_path", str, "the JSON file of --dataset sharegpt"),
    Option(("--input-len", "--random-input-len"), "n_input", int, "tokens of a prompt (256; 64 after a prefix)"),
    Option(("--output-len", "--random-output-len"), "n_output", int, "tokens of a reply (default 128)"),
    Option(("--prefix-len",), "n_prefix", int, "tokens that all prompts of shared-prefix share (default 1024)"),
    Option(("--num-prompts",), "n_prompts", int, "requests in a run (default 100)"),
    Option(("--warmup",), "n_warmup", int, "requests before each level, not counted (default 10)"),
    Option(("--n-repeats",), "n_repeats", int, "runs of each level (default 1)"),
    Option(("--timeout",), "timeout_s", float, "seconds until a request counts as failed (default 600)"),
    Option(("--seed",), "seed", int, "the same seed sends the same requests (default 0)"),
    Option(("--max-error-rate",), "max_error_rate", float, "fail if a larger share of requests fails"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, which load, which report."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:8080", metavar="URL", help="the server (default %(default)s)")
    add("--api-key", metavar="KEY", help="its key (or TAHR_API_KEY)")
    add("--model", metavar="NAME", help="the model to ask for (default: the first that is served)")
    add("--tokenizer", metavar="MODEL", help="count tokens with this model's tokenizer instead of the server's")
    group = parser.add_argument_group("load")
    add_levels(group.add_mutually_exclusive_group())
    for option in LOAD:
        option.add_to(group)
    group.add_argument("--respect-eos", action="store_true", help="let replies end where the model ends them")
    group.add_argument(
        "--default-sampling", action="store_true", help="sample as the model's defaults say, not greedily"
    )
    group.add_argument("--fail-on-error", action="store_true", help="fail if any request fails")
    group.add_argument("--require-ci", action="store_true", help="insist on enough repeats for confidence intervals")
    group.add_argument("--goodput", metavar="ttft:MS,...", help="also count requests that keep these times")
    group = parser.add_argument_group("report")
    group.add_argument("--output", choices=FORMATS, default="md", help="its form (default %(default)s)")
    group.add_argument("--out", type=Path, metavar="FILE", help="write it here instead of to stdout")
    group.add_argument("--picture", type=Path, metavar="FILE", help="draw it, as SVG")


def add_levels(group: argparse._MutuallyExclusiveGroup) -> None:
    group.add_argument("--concurrency", type=int, metavar="N", help="requests at once (default 32)")
    group.add_argument("--concurrency-sweep", metavar="N,N,...", help="several such levels, one after the other")
    group.add_argument("--request-rate", type=float, metavar="R", help="requests per second, at random moments")


def run(args: argparse.Namespace) -> int:
    """Check everything, then press."""
    import asyncio

    from tahr.bench_serve.bench import check_errors
    from tahr.server.http.event_loop import loop_factory

    plan = plan_of(args)
    check_files(args)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        server, cells = runner.run(measure(args, plan))
    write(args, server, plan, cells)
    check_errors(plan, cells)
    return 0


async def measure(args: argparse.Namespace, plan: "BenchPlan") -> "tuple[BenchTarget, list[Cell]]":
    from tahr.bench_serve.bench import bench, find_server, server_tokenizer
    from tahr.bench_serve.client import parse_target

    target = parse_target(args.base_url, args.api_key or os.environ.get("TAHR_API_KEY"))
    server = await find_server(target, args.model)
    note(f"{server.model} on {server.backend}")
    encode = local_encode(args.tokenizer) if args.tokenizer else server_tokenizer(server)
    return server, await bench(server, plan, encode, note)


def plan_of(args: argparse.Namespace) -> "BenchPlan":
    from tahr.bench_serve.plan import BenchPlan, parse_slo

    said: dict[str, Any] = options.given(args, LOAD)
    if args.goodput is not None:
        said["slo_ms"] = parse_slo(args.goodput)
    if levels := levels_of(args):
        said["levels"] = levels
    flags = ("respect_eos", "default_sampling", "fail_on_error", "require_ci")
    return BenchPlan(**said, **{name: getattr(args, name) for name in flags})


def check_files(args: argparse.Namespace) -> None:
    """A report that cannot be written is refused before anything is measured, which may take hours."""
    for option, path in (("--out", args.out), ("--picture", args.picture)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"{option} {path} cannot be written: name a file in a folder that exists.")


def levels_of(args: argparse.Namespace) -> "tuple[Level, ...]":
    from tahr.bench_serve.plan import Level

    if args.request_rate is not None:
        return (Level(rate=args.request_rate),)
    if args.concurrency is not None:
        return (Level(concurrency=args.concurrency),)
    if args.concurrency_sweep is None:
        return ()
    parts = [part.strip() for part in args.concurrency_sweep.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--concurrency-sweep {args.concurrency_sweep} is no list of numbers: write 1,4,16.")
    return tuple(Level(concurrency=int(part)) for part in parts)


def local_encode(model: str) -> "Encode":
    from tahr.cli.settings.model_files import open_tokenizer

    tokenizer = open_tokenizer(model)

    async def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special=False, parse_special=False))

    return encode


def write(args: argparse.Namespace, server: "BenchTarget", plan: "BenchPlan", cells: "list[Cell]") -> None:
    from tahr.bench_serve.picture import picture
    from tahr.bench_serve.report import FORMATS as WRITERS
    from tahr.bench_serve.report import reports
    from tahr.tools.environment import environment

    env = {**environment(), "driver": driver()}
    env.pop("load_1min")  # differs from minute to minute, and the hash must not
    made = reports(server, plan, cells, env)
    if args.picture:
        args.picture.write_text(picture(made), encoding="utf-8")
    text = WRITERS[args.output](made) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def driver() -> str | None:
    """The GPU driver of this machine, where there is one that tells."""
    try:
        return DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None

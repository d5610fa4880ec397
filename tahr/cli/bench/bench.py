"""`tahr bench`: how fast a model reads and generates here, with llama-bench's options and figures."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tahr.cli.bench.bench_gate import judge, percentage, read_baseline
from tahr.cli.bench.bench_shapes import add_machine, add_shapes, engine, shapes
from tahr.cli.terminal.console import note

if TYPE_CHECKING:
    from tahr.tools.bench import Shape

HELP = "time reading and generating, with llama-bench's options"

EXAMPLES = """\
examples:
  tahr bench smollm2:135m                        pp512 and tg128
  tahr bench model.gguf -p 512 -n 0 -r 3         reading alone, three times
  tahr bench model.gguf -p 0 -n 64 -np 1,8 -d 0,4096
                                                 one and eight sequences, at the start and after 4096 tokens
  tahr bench model.gguf --pg 512,128 --json      both in one, as JSON
  tahr bench model.gguf --json > before.json     and after a change:
  tahr bench model.gguf --baseline before.json   exit code 1 if anything is more than 5 % slower
  tahr bench model.gguf -n 0 --profile           which op takes how much of the time"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which shapes, which machine."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="which model (default: the small one `tahr run` uses)"
    )
    add_shapes(parser, n_gen=128, n_seqs=[1], n_reps=5)
    add_machine(parser)
    parser.add_argument("--profile", action="store_true", help="time per op, at the end (as TAHR_PROFILE=1)")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="fail if slower than in this file, written by --json"
    )
    parser.add_argument(
        "--tolerance",
        type=percentage,
        default=5.0,
        metavar="N",
        help="per cent slower that are still as fast (default 5)",
    )


def run(args: argparse.Namespace) -> int:
    from tahr.tools.bench import open_bench
    from tahr.tools.environment import Neighbours, environment, line

    baseline = read_baseline(args.baseline) if args.baseline else {}
    if args.profile:
        os.environ["TAHR_PROFILE"] = "1"
    wanted = shapes(args)
    facts = environment()
    opened = open_bench(args.model, engine(args), wanted)
    neighbours = Neighbours()
    note(f"{opened.name} on {opened.backend_summary}; {line(facts)}")
    records = []
    for shape in wanted:
        result = opened.bench.measure(shape, args.reps, ticker(shape, args.reps))
        wipe()
        records.append({**result.record(), **opened.facts, "n_batch": args.batch_size, **facts})
        if not args.json:
            print(result.line(), flush=True)
    if warning := neighbours.warning():
        note(warning)
    if args.json:
        print(json.dumps([{**record, "stolen": neighbours.share} for record in records], indent=1))
    return judge(records, baseline, args.tolerance / 100) if args.baseline else 0


def ticker(shape: "Shape", n_reps: int) -> Any:
    """Shows on a terminal which repetition runs."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        say(f"{shape.label}: {done} of {n_reps}")

    return tick


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def wipe() -> None:
    say("")

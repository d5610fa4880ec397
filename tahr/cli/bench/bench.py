"""`tahr bench`: how fast a model reads and generates here, with llama-bench's options and figures."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tahr.cli.bench.bench_gate import judge, percentage, read_baseline
from tahr.cli.bench.bench_shapes import add_machine, add_shapes, engine, shapes
from tahr.cli.terminal.console import note
from tahr.errors import ConfigError

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
  tahr bench model.gguf -n 0 --profile           which op takes how much of the time
  tahr bench model.gguf --group prefix_cache -n 64
                                                 whole requests in place of tests: seconds of a group's cases"""

GROUPS = (
    *("prefill", "decode", "full_pipeline", "prefix_cache", "prefix_cache_lengths", "batch_prefill"),
    *("chunked_prefill", "all"),
)


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
    text = f"time a group of whole requests, which has texts of its own (repeatable): {', '.join(GROUPS)}"
    parser.add_argument("--group", action="append", choices=GROUPS, metavar="NAME", help=text)


def run(args: argparse.Namespace) -> int:
    from tahr.tools.bench import open_bench
    from tahr.tools.environment import Neighbours, environment, line

    if args.group:
        return run_groups(args)
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
        result = opened.bench.measure(shape, args.reps, ticker(shape.label, args.reps))
        wipe()
        records.append({**result.record(), **opened.facts, "n_batch": args.batch_size, **facts})
        if not args.json:
            print(result.line(), flush=True)
    if warning := neighbours.warning():
        note(warning)
    if args.json:
        print(json.dumps([{**record, "stolen": neighbours.share} for record in records], indent=1))
    return judge(records, baseline, args.tolerance / 100) if args.baseline else 0


def run_groups(args: argparse.Namespace) -> int:
    """Time whole requests; -n, -r and the options of the machine count as they do for tests."""
    from tahr.tools.bench_groups import GROUPS as KNOWN
    from tahr.tools.bench_groups import GroupBench, time_case
    from tahr.tools.environment import environment, line

    refuse_shapes(args)
    facts = environment()
    note(line(facts))
    bench = GroupBench(args.model, engine(args), max(1, args.n_gen[0]))
    records = []
    for name in KNOWN if "all" in args.group else dict.fromkeys(args.group):
        if not args.json:
            print(f"{name}: {KNOWN[name].__doc__}", flush=True)
        for case in KNOWN[name](bench):
            timed = time_case(name, case, args.reps, ticker(f"{name}, {case.name}", args.reps + 1))
            wipe()
            records.append({**timed.record(), **facts})
            if not args.json:
                print(timed.line(), flush=True)
    bench.close()
    if args.json:
        print(json.dumps(records, indent=1))
    return 0


def refuse_shapes(args: argparse.Namespace) -> None:
    """Options that only tests have."""
    usual = {"n_prompt": [512], "n_depth": [0], "pg": [], "sequences": [1], "baseline": None}
    flags = {"n_prompt": "-p", "n_depth": "-d", "pg": "--pg", "sequences": "-np", "baseline": "--baseline"}
    given = [flags[name] for name, value in usual.items() if getattr(args, name) != value]
    if given or len(args.n_gen) > 1:
        wrong = " and ".join(given) or "several numbers of -n"
        raise ConfigError(f"A group has prompts and lengths of its own: leave out {wrong}, or leave out --group.")


def ticker(label: str, n_reps: int) -> Any:
    """Shows on a terminal which repetition runs."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        say(f"{label}: {done} of {n_reps}")

    return tick


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def wipe() -> None:
    say("")

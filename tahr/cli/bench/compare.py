"""`tahr compare`: Tahr and llama.cpp side by side, on the same file, taking turns."""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from tahr.cli.bench.bench import say, wipe
from tahr.cli.bench.bench_shapes import add_machine, add_shapes, counts, engine, shapes
from tahr.cli.terminal.console import note
from tahr.errors import TahrError

if TYPE_CHECKING:
    from tahr.tools.bench import Shape
    from tahr.tools.comparison import Compared

HELP = "time Tahr and llama.cpp on the same model, taking turns"

EXAMPLES = """\
examples:
  tahr compare model.gguf                              pp512, tg64, and tg64 with 8 sequences
  tahr compare model.gguf --peer-python venv/bin/python    llama.cpp by the module llama_cpp of another Python
  tahr compare model.gguf --ctx 512,4096 --gen 32      read as many tokens; generate after as many
  tahr compare model.gguf -n 32 -np 1 -d 4096          pp512 and tg32 after 4096 tokens
  tahr compare *.gguf --sweep                          a matrix over models, and what is worst

llama.cpp is the program llama-bench on the PATH, or the module llama_cpp (pip install llama-cpp-python).
Run it alone on the machine: a busy neighbour slows both sides, but not alike."""

SWEEP = ((512, 0, 0), (0, 128, 0), (0, 64, 4096), (4, 0, 4096))  # (read, generate, depth)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which models, which shapes, which peer."""
    parser.epilog = EXAMPLES
    parser.add_argument("models", nargs="+", metavar="MODEL", help="GGUF files, or models by name")
    add_shapes(parser, n_gen=64, n_seqs=[1, 8], n_reps=5)
    parser.add_argument("--ctx", type=counts, metavar="N", help="instead of -p and -d: read N, and generate after N")
    parser.add_argument("--sweep", action="store_true", help="pp512, tg128, tg64 and pp4 after 4096; worst first")
    parser.add_argument("--peer-python", metavar="PATH", help="a Python that has the module llama_cpp")
    parser.add_argument("--llama-bench", metavar="PATH", help="the program llama-bench, if it is not on the PATH")
    add_machine(parser)


def run(args: argparse.Namespace) -> int:
    from tahr.tools.comparison import compare, matrix, table, worst_first
    from tahr.tools.environment import Neighbours, environment, line

    facts = environment()
    wanted = wanted_shapes(args)
    neighbours = Neighbours()
    note(line(facts))
    rows: list[Compared] = []
    failed = 0
    for model in args.models:
        try:
            found = compare(model, engine(args), wanted, args.reps, (args.peer_python, args.llama_bench), say)
        except TahrError as error:
            if len(args.models) == 1:
                raise
            note(f"error: {model}: {error}")  # the other models are still worth their figures
            failed = error.exit_code
            continue
        finally:
            wipe()
        rows += found
        compared = {row.ours.shape for row in found}
        if left_out := [shape.label for shape in wanted if shape not in compared]:
            why = f"llama-bench runs one sequence, so {', '.join(left_out)} is left out"
            note(f"{model}: {why} (--peer-python compares it).")
        if not args.json:
            print(table(found), flush=True)
    if warning := neighbours.warning():
        note(warning)
    if args.json:
        facts["stolen"] = neighbours.share
        print(json.dumps({"environment": facts, "rows": [row.record() for row in rows]}, indent=1))
    elif args.sweep:
        print(f"\n{matrix(rows)}\n\nworst first:\n{worst_first(rows)}" if rows else "")
    return failed


def wanted_shapes(args: argparse.Namespace) -> "list[Shape]":
    from tahr.tools.bench import Shape

    if args.sweep:
        return [Shape(p, n, d) for p, n, d in SWEEP]
    if args.ctx is None:
        return shapes(args)
    read = [Shape(n_prompt=n) for n in args.ctx]
    after = [replace(shape, n_depth=n) for n in args.ctx for shape in generated(args)]
    return [*read, *after, *(Shape(p, g) for p, g in args.pg)]


def generated(args: argparse.Namespace) -> "list[Shape]":
    from tahr.tools.bench import Shape

    return [Shape(n_gen=n, n_seqs=s) for n in args.n_gen for s in args.sequences if n]

"""Arguments of `tahr bench` and `tahr compare`: llama-bench's options, and their shapes."""

import argparse
from itertools import product
from typing import TYPE_CHECKING

from tahr.cli.settings.options import backend_for, within_cores
from tahr.cli.terminal.console import note
from tahr.config import EngineConfig
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.tools.bench import Shape


def counts(text: str) -> list[int]:
    """Whole numbers from zero up, with commas between."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is no list of whole numbers such as 128,512") from None
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"`{text}` has a negative number")
    return found


def pair(text: str) -> tuple[int, int]:
    """`P,G`: tokens to read and to generate."""
    found = counts(text)
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"`{text}` must be two numbers, such as 512,128")
    return found[0], found[1]


def positive(text: str) -> int:
    found = counts(text)
    if len(found) != 1 or found[0] < 1:
        raise argparse.ArgumentTypeError(f"`{text}` must be a whole number of at least 1")
    return found[0]


def add_shapes(parser: argparse.ArgumentParser, n_gen: int, n_seqs: list[int], n_reps: int) -> None:
    """The options that say what is timed."""
    what = parser.add_argument_group("what is timed (lists with commas)")
    what.add_argument("-p", "--n-prompt", type=counts, default=[512], metavar="N", help="tokens to read (default 512)")
    what.add_argument(
        "-n",
        "--n-gen",
        "--gen",
        type=counts,
        default=[n_gen],
        metavar="N",
        help=f"tokens to generate (default {n_gen})",
    )
    what.add_argument(
        "-pg",
        "--pg",
        "--turn",
        type=pair,
        action="append",
        default=[],
        metavar="P,G",
        help="read P, then generate G, timed together (may be repeated)",
    )
    what.add_argument(
        "-d", "--n-depth", "--depth", type=counts, default=[0], metavar="N", help="tokens read before the clock starts"
    )
    what.add_argument(
        "-np",
        "--sequences",
        type=counts,
        default=n_seqs,
        metavar="N",
        help=f"sequences that generate at once (default {','.join(map(str, n_seqs))})",
    )
    what.add_argument("-r", "--reps", "--repetitions", type=positive, default=n_reps, metavar="N", help="repetitions")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """The options that say where and how it runs."""
    where = parser.add_argument_group("how it runs")
    where.add_argument("-t", "--threads", type=positive, metavar="N", help="CPU threads (default: one per core)")
    where.add_argument("-b", "--batch-size", type=positive, default=512, metavar="N", help="tokens read in one step")
    where.add_argument(
        "--backend", default="auto", metavar="X", help="where to run (`tahr devices` lists what is here)"
    )
    where.add_argument("-ngl", "--n-gpu-layers", metavar="N", help="0: on the CPU; 99: all on the GPU")
    where.add_argument("--kv-dtype", metavar="X", help="number format of keys and values, such as f16 or f32")
    where.add_argument("--quantize", metavar="TYPE", help="quantise a float checkpoint at load, such as int8 or q4_k")


def shapes(args: argparse.Namespace) -> "list[Shape]":
    """Everything asked for: reading, generating by 1 and by more sequences, both; each at every depth."""
    from tahr.tools.bench import Shape

    found = [Shape(n_prompt=p, n_depth=d) for d, p in product(args.n_depth, args.n_prompt)]
    found += [Shape(n_gen=n, n_depth=d, n_seqs=s) for d, n, s in product(args.n_depth, args.n_gen, args.sequences)]
    found += [Shape(p, g, d) for d, (p, g) in product(args.n_depth, args.pg)]
    found = list(dict.fromkeys(shape for shape in found if shape.n_tokens))
    if not found:
        raise ConfigError("There is nothing to time: give -p, -n or --pg a number above 0.")
    return found


def engine(args: argparse.Namespace) -> EngineConfig:
    """Where it runs, checked."""
    backend = args.backend if args.n_gpu_layers is None else backend_for(args.n_gpu_layers, args.backend)
    config = EngineConfig(
        backend=backend,
        n_threads=args.threads,
        kv_dtype=args.kv_dtype,
        prefill_chunk_size=args.batch_size,
        quantize=args.quantize,
    )
    return within_cores(config, note)

"""`tahr embed`: texts and images as vectors."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from tahr.cli.bench.bench_shapes import positive
from tahr.cli.chat.prompt import read_file, read_stdin, stdin_is_terminal
from tahr.cli.settings.options import within_cores
from tahr.cli.terminal.console import note
from tahr.config import EngineConfig
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr import LLM
    from tahr.backends.api import Floats

HELP = "turn texts and images into vectors"
N_TOGETHER = 1024  # items whose vectors are written at once

EXAMPLES = """\
examples:
  tahr embed minilm "The cat sat on the mat"
  tahr embed minilm --text "one text" --text "another"
  tahr embed minilm --file sentences.txt --format csv -o vectors.csv      a text per line
  tahr embed minilm --dimensions 128 < sentences.txt
  tahr embed ./clip-vit-base-patch32 --text "a photo of a cat" --image cat.jpg --image dog.png"""


class EmbedInput(NamedTuple):
    """A text, or the path of an image."""

    text: str
    kind: str  # name of its column: text or image


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which texts, which form."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="which model")
    parser.add_argument("words", nargs="*", metavar="TEXT", help="a text; the same as --text")
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--text", action="append", metavar="TEXT", help="a text; may be given several times")
    parser.add_argument("--image", action="append", metavar="FILE", help="an image; may be given several times")
    texts.add_argument("--file", type=Path, metavar="FILE", help="a text per line; without both, standard input is")
    parser.add_argument("--format", choices=FORMATS, default="json", help="what a line is: an object, a row, numbers")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of standard output")
    parser.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=True, help="vectors are 1 long")
    parser.add_argument("--pooling", metavar="X", help="last, mean, max or cls (default: the model's own)")
    parser.add_argument("--dimensions", type=positive, metavar="N", help="only the first N numbers of a vector")
    parser.add_argument("--prompt-name", metavar="NAME", help="which of the model's prompts is put before the texts")
    parser.add_argument("--truncate", type=int, metavar="N", help="cut texts to N tokens (-1: to what the model takes)")
    where = parser.add_argument_group("how it runs")
    where.add_argument("-t", "--threads", type=positive, metavar="N", help="CPU threads (default: one per core)")
    where.add_argument("--backend", default="auto", metavar="X", help="where to run; `tahr devices` lists them")
    where.add_argument("--quantize", metavar="TYPE", help="quantise a float checkpoint at load, such as int8")


def run(args: argparse.Namespace) -> int:
    items = read_items(args)
    config = within_cores(EngineConfig(backend=args.backend, n_threads=args.threads, quantize=args.quantize), note)

    from tahr import LLM
    from tahr.hub.progress import Progress

    with LLM(args.model, config=config, progress=Progress(sys.stderr)) as llm, opened(args.output) as out:
        for first in range(0, len(items), N_TOGETHER):
            some = items[first : first + N_TOGETHER]
            out.write(FORMATS[args.format](some, vectors(llm, some, args), first == 0))
    return 0


def vectors(llm: "LLM", items: list[EmbedInput], args: argparse.Namespace) -> "Floats":
    """Texts come before images, as they do among the items."""
    images = [item.text for item in items if item.kind == "image"]
    return llm.embed(
        [item.text for item in items if item.kind == "text"],
        args.pooling,
        images=images or None,
        normalize=args.normalize,
        dimensions=args.dimensions,
        prompt_name=args.prompt_name,
        truncate=args.truncate,
    )


def read_items(args: argparse.Namespace) -> list[EmbedInput]:
    """Texts and images to embed; standard input is not read where images are named."""
    has_texts = args.words or args.text is not None or args.file is not None
    texts = read_texts(args) if has_texts or not args.image else []
    return [EmbedInput(text, "text") for text in texts] + [EmbedInput(path, "image") for path in args.image or ()]


def read_texts(args: argparse.Namespace) -> list[str]:
    """The texts, none of them empty."""
    if args.words and (args.text is not None or args.file is not None):
        raise ConfigError("The texts are given twice: give them after the model, or with --text or --file.")
    if args.words or args.text is not None:
        texts = args.words or args.text
        what = "text"
    else:
        if args.file is None and stdin_is_terminal():
            raise ConfigError("There is nothing to embed: give a text, --text or --file, or pipe in a text per line.")
        texts = lines_of(read_stdin() if args.file is None else read_file(args.file))
        what = "line"
    if not texts:
        raise ConfigError("There is nothing to embed: the input is empty.")
    empty = next((i for i, text in enumerate(texts, start=1) if not text.strip()), None)
    if empty:
        raise ConfigError(f"The {what} {empty} is empty and has no embedding: take it out.")
    return list(texts)


def lines_of(text: str) -> list[str]:
    """Lines as other programs count them: str.splitlines also cuts at form feeds and at U+2028 within a text."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Where vectors go: a file has its name only when it is whole, and what failed leaves an older one as it was."""
    if path is None:
        yield sys.stdout
        return
    # Pipes and devices stay what they are, and so do links such as /dev/stdout.
    in_place = path.is_symlink() or (path.exists() and not path.is_file())
    draft = path if in_place else path.with_name(f"{path.name}.tahr-partial")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            yield file
        if not in_place:
            draft.replace(path)
    except BaseException:
        if not in_place:
            draft.unlink(missing_ok=True)
        raise


def as_json(items: list[EmbedInput], rows: "Floats", is_first: bool) -> str:
    """An object per line."""
    width = rows.shape[1]
    made = (
        {item.kind: item.text, "embedding": row.tolist(), "dimensions": width}
        for item, row in zip(items, rows, strict=True)
    )
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in made)


def as_csv(items: list[EmbedInput], rows: "Floats", is_first: bool) -> str:
    """The text or the path, then its numbers, below a line that names the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if is_first:
        writer.writerow(["text", *range(rows.shape[1])])
    writer.writerows([item.text, *row.tolist()] for item, row in zip(items, rows, strict=True))
    return out.getvalue()


def as_raw(items: list[EmbedInput], rows: "Floats", is_first: bool) -> str:
    """Numbers alone, a vector per line."""
    return "".join(f"{' '.join(map(str, row.tolist()))}\n" for row in rows)


FORMATS: dict[str, Callable[[list[EmbedInput], "Floats", bool], str]] = {"json": as_json, "csv": as_csv, "raw": as_raw}

"""`tahr tokenize`: the tokens a text becomes."""

import argparse
import json

from tahr.cli.chat.prompt import given_or_piped

HELP = "show the tokens a model makes of a text"

EXAMPLES = """\
examples:
  tahr tokenize smollm2:135m "Hello world"
  tahr tokenize smollm2:135m --ids < notes.txt     ids alone, on one line"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which text, which form."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="whose tokenizer")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the text; without it, standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--ids", action="store_true", help="only the ids, on one line")
    form.add_argument("--json", action="store_true", help="ids and pieces as JSON")
    parser.add_argument("--no-special", action="store_true", help="add no special tokens, and read none in the text")


def run(args: argparse.Namespace) -> int:
    from tahr.cli.settings.model_files import open_tokenizer

    text = given_or_piped(args.text)
    tokenizer = open_tokenizer(args.model)
    special = not args.no_special
    ids = tokenizer.encode(text, add_special=special, parse_special=special)
    if args.ids:
        print(*ids)
    elif args.json:
        print(json.dumps({"ids": ids, "pieces": [tokenizer.piece(i) for i in ids]}, ensure_ascii=False))
    else:
        for i in ids:
            print(f"{i:>8}  {tokenizer.piece(i)!r}")
    return 0

"""`tahr tokenize`: the tokens a text becomes."""

import argparse
import json
from typing import TYPE_CHECKING

from tahr.cli.chat.prompt import given_or_piped

if TYPE_CHECKING:
    from tahr.text.tokens.tokenizer import Tokenizer

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
        print(json.dumps({"ids": ids, "pieces": [readable(tokenizer, i) for i in ids]}, ensure_ascii=False))
    else:
        for i in ids:
            print(f"{i:>8}  {shown(tokenizer, i)}")
    return 0


def shown(tokenizer: "Tokenizer", token: int) -> str:
    """A token between quotes; part of a character as bytes."""
    if tokenizer.is_special(token):
        return repr(tokenizer.piece(token))
    data = tokenizer.token_bytes(token)
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)


def readable(tokenizer: "Tokenizer", token: int) -> str:
    """The text a token stands for; part of a character is shown by its bytes, a special token by its name."""
    if tokenizer.is_special(token):
        return tokenizer.piece(token)
    return tokenizer.token_bytes(token).decode("utf-8", "backslashreplace")

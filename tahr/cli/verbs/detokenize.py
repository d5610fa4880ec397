"""`tahr detokenize`: the text that token ids stand for."""

import argparse
import json

from tahr.cli.chat.prompt import given_or_piped
from tahr.errors import ConfigError

HELP = "turn token ids back into text"

EXAMPLES = """\
examples:
  tahr detokenize smollm2:135m 19556 905
  tahr tokenize smollm2:135m --ids "Hello" | tahr detokenize smollm2:135m"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which ids."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="whose tokenizer")
    parser.add_argument("ids", nargs="*", metavar="ID", help="token ids; without them, standard input")
    parser.add_argument("--special", action="store_true", help="show special tokens too")


def run(args: argparse.Namespace) -> int:
    from tahr.cli.settings.model_files import open_tokenizer

    ids = parse(given_or_piped(" ".join(args.ids) or None))
    tokenizer = open_tokenizer(args.model)
    if wrong := [i for i in ids if not 0 <= i < tokenizer.n_vocab]:
        raise ConfigError(f"There is no token {wrong[0]}: the ids of {args.model} end at {tokenizer.n_vocab - 1}.")
    print(tokenizer.decode(ids, skip_special=not args.special))
    return 0


def parse(text: str) -> list[int]:
    """Ids between blanks or commas, so that a list copied from anywhere works, or the JSON of `tahr tokenize`."""
    if text.lstrip().startswith("{"):
        return parse_json(text)
    try:
        return [int(word) for word in text.strip().strip("[]").replace(",", " ").split()]
    except ValueError as error:
        raise ConfigError(f"Token ids are whole numbers ({error}).") from None


def parse_json(text: str) -> list[int]:
    try:
        ids = json.loads(text)["ids"]
    except (ValueError, KeyError, TypeError, RecursionError):
        ids = None
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise ConfigError("The JSON holds no list of token ids: give what `tahr tokenize --json` prints.")
    return ids

"""Whole numbers as people write them: 8192, 8k, 10M, and a share such as 50%."""

import argparse
import re

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
NUMBER = re.compile(r"(-?\d+)([kmgt]?)", re.IGNORECASE)
SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class Share(float):
    """A part of what there is, above 0 and at most 1."""


def whole_number(text: str) -> int:
    """A whole number; k, m, g and t stand for powers of 1024."""
    found = NUMBER.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number such as 4096 or 8k")
    return int(found[1]) * UNITS[found[2].lower()]


def number_or_share(text: str) -> int | Share:
    """A whole number, or a share as a percentage."""
    found = SHARE.fullmatch(text.strip())
    if found is None:
        return whole_number(text)
    if not 0 < float(found[1]) <= 100:
        raise argparse.ArgumentTypeError(f"`{text}` is not a share: it must be above 0% and at most 100%")
    return Share(float(found[1]) / 100)

"""Figures of now against figures of before."""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tahr.cli.terminal.console import note
from tahr.errors import ConfigError
from tahr.regular_file import read_bytes

EXIT_SLOWER = 1
MAX_BASELINE_BYTES = 64 << 20

Key = tuple[Any, ...]


def key_of(record: Mapping[str, Any]) -> Key:
    """Facts that comparable figures share; files may move, so a model is known by its size."""
    return tuple(record[field] for field in ("test", "model_type", "model_size", "backends", "n_threads", "cpu_info"))


def read_baseline(path: Path) -> dict[Key, float]:
    """Medians by what was measured, from a file that `tahr bench --json` wrote."""
    try:
        return {
            key_of(record): float(record["median_ts"]) for record in json.loads(read_bytes(path, MAX_BASELINE_BYTES))
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"--baseline {path} cannot be used ({error!r}): write one with `tahr bench MODEL --json > {path}`."
        ) from error


def percentage(text: str) -> float:
    """Read a percentage from 0 up; nothing is slower than NaN, so a gate with that would let everything pass."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` must be a number of per cent, 0 or more")
    return found


def judge(records: Sequence[Mapping[str, Any]], baseline: Mapping[Key, float], tolerance: float) -> int:
    """Say how each test stands to its baseline; the exit code tells whether one is slower than is tolerated."""
    slower = False
    for record in records:
        before = baseline.get(key_of(record))
        if before is None:
            what = f"{record['test']} of this model with {record['n_threads']} threads on this processor"
            raise ConfigError(f"The baseline has no {what}: measure one first.")
        change = record["median_ts"] / before - 1
        worse = change < -tolerance
        slower |= worse
        verdict = "SLOWER" if worse else "ok"
        note(f"{record['test']}: {record['median_ts']:.1f} t/s, before {before:.1f} ({change:+.1%}): {verdict}")
    return EXIT_SLOWER if slower else 0

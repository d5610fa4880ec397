"""The small JSON files beside a model's weights, read without trusting them."""

import json
from pathlib import Path
from typing import Any

from tahr import regular_file
from tahr.errors import TahrError

MAX_BYTES = 256 << 20  # the largest released tokenizer.json has 35 MB


def read_bytes(file: Path, error: type[TahrError]) -> bytes:
    """The content of a file that is no larger than any real one."""
    try:
        return regular_file.read_bytes(file, MAX_BYTES)
    except OSError as failure:
        why = f"{file} cannot be read ({failure.strerror})"
        raise error(f"{why}: check that you may read it, or download it again.") from failure


def read_object(file: Path, error: type[TahrError]) -> dict[str, Any]:
    """The object in a file, less the keys whose value is null; nothing where there is no file."""
    if not file.is_file():
        return {}
    try:
        tree = json.loads(read_bytes(file, error))
    except (ValueError, RecursionError) as failure:
        raise error(f"{file} is not valid JSON ({failure}): download it again.") from failure
    if not isinstance(tree, dict):
        raise error(f"{file} holds no JSON object: download it again.")
    return {key: value for key, value in tree.items() if value is not None}

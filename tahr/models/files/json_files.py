"""The JSON files beside a checkpoint, which strangers write."""

import json
from pathlib import Path
from typing import Any

from tahr.errors import CorruptFile
from tahr.regular_file import read_bytes

WORDS: dict[type, str] = {dict: "object", list: "list"}


def read_json(path: Path, kind: type, most_bytes: int) -> Any:
    """The object or list in a file; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        value = json.loads(read_bytes(path, most_bytes))
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read ({error.strerror}); fetch the model again.") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not valid JSON ({error}); fetch the model again.") from error
    if not isinstance(value, kind):
        raise CorruptFile(f"{path} does not hold a JSON {WORDS[kind]}; fetch the model again.")
    return value

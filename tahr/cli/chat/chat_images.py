"""Images in files as parts of messages."""

from base64 import b64encode
from pathlib import Path
from typing import Any

from tahr.errors import ConfigError
from tahr.regular_file import read_bytes

MOST_BYTES = 20_000_000


def image_part(path: Path) -> dict[str, Any]:
    """The image of a file, in the form that servers and conversations in files take as well."""
    try:
        data = read_bytes(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"The image {path} cannot be read ({reason}): check the path and its size.") from error
    return {"type": "image_url", "image_url": f"data:image/*;base64,{b64encode(data).decode()}"}

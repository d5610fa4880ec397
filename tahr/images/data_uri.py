"""Images as text: data URIs, and base64 alone."""

import base64
import binascii

from tahr.images.errors import BadImage, ImageTooLarge

HEAD_CHARS = 256  # limit on what comes before the comma of a data URI


def data_of(text: str, most_bytes: int) -> bytes:
    """The bytes of an image; nothing is fetched and no file is read."""
    body = text
    if text[:5].lower() == "data:":
        body = after_head(text)
    elif "://" in text[:HEAD_CHARS]:
        raise BadImage("The image is a URL, and Tahr fetches none: send its bytes as data:image/png;base64,...")
    if len(body) // 4 * 3 > most_bytes + 2:
        raise ImageTooLarge(f"The image has more than the {most_bytes} bytes allowed: make it smaller.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage("The image is no base64: send its bytes as data:image/png;base64,... and no path.") from error


def after_head(text: str) -> str:
    """The part behind the comma of a data URI of an image in base64."""
    comma = text.find(",", 0, HEAD_CHARS)
    kind, *options = text[5 : max(comma, 5)].lower().split(";")
    if not kind.startswith("image/"):
        raise BadImage(f"The data URI is of the type {kind[:80]!r}, but it must be of an image, such as image/png.")
    if "base64" not in options:
        raise BadImage("The data URI is not in base64: send data:image/png;base64,...")
    return text[comma + 1 :]

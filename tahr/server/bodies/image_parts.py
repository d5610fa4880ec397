"""Images among the parts of messages, as clients send them."""

from typing import Any

from msgspec import Struct

from tahr.generation.pictures import ImageText, MessageImage
from tahr.server.bodies.inputs import ImageUrl
from tahr.server.http.errors import bad_field

DETAILS = {"low": 256, "auto": None, "high": None, "original": None}  # limits on the tokens of an image
TAKERS = ("user", "tool", "function")  # roles whose messages may have images


class ContentPart(Struct):
    """A part of a message; unknown fields are looked at only to refuse the type."""

    type: str
    text: str | None = None
    image_url: str | ImageUrl | None = None


class PlacedImage(ContentPart):
    """An image of an API that has other places for it than `content`."""

    place: str = ""


def placed_image(data: str, place: str, detail: str | None = None) -> PlacedImage:
    """A part of a message that an API makes."""
    return PlacedImage("image_url", image_url=ImageUrl(data, detail), place=place)


def is_image(part: ContentPart) -> bool:
    return part.type == "image_url" and part.image_url is not None


def image_of(part: ContentPart, where: str, role: str) -> dict[str, Any]:
    """An image as templates and their readers know it."""
    place = part.place if isinstance(part, PlacedImage) else where
    field = place.split("[")[0].split(".")[0]
    if role not in TAKERS:
        raise bad_field(
            field, f"{place} is an image in a message of role {role!r}: send images in the user's messages."
        )
    sent = part.image_url
    assert sent is not None, "the part is an image"
    detail = sent.detail if isinstance(sent, ImageUrl) else None
    if detail is not None and detail not in DETAILS:
        raise bad_field(field, f"{place} has the detail {detail[:64]!r}, but it must be one of {', '.join(DETAILS)}.")
    url = sent.url if isinstance(sent, ImageUrl) else sent
    return {"type": "image", "image": MessageImage(ImageText(url), place, DETAILS[detail or "auto"])}

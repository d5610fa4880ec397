"""Errors of an image that somebody sent."""

from tahr.errors import ConfigError


class BadImage(ConfigError):
    """The bytes are no image that Tahr reads, or a damaged one."""


class ImageTooLarge(BadImage):
    """An image has more bytes or pixels than the limits allow."""

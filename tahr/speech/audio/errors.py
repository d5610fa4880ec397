"""Errors of a recording that somebody sent."""

from tahr.errors import ConfigError


class BadAudio(ConfigError):
    """The bytes are no recording that Tahr reads, or a damaged one."""


class AudioTooLong(BadAudio):
    """A recording lasts longer than the limit allows."""

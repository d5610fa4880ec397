"""The special tokens and codes of a model that speaks, and the voices and languages that it knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["custom_voice", "voice_design", "base"]


@dataclass(frozen=True, slots=True)
class TextTokens:
    """Tokens of text that steer the model."""

    im_start: int
    im_end: int
    pad: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SteeringCodes:
    """First codes that are no sound."""

    think: int
    no_think: int
    think_begin: int
    think_end: int
    pad: int
    begin: int


@dataclass(frozen=True, slots=True)
class VoiceTokens:
    """All of these."""

    kind: Kind
    follows_instructions: bool  # the smallest models with voices of their own do not
    text: TextTokens
    codes: SteeringCodes
    n_codes: int  # codes of a frame
    n_sounds: int  # first codes that are sounds; as a code that is drawn, the next one is the end
    no_first: int  # first code that stands for no frame
    no_other: int  # likewise, of the other codes
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # language by speaker, where that is a dialect
    languages: Mapping[str, int]

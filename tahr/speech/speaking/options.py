"""How a text is to be spoken."""

from dataclasses import dataclass

from tahr.errors import ConfigError

MOST_CHUNK = 100
MOST_FRAMES = 8192  # limit on the frames of one part of a text, whatever it says
MOST_WORDS = 4096  # characters of instructions


@dataclass(frozen=True, slots=True)
class SpeakOptions:
    """Sampling values that are None are those of the model's files."""

    voice: str = ""  # name of a speaker; "": the first one, in models that have some
    language: str = ""  # its name; "": the model decides by the text
    instructions: str = ""  # the way to speak or, in models that design voices, the voice
    is_streaming: bool = False  # the model reads the text word by word while it speaks
    chunk_frames: int = 10  # frames of a piece of sound
    max_frames: int = MOST_FRAMES  # limit on each part of the text
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        for wrong, sentence in (
            (not 1 <= self.chunk_frames <= MOST_CHUNK, f"chunk_frames must lie between 1 and {MOST_CHUNK}"),
            (not 1 <= self.max_frames <= MOST_FRAMES, f"max_frames must lie between 1 and {MOST_FRAMES}"),
            (len(self.instructions) > MOST_WORDS, f"instructions have at most {MOST_WORDS} characters"),
            (outside(self.temperature, 0, 10), "temperature must lie between 0 and 10"),
            (outside(self.top_k, 0, 1 << 16), "top_k must be a whole number of tokens, or 0"),
            (outside(self.top_p, 0, 1) or self.top_p == 0, "top_p must be above 0 and at most 1"),
            (outside(self.repetition_penalty, 0.1, 10), "repetition_penalty must lie between 0.1 and 10"),
            (self.seed is not None and not isinstance(self.seed, int), "seed must be a whole number"),
        ):
            if wrong:
                raise ConfigError(f"Of the options, {sentence}.")


def outside(value: float | None, low: float, high: float) -> bool:
    return value is not None and not low <= value <= high

"""How a recording is written down."""

from dataclasses import dataclass
from typing import ClassVar

from tahr.errors import ConfigError

LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_PROMPT_CHARACTERS = 20_000
MOST_BEAMS = 16
MOST_SILENCE_S = 30  # a window


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """Options of one recording."""

    language: str | None = None  # a code, such as en; None: what is heard in its beginning
    task: str = "transcribe"  # one of TASKS; translate: into English
    temperatures: tuple[float, ...] = LADDER  # the next one is tried where a window's text is poor
    beams: int = 1  # texts that are followed at once at temperature 0
    patience: float = 1.0  # texts that must have ended, as a multiple of the beams
    best_of: int = 5  # texts of which the likeliest is taken, at other temperatures
    prompt: str = ""  # text as if it had been said before: names, spelling
    hotwords: str = ""  # words that are likely: before every window, as if they had been said
    has_times: bool = True  # times of segments; without them, windows follow each other without overlap
    uses_previous: bool = True  # the text so far is the prompt of the next window
    max_ratio: float | None = 2.4  # compression above which a text counts as repeating itself
    least_logprob: float | None = -1.0  # mean log-probability of a token below which a text counts as poor
    no_speech: float | None = 0.6  # probability of silence above which a poor text is dropped
    has_words: bool = False  # times of words, which cost another look at each window
    # Silence around words that seem made up, in seconds, from which they are dropped; None: they stay.
    most_silence_s: float | None = None
    passes_silence: bool = True  # windows of steady noise are passed over without a model, as silent ones are
    seed: int = 0

    TASKS: ClassVar[tuple[str, ...]] = ("transcribe", "translate")

    def __post_init__(self) -> None:
        if self.task not in self.TASKS:
            raise ConfigError(f"task is {self.task!r:.40}, but it must be transcribe or translate.")
        if not self.temperatures or not all(0 <= each <= 1 for each in self.temperatures):
            raise ConfigError("temperature must lie between 0 and 1.")
        if not 1 <= self.beams <= MOST_BEAMS or not 1 <= self.best_of <= MOST_BEAMS:
            raise ConfigError(f"beams and best_of must lie between 1 and {MOST_BEAMS}.")
        if not 0 < self.patience <= 10:
            raise ConfigError("patience must lie above 0 and at most be 10.")
        if self.most_silence_s is not None and not (self.has_words and 0 < self.most_silence_s <= MOST_SILENCE_S):
            raise ConfigError(
                f"hallucination_silence_threshold must lie above 0 and at most be {MOST_SILENCE_S}, and needs times of "
                "words: ask for these too."
            )
        for name, text in (("prompt", self.prompt), ("text of hotwords", self.hotwords)):
            if len(text) > MOST_PROMPT_CHARACTERS:
                raise ConfigError(
                    f"The {name} has {len(text)} characters, of which at most {MOST_PROMPT_CHARACTERS} are read: "
                    "shorten it."
                )

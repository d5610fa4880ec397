"""How models mark what they think before they answer, and how templates switch it."""

from dataclasses import dataclass

SWITCHES = ("enable_thinking", "thinking")  # variables of templates that turn thinking on and off
EFFORT = "reasoning_effort"  # the variable of templates that say how much to think
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Tokens a block may have where an effort is asked for and the template has no variable for it.
EFFORT_BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 32768, "max": None}


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """Marks around a block of thinking; `answer` are marks around the text that follows it."""

    open: str
    close: str
    answer: tuple[str, ...] = ()
    found_by: str = ""  # a text in the templates of models that think so; empty: the closing mark
    also: tuple[str, ...] = ()  # other ways to open a block, which models fall into
    cites: tuple[str, ...] = ()  # marks of citations, of which the last opens a list of sources up to a `>`

    @property
    def opens(self) -> tuple[str, ...]:
        return (self.open, *self.also)

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.opens, self.close, *self.answer, *self.cites)

    def is_in(self, template: str) -> bool:
        return (self.found_by or self.close) in template


CITES = ("<co>", "</co:")
# The first that is found in a template is the model's.
KNOWN = (
    ThinkingMarks("<think>", "</think>", ("<response>", "</response>"), found_by="<response></response>"),
    ThinkingMarks("<think>", "</think>", ("<answer>", "</answer>"), found_by="<answer>"),  # Hunyuan A13B
    ThinkingMarks(
        "Here is my thought process:",
        "Here is my response:",
        found_by="Here is my thought process:",
        also=("Here's my thought process:",),
    ),  # Granite 3.2
    ThinkingMarks("<think>", "</think>"),
    ThinkingMarks("[THINK]", "[/THINK]"),
    ThinkingMarks(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        "RESPONSE|>",
        cites=CITES,
    ),
    ThinkingMarks("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>", "<|END_TEXT|>"), cites=CITES),
    ThinkingMarks("<seed:think>", "</seed:think>"),
    ThinkingMarks("<mm:think>", "</mm:think>"),
    ThinkingMarks("<think:opensource>", "</think:opensource>", found_by="':opensource'"),
    ThinkingMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ThinkingMarks("<|channel>thought", "<channel|>", also=("<|channel>",)),
)


def thinking_marks(template: str) -> ThinkingMarks | None:
    """The marks that a model's template knows; None for a model that does not think."""
    return next((marks for marks in KNOWN if marks.is_in(template)), None)


def is_closed(prompt_end: str, marks: ThinkingMarks | None) -> bool:
    """Whether a prompt has ended the block of thinking, so that the reply begins after it."""
    return marks is not None and prompt_end.rstrip().endswith(marks.close)


def is_open(prompt_end: str, marks: ThinkingMarks | None) -> bool:
    """Whether a prompt has begun the block of thinking, so that the reply begins inside it."""
    return marks is not None and prompt_end.rstrip().endswith(marks.open)

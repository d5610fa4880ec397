"""How much a request lets the model think, and what that does to its prompt and its reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tahr.config import SamplingParams
from tahr.errors import ConfigError
from tahr.generation.tools import short
from tahr.generation.writers import ThinkingBudget
from tahr.text.replies.thinking import EFFORT, EFFORTS, SWITCHES
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tool_calls.harmony import TO_FINAL
from tahr.text.tool_calls.parser import ReplyFormat


@dataclass(frozen=True, slots=True)
class ThinkingOptions:
    """A request's options of thinking, checked."""

    thinking: bool | None = None  # None: as the template has it
    effort: str | None = None

    @property
    def thinks(self) -> bool | None:
        """Whether thinking is asked for; None if nothing is said."""
        if self.thinking is None and self.effort is not None:
            return self.effort != "none"
        return self.thinking


NO_THINKING = ThinkingOptions()


def thinking_options(thinking: bool | None = None, reasoning_effort: str | None = None) -> ThinkingOptions:
    """Thinking as a caller writes it; what is wrong is said in a sentence."""
    if thinking is None and reasoning_effort is None:
        return NO_THINKING
    if not isinstance(thinking, bool | None):
        raise ConfigError("thinking must be true or false.")
    if reasoning_effort is not None and reasoning_effort not in EFFORTS:
        raise ConfigError(f"reasoning_effort is {short(reasoning_effort)}, but it must be one of {', '.join(EFFORTS)}.")
    if thinking is not None and reasoning_effort is not None and thinking == (reasoning_effort == "none"):
        raise ConfigError("reasoning_effort and thinking contradict each other: give one of the two.")
    return ThinkingOptions(thinking, reasoning_effort)


# ---- the template -------------------------------------------------------------------------------------------


def wanted_thinking(options: ThinkingOptions, params: SamplingParams, template: ChatTemplate) -> ThinkingOptions:
    """Options for the template: no thinking where its budget is none, and the model can do without."""
    if params.thinking_budget == 0 and template.thinking is not None:
        return ThinkingOptions(thinking=False)
    return options


def template_variables(
    options: ThinkingOptions, variables: Mapping[str, Any], template: ChatTemplate
) -> dict[str, Any]:
    """The variables of the template, with its own switches for thinking set as the options say."""
    if options.thinks is None:
        return dict(variables)
    known = template.variables
    switches: dict[str, Any] = {name: options.thinks for name in SWITCHES if name in known}
    if options.thinks and options.effort and EFFORT in known:
        switches[EFFORT] = effort_word(options.effort, template)
    return {**switches, **variables}


def effort_word(effort: str, template: ChatTemplate) -> str:
    """The nearest effort the template knows."""
    if effort in template.source:
        return effort
    return "low" if effort == "minimal" else "high"


def can_think(template: ChatTemplate) -> bool:
    return template.thinking is not None or ReplyFormat(template.call_format).is_harmony


def check_thinking(options: ThinkingOptions, params: SamplingParams, template: ChatTemplate) -> None:
    """Refuse what the model cannot do. Asking a model that does not think to think changes nothing."""
    if options.thinks is None and params.thinking_budget is None:
        return
    thinks = can_think(template)
    if options.effort not in (None, "none") and not thinks and EFFORT not in template.variables:
        raise ConfigError("reasoning_effort is given, but this model does not think: leave it out.")
    if params.thinking_budget is not None and not thinks:
        raise ConfigError("thinking_budget is given, but this model does not think: leave it out.")
    if options.thinks is False and template.thinking is None and thinks:
        raise ConfigError("This model cannot answer without thinking: ask for reasoning_effort low instead.")


def thinking_budget(
    tokenizer: Tokenizer, params: SamplingParams, reply_format: ReplyFormat | None
) -> ThinkingBudget | None:
    """How much a reply may think, and how its thinking is ended then. What a grammar begins after comes last."""
    if params.thinking_budget is None or reply_format is None:
        return None
    if reply_format.is_harmony:
        close = TO_FINAL
    elif reply_format.thinking:
        close = f"\n{reply_format.thinking.close}" + ("" if params.grammar else "\n\n")
    else:
        return None
    return ThinkingBudget(params.thinking_budget, tuple(tokenizer.encode(close, add_special=False)))

"""A caller's request, whatever API it uses. Nothing is filled in or fitted here: `resolve` does that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tahr.config import SamplingParams
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows
from tahr.generation.thinking import NO_THINKING, ThinkingOptions
from tahr.generation.tools import NO_TOOLS, ToolOptions
from tahr.grammar import Grammar

Message = Mapping[str, Any]  # the form that chat templates read


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages that a chat template makes a prompt of."""

    messages: Sequence[Message]
    variables: Mapping[str, Any] = field(default_factory=dict)  # variables of the template
    add_generation_prompt: bool = True
    begun: str = ""  # the beginning of the reply, which is continued
    # Drops a part of the messages, for one that does not fit; None: nothing is left to drop.
    shorten: Callable[[], Sequence[Message] | None] | None = field(default=None, compare=False)


Prompt = ChatPrompt | str | Sequence[int]  # a conversation to reply to, a text to continue, or its tokens


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how it is to be continued."""

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)  # None and defaults are open
    tools: ToolOptions = NO_TOOLS
    thinking: ThinkingOptions = NO_THINKING
    cuts_length: bool = False  # a length beyond the context is cut to it, not refused
    salt: str = ""  # keeps what different clients put into the prefix cache apart
    rows: PromptRows = NO_ROWS  # rows that placeholders among a prompt's tokens stand for
    id: str = ""  # the caller's own name for it

    @property
    def raw(self) -> bool:
        """Whether the prompt skips the chat template."""
        return not isinstance(self.prompt, ChatPrompt)

    @property
    def sample_len(self) -> int | None:
        """The most tokens of the reply; None: the model's default."""
        return self.params.max_tokens

    def with_id(self, id: str) -> "GenerationRequest":
        """A copy under a name of the caller's."""
        return replace(self, id=id)

    def with_prompt(self, prompt: Prompt) -> "GenerationRequest":
        """A copy for another prompt."""
        return replace(self, prompt=prompt)

    def with_raw(self, text: str) -> "GenerationRequest":
        """A copy for a text that is continued as it is, without a chat template."""
        return replace(self, prompt=text)

    def with_sample_len(self, n_tokens: int) -> "GenerationRequest":
        """A copy with another limit on the reply."""
        return self.with_params(max_tokens=n_tokens)

    def with_grammar(self, grammar: Grammar | None) -> "GenerationRequest":
        """A copy whose reply must be in a language."""
        return self.with_params(grammar=grammar)

    def with_priority(self, priority: int) -> "GenerationRequest":
        """A copy at another place in the queue: higher goes first."""
        return self.with_params(priority=priority)

    def with_tools(self, tools: ToolOptions) -> "GenerationRequest":
        """A copy with functions that the model may call."""
        return replace(self, tools=tools)

    def with_thinking(self, thinking: ThinkingOptions) -> "GenerationRequest":
        """A copy with other options of thinking."""
        return replace(self, thinking=thinking)

    def with_params(self, **values: Any) -> "GenerationRequest":
        """A copy with other sampling parameters."""
        return replace(self, params=replace(self.params, **values))

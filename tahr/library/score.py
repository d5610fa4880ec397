"""How likely a model holds a text after another."""

from dataclasses import dataclass

from tahr.config import SamplingParams
from tahr.engine.sampling.sampling_state import SampledToken
from tahr.errors import ConfigError
from tahr.library.inputs.arguments import n_shared, short
from tahr.text.tokens.tokenizer import Tokenizer

# The prompt's probabilities are all that is wanted; a request still picks one token, which costs nothing more.
SCORING = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, cache_prompt=False)


@dataclass(frozen=True, slots=True)
class Score:
    """A continuation's tokens with the natural logarithm of each one's probability."""

    token_ids: list[int]
    logprobs: list[float]

    @property
    def logprob_sum(self) -> float:
        return sum(self.logprobs)


@dataclass(frozen=True, slots=True)
class ScoringPrompt:
    """A prompt and a continuation as one text, and where the continuation begins."""

    tokens: list[int]
    begin: int

    @staticmethod
    def join(tokenizer: Tokenizer, prompt: str, continuation: str) -> "ScoringPrompt":
        """Tokens of both together: at the seam they may differ from those of the prompt alone."""
        for text in (prompt, continuation):
            if not isinstance(text, str):
                raise ConfigError(f"A score is asked for with {short(text)}, but prompt and continuation are texts.")
        tokens = tokenizer.encode(prompt + continuation)
        begin = max(1, n_shared(tokenizer.encode(prompt), tokens))  # the first token follows nothing
        if begin >= len(tokens):
            raise ConfigError("There is nothing to score: give a continuation that adds at least one token.")
        return ScoringPrompt(tokens, begin)

    def score(self, prompt_logprobs: list[SampledToken]) -> Score:
        """The continuation's part of the probabilities of all tokens but the first."""
        logprobs = [sample.logprob for sample in prompt_logprobs[self.begin - 1 :] if sample.logprob is not None]
        assert len(logprobs) == len(self.tokens) - self.begin
        return Score(self.tokens[self.begin :], logprobs)

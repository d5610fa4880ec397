"""`Pipeline`: requests are handed in under names, computed together step by step, and their results kept."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tahr.config import SamplingParams, precedence
from tahr.engine.sequences.sequence import State
from tahr.errors import ConfigError, TahrError
from tahr.generation.outputs import Completion, Request
from tahr.generation.request import GenerationRequest
from tahr.generation.resolve import RequestFacts
from tahr.library.inputs.arguments import ModelName, short
from tahr.library.llm import LLM

DEFAULT_SEED = 299792458
DEFAULTS = SamplingParams(seed=DEFAULT_SEED, repeat_last_n=64)
MAX_RESULTS = 10_000
OnToken = Callable[[str, str], None]  # the id of a request, and new text of it
Result = Completion | TahrError


@dataclass(frozen=True, slots=True)
class PipelineBuilder:
    """Options of a pipeline; each method returns another builder."""

    model: ModelName | LLM | None = None
    params: SamplingParams = DEFAULTS  # defaults of requests
    on_token: OnToken | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # the fields of EngineConfig

    def with_temperature(self, temperature: float) -> "PipelineBuilder":
        """Another temperature; 0: always the most likely token."""
        return self._with_params(temperature=temperature)

    def with_top_p(self, top_p: float) -> "PipelineBuilder":
        """Another share of the probability to pick from."""
        return self._with_params(top_p=top_p)

    def with_seed(self, seed: int) -> "PipelineBuilder":
        """Another seed of the random numbers."""
        return self._with_params(seed=seed)

    def with_repeat_penalty(self, penalty: float) -> "PipelineBuilder":
        """Another penalty of tokens that stand in the last ones; 1: none."""
        return self._with_params(repetition_penalty=penalty)

    def with_repeat_last_n(self, n_tokens: int) -> "PipelineBuilder":
        """Another number of last tokens that the penalty looks at."""
        return self._with_params(repeat_last_n=n_tokens)

    def with_on_token(self, on_token: OnToken) -> "PipelineBuilder":
        """A listener that hears each piece of text."""
        return replace(self, on_token=on_token)

    def with_prefix_cache(self, enabled: bool) -> "PipelineBuilder":
        """Whether prompts reuse what others with the same beginning have computed."""
        return replace(self, settings={**self.settings, "prefix_cache": enabled})

    def with_max_batch_size(self, n_sequences: int) -> "PipelineBuilder":
        """Another number of sequences that advance in one step."""
        return replace(self, settings={**self.settings, "max_batch_size": n_sequences})

    def build(self) -> "Pipeline":
        """The pipeline; a model that is given by its name is loaded."""
        if isinstance(self.model, LLM):
            if self.settings:
                names = ", ".join(self.settings)
                raise ConfigError(f"{names} belong to the loading of a model, but it is loaded: give them to LLM.")
            return Pipeline(self.model, self.params, self.on_token)
        return Pipeline(LLM(self.model, **self.settings), self.params, self.on_token)

    def _with_params(self, **values: Any) -> "PipelineBuilder":
        return replace(self, params=replace(self.params, **values))


class Pipeline:
    """Runs requests of one model. One thread uses it."""

    def __init__(self, llm: LLM, params: SamplingParams, on_token: OnToken | None = None):
        self.llm = llm
        self._params = params
        self._on_token = on_token
        self._running: dict[str, Request] = {}
        self._results: OrderedDict[str, Result] = OrderedDict()  # the oldest first
        self._numbers = count(1)

    @property
    def facts(self) -> RequestFacts:
        """The model's, with the pipeline's defaults before its own."""
        return RequestFacts.of(self.llm, precedence(self._params, self.llm.sampling_defaults))

    def run(self, request: GenerationRequest) -> Completion:
        """The result of one request, computed now; the others advance with it."""
        id = self.submit_request(request)
        while id in self._running:
            self.step()
        return self.get_result(id)

    def submit_request(self, request: GenerationRequest) -> str:
        """Queue a request; returns its id, or one that is made for it."""
        id = request.id or f"request-{next(self._numbers)}"
        if id in self._running:
            raise ConfigError(f"A request with the id {short(id)} is running: choose another.")
        self._running[id] = self.llm.submit_resolved(self.llm.resolve(request, self.facts))
        return id

    def step(self) -> list[str]:
        """Let every request advance by one step; returns the ids of those that have finished."""
        if not self._running:
            return []
        self.llm.step()
        finished = [id for id, request in self._running.items() if self._has_finished(id, request)]
        for id in finished:
            self.llm.remove(self._running.pop(id))
        return finished

    def run_until_complete(self) -> None:
        """Step until nothing is left to compute."""
        while self._running:
            self.step()

    def get_result(self, id: str) -> Completion:
        """The result of a finished request; the error of one that failed is raised."""
        if id not in self._results:
            raise ConfigError(f"There is no result of {short(id)}: it is not finished, was cleared, or never existed.")
        result = self._results[id]
        if isinstance(result, TahrError):
            raise result
        return result

    def try_get_result(self, id: str) -> Completion | None:
        """The result of a request, or None while there is none."""
        return self.get_result(id) if id in self._results else None

    def clear_results(self) -> None:
        """Forget all results."""
        self._results.clear()

    @property
    def n_active(self) -> int:
        """Requests that are being computed."""
        return len(self._running) - self.n_queued

    @property
    def n_queued(self) -> int:
        """Requests that wait for their first step."""
        return sum(request.sequences[0].state is State.WAITING for request in self._running.values())

    def close(self) -> None:
        """Stop what still runs."""
        for request in self._running.values():
            self.llm.remove(request)
        self._running.clear()

    def _has_finished(self, id: str, request: Request) -> bool:
        """Hand out what is new, and keep the result if that was all."""
        try:
            while chunk := request.next_chunk():
                if self._on_token and chunk.text:
                    self._on_token(id, chunk.text)
            if request.finished:
                self._keep(id, request.completion())
        except TahrError as error:
            self._keep(id, error)
            return True
        return request.finished

    def _keep(self, id: str, result: Result) -> None:
        self._results.pop(id, None)
        self._results[id] = result
        if len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)

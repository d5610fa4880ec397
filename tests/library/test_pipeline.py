"""Requests that are handed in under names, and their results."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tahr import LLM, SamplingParams
from tahr.config import EngineConfig
from tahr.errors import ConfigError, TemplateError
from tahr.generation.request import ChatPrompt, GenerationRequest
from tahr.library import pipeline as pipelines
from tahr.library.pipeline import DEFAULT_SEED, Pipeline, PipelineBuilder

PROMPTS = ("Once upon a time", "The cat sat", "In the woods")
SHORT = SamplingParams(max_tokens=8)


@pytest.fixture(scope="module")
def llm(stories: Path) -> Iterator[LLM]:
    with LLM(str(stories), config=EngineConfig(n_threads=1)) as made:
        yield made


def requests() -> list[GenerationRequest]:
    return [GenerationRequest(prompt, SHORT, id=f"r{i}") for i, prompt in enumerate(PROMPTS)]


def test_results_are_those_of_each_request_alone(llm: LLM) -> None:
    pipeline = PipelineBuilder(llm).with_temperature(0.8).build()
    assert [pipeline.submit_request(each) for each in requests()] == ["r0", "r1", "r2"]
    assert (pipeline.n_active, pipeline.n_queued, pipeline.try_get_result("r0")) == (0, 3, None)
    pipeline.step()
    assert (pipeline.n_active, pipeline.n_queued) == (3, 0)
    pipeline.run_until_complete()
    together = [pipeline.get_result(f"r{i}").text for i in range(3)]
    params = SamplingParams(temperature=0.8, seed=DEFAULT_SEED, repeat_last_n=64, max_tokens=8)
    assert together == [llm.generate(prompt, params).text for prompt in PROMPTS]
    pipeline.clear_results()
    assert pipeline.try_get_result("r0") is None and not llm.driver.requests
    with pytest.raises(ConfigError, match="no result of 'r0'"):
        pipeline.get_result("r0")


def test_a_request_s_own_parameters_go_before_the_pipeline_s(llm: LLM) -> None:
    pipeline = PipelineBuilder(llm).with_temperature(1.5).with_top_p(0.9).with_seed(7).with_repeat_penalty(1.1).build()
    made = llm.resolve(GenerationRequest("x", SamplingParams.of({"temperature": 0.0})), pipeline.facts).params
    assert (made.temperature, made.top_p, made.seed) == (0.0, 0.9, 7)
    assert (made.repetition_penalty, made.repeat_last_n) == (1.1, 64)


def test_listeners_hear_what_results_say(llm: LLM) -> None:
    heard: dict[str, str] = {}

    def on_token(id: str, text: str) -> None:
        heard[id] = heard.get(id, "") + text

    pipeline = PipelineBuilder(llm).with_on_token(on_token).build()
    done = pipeline.run(GenerationRequest(PROMPTS[0], SHORT))
    assert heard == {"request-1": done.text} and len(done.token_ids) == 8


def test_the_oldest_results_go_first(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "MAX_RESULTS", 2)
    pipeline = Pipeline(llm, SamplingParams(temperature=0.0))
    for each in requests():
        pipeline.run(each)
    assert pipeline.try_get_result("r0") is None
    assert pipeline.get_result("r1").text and pipeline.get_result("r2").text


def test_what_cannot_be_is_refused(llm: LLM) -> None:
    pipeline = PipelineBuilder(llm).build()
    pipeline.submit_request(requests()[0])
    with pytest.raises(ConfigError, match="'r0' is running"):
        pipeline.submit_request(requests()[0])
    with pytest.raises(TemplateError, match="has no chat template"):
        pipeline.submit_request(GenerationRequest(ChatPrompt([{"role": "user", "content": "x"}])))
    with pytest.raises(ConfigError, match="it is loaded"):
        PipelineBuilder(llm).with_prefix_cache(False).with_max_batch_size(2).build()
    pipeline.close()
    assert not llm.driver.requests

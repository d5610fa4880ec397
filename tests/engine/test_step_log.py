"""What the scheduler decided, step by step, in files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tahr import LLM, EngineConfig, SamplingParams
from tahr.engine.step_log import StepLog, Watch
from tahr.engine.step_traces import ChromeTrace, DecisionLog
from tahr.errors import ConfigError


def generate(stories: Path, logs: Sequence[StepLog], **config: Any) -> list[str]:
    with LLM(str(stories), config=EngineConfig(n_threads=1, **config)) as llm:
        llm.engine.watch = Watch("m", logs)
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        done = llm.generate(["Once upon a time there was", "The dog and the cat"], params, progress=False)
    for log in logs:
        log.close()
    return [completion.text for completion in done]


def test_every_decision_is_in_the_file(stories: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    generate(stories, [DecisionLog(path)], prefill_chunk_size=4)
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    admitted = [seq for step in steps for seq in step["admitted"]]
    assert len(admitted) == 2 and all(step["model"] == "m" for step in steps)
    first, second = admitted
    read = {seq: [n for step in steps for id, n in step["chunks"] if id == seq] for seq in admitted}
    assert max(read[first]) == 4 and len(read[first]) > 1  # chunk sizes
    decoded = sum(second in step["decoding"] for step in steps)
    assert decoded >= 39 and steps[-1]["ended"] == {str(second): "length"}
    assert [step["step"] for step in steps] == sorted(step["step"] for step in steps)
    assert all(step["n_tokens"] > 0 and step["pages_used"] <= step["pages_total"] for step in steps)
    assert not any(step["n_preempted"] for step in steps)


def test_a_sequence_that_loses_its_pages_is_told_of(stories: Path, tmp_path: Path) -> None:
    path, plain = tmp_path / "steps.jsonl", generate(stories, [], page_size=8)
    small = {"page_size": 8, "kv_bytes": 8 * 10 * pages_bytes(stories), "prefix_cache": False, "context_size": 64}
    assert generate(stories, [DecisionLog(path)], **small) == plain
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    lost = [seq for step in steps for seq in step["preempted"]]
    assert lost and sum(step["n_preempted"] for step in steps) >= len(lost)
    again = [seq for step in steps for seq in step["admitted"]]
    assert again.count(lost[0]) > 1


def pages_bytes(stories: Path) -> int:
    """Of one token's keys and values."""
    with LLM(str(stories), config=EngineConfig(n_threads=1)) as llm:
        model = llm.model_config
        return 2 * 2 * model.n_layers * model.n_kv_heads * model.head_dim


def test_the_picture_parses_and_parts_are_in_it(stories: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    generate(stories, [ChromeTrace(path)])
    events = [event for event in json.loads(path.read_text()) if event]
    names = [event["name"] for event in events]
    assert {name: names.count(name) for name in ("queue", "prefill", "decode")} == dict.fromkeys(
        ("queue", "prefill", "decode"), 2
    )
    assert names.count("step") >= 40 and all(event["dur"] >= 0 and event["ph"] == "X" for event in events)


def test_files_are_bounded(stories: Path, tmp_path: Path) -> None:
    log, picture = tmp_path / "a", tmp_path / "b"
    generate(stories, [DecisionLog(log, max_bytes=2000), ChromeTrace(picture, max_bytes=2000)])
    assert log.stat().st_size < 2100 and log.read_text().splitlines()[-1] == '{"full": true}'
    assert picture.stat().st_size < 2100 and json.loads(picture.read_text())


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        DecisionLog(tmp_path / "no" / "such")

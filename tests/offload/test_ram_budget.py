"""`ram_budget` from end to end: texts, sentences, and files that change under a running model."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tahr import LLM, SamplingParams
from tahr.backends import open_backend
from tahr.cli.main import main
from tahr.config import EngineConfig
from tahr.errors import ConfigError, LoadError, OffloadEof, WeightsChanged
from tahr.loading.builder import assemble
from tahr.models.loader.load import load
from tahr.offload.homes import Panels, TensorSize
from tahr.offload.plan import plan_paging
from tahr.offload.policy import OffloadPolicy
from test_paging import Sized, all_paged, as_gguf, least_budget, load_paged, logits, sized

KIB = 1 << 10
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def layered(n_layers: int, n_panels: int = 16) -> Sized:
    panels = Panels(1, n_panels, 4 * KIB, is_stack=False)
    size = TensorSize("Q8_0", n_panels * 4 * KIB, panels=panels)
    names = [f"model.layers.{i}.mlp.{part}.weight" for i in range(n_layers) for part in ("up_proj", "down_proj")]
    return Sized(dict.fromkeys(names, size), n_layers)


def test_what_fits_is_not_paged() -> None:
    model = layered(40)
    total = sum(size.n_bytes for size in model.sizes.values())
    assert plan_paging(model.sizes, total, OffloadPolicy.none(), 40).homes == {}
    assert plan_paging(model.sizes, total - 1, OffloadPolicy.none(), 40).homes != {}


def test_no_plan_is_beyond_its_budget() -> None:
    model = layered(40, n_panels=64)
    total = sum(size.n_bytes for size in model.sizes.values())
    for budget in range(least_budget(model), total + 1, total // 50):
        plan = plan_paging(model.sizes, budget, OffloadPolicy.none(), model.n_layers)
        resident = sum(size.n_bytes for name, size in model.sizes.items() if name not in plan.homes)
        assert resident + sum(arena.n_bytes for arena in plan.arenas) <= budget
        assert plan.step_bytes <= total


def test_more_memory_means_fewer_bytes_a_step() -> None:
    model = layered(40, n_panels=64)
    least = least_budget(model)
    read = [plan_paging(model.sizes, least + i * KIB * KIB, OffloadPolicy.none(), 40).step_bytes for i in range(8)]
    assert read == sorted(read, reverse=True) and len(set(read)) > 4


def test_pins_stay() -> None:
    model = layered(40, n_panels=64)
    policy = OffloadPolicy.pinned_hot_set(1, pin_last_n_layers=3)
    plan = plan_paging(model.sizes, least_budget(model) + 4 * KIB * KIB, policy, 40)
    last = {name for name in model.sizes if int(name.split(".")[2]) >= 37}
    assert plan.homes and not last & plan.homes.keys()


def test_a_budget_below_the_floor_names_the_least() -> None:
    model = layered(40, n_panels=64)
    least = least_budget(model)
    with pytest.raises(LoadError, match=f"at least {least / 1e6:.1f} MB"):
        plan_paging(model.sizes, least - 1, OffloadPolicy.none(), 40)


def test_a_file_that_ends_early_fails_the_step_and_not_the_next(tmp_path: Path) -> None:
    source = as_gguf(tmp_path, "llama")
    backend = open_backend("cpu", 2)
    want = logits(load(source, backend), backend)
    loaded = load_paged(source, backend, all_paged(sized(source, backend)))
    path = tmp_path / "model.gguf"
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    with pytest.raises(OffloadEof, match=r"model\.gguf.* ends before .*ask again"):
        logits(loaded, backend)
    with pytest.raises(WeightsChanged):
        loaded.decoder.files.check()
    path.write_bytes(whole)
    np.testing.assert_array_equal(logits(loaded, backend), want)


def within(budget: str | None) -> EngineConfig:
    return EngineConfig(backend="cpu", n_threads=2, context_size=64, kv_bytes=1 << 18, ram_budget=budget)


def told(stories: Path, budget: str | None) -> list[str]:
    with LLM(str(stories), config=within(budget)) as llm:
        return [llm.generate(prompt, GREEDY).text for prompt in ("Once upon a time", "The sea")]


def test_texts_within_a_budget_are_those_without(stories: Path) -> None:
    texts = told(stories, "1100k")
    assert texts == told(stories, None) and all(texts)
    assert any("MB paged" in line for line in assemble(str(stories), within("1100k")).log)
    with pytest.raises(LoadError, match=r"ram_budget of 0\.3 MB is too small .* at least \d+\.\d MB"):
        told(stories, "300k")


@pytest.mark.parametrize("context", [None, 64])
@pytest.mark.parametrize("budget", ["1", "3", "1k", "60k", "400k", "700k"])
def test_the_least_that_a_sentence_says_is_enough(stories: Path, budget: str, context: int | None) -> None:
    """Nobody says how much keys and values take, so they take more of a larger budget."""
    config = EngineConfig(backend="cpu", n_threads=1, ram_budget=budget, context_size=context)
    with pytest.raises(LoadError, match=r"ram_budget .* is too small") as refused:
        assemble(str(stories), config)
    said = re.search(r"needs at least (\d+\.\d) MB", str(refused.value))
    assert said
    least = round(float(said[1]) * 1e6)
    assert assemble(str(stories), replace(config, ram_budget=str(least))).engine
    with pytest.raises(LoadError, match=f"needs at least {said[1]} MB"):
        assemble(str(stories), replace(config, ram_budget=str(least - 200_000)))


def test_a_budget_that_no_size_would_mend(stories: Path) -> None:
    """The sentence is that about the other setting."""
    config = EngineConfig(backend="cpu", n_threads=1, ram_budget="400k", kv_dtype="q7")
    with pytest.raises(ConfigError, match="KV type 'q7'"):
        assemble(str(stories), config)


def test_doctor_prints_the_plan(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(stories), "--ram-budget", "1300k"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"feed-forward layers .* host, paged", said) and re.search(r"slots of layers +\d+ slots", said)
    assert re.search(r"read a step +one token .* from disk", said)
    assert main(["doctor", str(stories), "--ram-budget", "500k"]) == 1
    assert "it needs at least" in capsys.readouterr().err


IN_GROUP = Path(__file__).parents[2] / "scripts" / "in_cgroup.sh"


def in_group(n_bytes: int, command: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run([IN_GROUP, str(n_bytes), sys.executable, "-c", command], capture_output=True, text=True)
    if run.returncode == 77:
        pytest.skip("no memory control group can be made here")
    return run


def test_commands_in_a_memory_group() -> None:
    assert re.search(r"at most \d+ bytes", in_group(256 << 20, "print(1)").stderr)
    assert in_group(64 << 20, "bytearray(b'1') * (200 << 20)").returncode != 0

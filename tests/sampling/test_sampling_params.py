"""What may be asked of sampling, and what is refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from tahr.config import (
    GREEDY,
    NEUTRAL_SAMPLING,
    PRESETS,
    EngineConfig,
    SamplingParams,
    precedence,
    preset,
    sampling_names,
)
from tahr.errors import ConfigError
from tahr.library.inference.config import InferenceConfig

BAD: dict[str, list[Any]] = {
    "temperature": [-1, float("nan"), float("inf"), 101, "hot", True],
    "top_k": [-2, 2.5, True, "many"],
    "top_p": [-0.1, 1.1],
    "min_p": [-0.1, 2],
    "typical_p": [0, 1.1],
    "top_n_sigma": [-1, float("nan")],
    "top_a": [-0.1, 1.1],
    "eta_cutoff": [-0.1, 1.1],
    "xtc_probability": [-0.1, 1.1],
    "xtc_threshold": [0, 0.6, None],
    "dry_multiplier": [-1],
    "dry_base": [0.5, None],
    "dry_allowed_length": [0, 1.5],
    "dry_penalty_last_n": [-2],
    "dry_sequence_breakers": ["\n", [""], [[]], [3], [[-1]], 7, None],
    "mirostat": [1, 3, True, "2"],
    "mirostat_tau": [0, -1],
    "mirostat_eta": [0, 2],
    "repetition_penalty": [0, 5e-324, -1, 101],
    "repeat_last_n": [-2, 0.5],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "logit_bias": [{1: 101}, {-1: 0}, {"1": 0}, {1: "a"}, {1: float("nan")}, 5, [3], None],
    "banned_tokens": [[-1], [1.5], "12", 3, None, [[1]]],
    "allowed_tokens": [[-1], "12"],
    "stop_token_ids": [[True], 3],
    "seed": [-(2**63) - 1, 2**64, 10**400, 0.5],
    "n": [0, 1025, None, 1.5],
    "max_tokens": [0, 1.5],
    "min_tokens": [-1, None],
    "stop": ["", ["a", ""], [3], 3, None, ["a"] * 1025],
    "ignore_eos": [1, None, "yes"],
    "n_indent": [-1, 1025, 0.5, None],
    "t_max_predict_ms": [-2, 0.5, None, "long"],
    "logprobs": [-1, 1025, 1.5],
    "prompt_logprobs": [-1, True],
    "priority": ["high", 0.5, None],
    "cache_salt": [None, 3],
    "cache_prompt": [1, None],
    "speculative": [0, None, "no"],
    "thinking_budget": [-1, 1.5, True, "much"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_parameters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})


def test_every_parameter_is_checked() -> None:
    assert BAD.keys() == set(sampling_names())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"allowed_tokens": [1, 2], "banned_tokens": [2, 1, 0]}, "allowed_tokens and banned_tokens"),
    ],
)
def test_what_cannot_be_had_together(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SamplingParams(**options)


def test_lists_and_mappings_become_hashable() -> None:
    made = SamplingParams(stop="a", logit_bias={5: 1, 2: -1}, banned_tokens=[3, 3], dry_sequence_breakers=["x", [1, 2]])
    assert made.stop == ("a",)
    assert made.logit_bias == ((2, -1), (5, 1))
    assert made.banned_tokens == (3,)
    assert made.dry_sequence_breakers == ("x", (1, 2))
    assert hash(made) == hash(SamplingParams(**{name: getattr(made, name) for name in BAD}))


def test_what_was_not_asked_for_is_filled_in() -> None:
    merged = SamplingParams(top_k=3, top_a=0.2).over(SamplingParams(top_k=9, top_p=0.5)).over(NEUTRAL_SAMPLING)
    assert (merged.top_k, merged.top_a, merged.top_p, merged.temperature) == (3, 0.2, 0.5, 1.0)


VALUES: dict[str, Any] = {
    "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "top_n_sigma": 1.5, "top_a": 0.2,
    "eta_cutoff": 0.01, "xtc_probability": 0.5, "xtc_threshold": 0.2, "dry_multiplier": 0.8, "dry_base": 2.0,
    "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ("x",), "mirostat": 2,
    "mirostat_tau": 4.0, "mirostat_eta": 0.2, "repetition_penalty": 1.2, "repeat_last_n": 12, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "logit_bias": ((5, -100),), "banned_tokens": (3,), "allowed_tokens": (1, 2), "seed": 11,
    "n": 2, "max_tokens": 9, "min_tokens": 2, "stop": ("zzz",), "stop_token_ids": (4,), "ignore_eos": True,
    "n_indent": 4, "t_max_predict_ms": 100, "logprobs": 2, "prompt_logprobs": 1, "priority": -3, "cache_salt": "mine",
    "cache_prompt": False,
    "speculative": False, "thinking_budget": 9,
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_each_setting_alone_fills_in_for_requests_that_do_not_ask(name: str) -> None:
    server = SamplingParams(**{name: VALUES[name]})
    model = SamplingParams(temperature=0.7, top_k=9)
    merged = precedence(SamplingParams(), server, model)
    assert getattr(merged, name) == VALUES[name]
    expected = precedence(model)
    assert [other for other in VALUES if getattr(merged, other) != getattr(expected, other)] == [name]


@pytest.mark.parametrize("name", [name for name in VALUES if getattr(SamplingParams(), name) is not None])
def test_a_default_value_that_is_asked_for_is_kept(name: str) -> None:
    default = getattr(SamplingParams(), name)
    requested = SamplingParams.of({name: default})
    assert requested != SamplingParams()  # a cache must not mix them up
    assert getattr(precedence(requested, SamplingParams(**{name: VALUES[name]})), name) == default
    assert getattr(
        replace(precedence(requested), temperature=0.1).over(SamplingParams(**{name: VALUES[name]})), name
    ) == (default)


def test_every_setting_has_a_value_to_try() -> None:
    assert VALUES.keys() == set(sampling_names())


def test_a_length_that_is_only_a_default_gives_way() -> None:
    assert precedence(SamplingParams(max_tokens=3), SamplingParams(min_tokens=5)).min_tokens == 3
    assert precedence(SamplingParams(min_tokens=2000)).max_tokens == 2000


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [("top_k", -1, 0), ("top_p", 0, 1e-6), ("top_p", 0.0, 1e-6), ("seed", -1, None), ("max_tokens", -1, 2**31 - 1)],
)
def test_what_other_programs_write_is_understood(name: str, value: Any, meaning: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == meaning


def test_an_engine_understands_it_too() -> None:
    assert EngineConfig(context_size=0).context_size is None
    names = {
        "fp16": "f16",
        "FP16": "f16",
        "int8": "q8_0",
        "fp8": "fp8",
        "bfloat16": "bf16",
        "q8_0": "q8_0",
        None: None,
    }
    for name, meaning in names.items():
        assert EngineConfig(kv_dtype=name).kv_dtype == meaning
        assert InferenceConfig(kv_dtype=name).kv_dtype == meaning


def test_presets() -> None:
    assert preset("greedy") == GREEDY
    assert set(PRESETS) == {"greedy", "precise", "creative"}
    with pytest.raises(ConfigError, match=r"'wild'.*greedy, precise, creative"):
        preset("wild")

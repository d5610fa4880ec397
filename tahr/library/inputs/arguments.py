"""Arguments of `LLM` and `AsyncLLM`: each accepted form, and a sentence for every other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from operator import index
from os import PathLike, fspath
from typing import Any

from tahr.config import EngineConfig, SamplingParams
from tahr.errors import ConfigError

ModelName = str | PathLike[str]  # a name from a source of models, or a path
Message = Mapping[str, Any]
KINDS: dict[str, Any] = {
    **dict.fromkeys(("deterministic", "prefix_cache", "spec_ngram", "spec_off"), bool),
    **dict.fromkeys(("kv_dtype", "quantize", "tool_call_parser", "spec_draft"), str | None),
    **dict.fromkeys(("tokenizer", "chat_template", "mmproj"), str | PathLike | None),
    "loras": Iterable,
}
Prompt = str | list[int]  # a text, or its tokens
Params = SamplingParams | Sequence[SamplingParams] | None  # params for all prompts, or one for each


def model_name(model: Any) -> str | None:
    """The name of a model; None: the default one."""
    name = fspath(model) if isinstance(model, PathLike) else model
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"The model is {short(model)}, but it must be a name or a path, such as 'smollm2:135m'.")
    return name


def engine_config(config: EngineConfig | None, settings: Mapping[str, Any]) -> EngineConfig:
    """The configuration that was given whole, or as keyword arguments with the names of its fields."""
    if config is not None and settings:
        raise ConfigError(f"config is given, and {', '.join(settings)} beside it: put all of it into EngineConfig.")
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"config is {short(config)}, but it must be an EngineConfig.")
    known = [f.name for f in fields(EngineConfig)]
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}."
            raise ConfigError(f"An LLM has no setting {name!r}: {hint}")
    for name in settings:
        if name in KINDS and not isinstance(settings[name], KINDS[name]):
            what = {bool: "True or False", Iterable: "a list of texts"}.get(KINDS[name], "a text")
            raise ConfigError(f"{name} is {short(settings[name])}, but it must be {what}.")
    return config or EngineConfig(**settings)


def is_prompt(value: Any) -> bool:
    """A text or token ids; whether the model has those ids is for the engine to say."""
    if isinstance(value, str):
        return True
    # One pass without Python code per token: a prompt may have a hundred thousand.
    return isinstance(value, list | tuple) and set(map(type, value)) == {int}


def prompts_of(prompts: Any) -> tuple[list[Prompt], bool]:
    """The prompts, and whether it was one alone: a text or a list of token ids is one, a list of those is several."""
    if is_prompt(prompts):
        return [prompts], True
    if isinstance(prompts, Sequence) and not isinstance(prompts, bytes) and all(map(is_prompt, prompts)):
        return list(prompts), False
    raise ConfigError(
        f"The prompt is {short(prompts)}, but it must be a text, a list of token ids, or a list of those."
    )


def one_prompt(prompt: Any) -> Prompt:
    """The prompt of a call that takes one."""
    if not is_prompt(prompt):
        raise ConfigError(f"The prompt is {short(prompt)}, but it must be one text, or one list of token ids.")
    return prompt if isinstance(prompt, str) else list(prompt)


def texts_of(texts: Any) -> list[Any]:
    """One or several texts, some of which may be tokens already."""
    several = [texts] if isinstance(texts, str) else texts
    if isinstance(several, Iterable) and not isinstance(several, bytes | Mapping):
        several = list(several)
        if all(isinstance(each, Iterable) and not isinstance(each, bytes | Mapping) for each in several):
            return several
    raise ConfigError(f"The text is {short(texts)}, but it must be a text, or a list of texts or lists of token ids.")


def token_ids(tokens: Any) -> list[int]:
    """Tokens as plain numbers, also from an array."""
    try:
        return list(map(index, tokens))
    except TypeError:
        raise ConfigError(f"The tokens are {short(tokens)}, but they must be a list of token ids.") from None


def conversations_of(messages: Any) -> tuple[list[list[Message]], bool]:
    """The conversations, and whether it was one alone; a text is a conversation of one message by the user."""
    if isinstance(messages, str) or is_conversation(messages):
        return [messages_of(messages)], True
    if isinstance(messages, Sequence) and not isinstance(messages, bytes):
        return [messages_of(each) for each in messages], False
    return [messages_of(messages)], True


def messages_of(messages: Any) -> list[Message]:
    """One conversation."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if is_conversation(messages):
        return list(messages)
    raise ConfigError(
        f"The conversation is {short(messages)}, but it must be a text or a list of messages, "
        'each as {"role": "user", "content": "..."}.'
    )


def is_conversation(messages: Any) -> bool:
    return isinstance(messages, Sequence) and bool(messages) and all(isinstance(each, Mapping) for each in messages)


def sampling_params(params: Any) -> SamplingParams:
    """The sampling settings of one request."""
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return params
    hint = ": write SamplingParams(max_tokens=3)" if isinstance(params, Mapping) else ""
    raise ConfigError(f"params is {short(params)}, but it must be SamplingParams{hint}.")


def one_each(params: Params, n: int) -> list[SamplingParams]:
    """Sampling settings for each of n prompts."""
    if not isinstance(params, list | tuple):
        return [sampling_params(params)] * n
    if len(params) != n:
        raise ConfigError(
            f"There are {n} prompts but {len(params)} sampling parameters: give one for each, or one for all."
        )
    return [sampling_params(each) for each in params]


def short(value: Any) -> str:
    """A value as an error names it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def n_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common from the first on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

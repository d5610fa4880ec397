"""The fields of llama.cpp's requests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tahr.config import SamplingParams
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.llamacpp.bodies import ONLY, NativeBody, NativePrompt
from tahr.server.models.engine_port import ServedEngine
from tahr.server.replies.grammars import FieldGrammar, made
from tahr.server.replies.params import within
from tahr.server.replies.prompts import MAX_PROMPTS, check_text_size, encode_one, encode_text

if TYPE_CHECKING:
    from tahr.text.tokens.tokenizer import Tokenizer

# Fields that are sampling settings under the same name.
SAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "repeat_last_n", "presence_penalty", "frequency_penalty"),
    *("seed", "stop", "ignore_eos", "cache_prompt", "n_indent", "t_max_predict_ms", "speculative"),
)
SENT_NAMES = {"max_tokens": "n_predict", "logprobs": "n_probs", "repetition_penalty": "repeat_penalty"}
# Values that turn each sampler off; `samplers` lists those that stay on. Their order is fixed here.
OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": None},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
OTHER_NAMES = {"typical_p": "typ_p", "tfs_z": "", "infill": "", "adaptive_p": ""}
NEVER = -100.0
MAX_BIASES = 1024
MAX_BIAS = 1e6
MAX_FIELDS = 64
# The settings that a reply repeats.
SHOWN = (
    *("seed", "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability"),
    *("xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat"),
    *("mirostat_tau", "mirostat_eta", "repeat_last_n", "presence_penalty", "frequency_penalty", "ignore_eos"),
)


def check_native(body: NativeBody) -> None:
    for name, only in ONLY.items():
        if getattr(body, name) not in (None, only):
            raise bad_field(name, f"{name} can only be {str(only).lower()} here: leave it out.", "unsupported")
    if len(body.response_fields or ()) > MAX_FIELDS:
        raise bad_field("response_fields", f"response_fields has more than {MAX_FIELDS} entries.")


def sampling_of(body: NativeBody, tokenizer: "Tokenizer") -> dict[str, Any]:
    """The sampling settings by our names."""
    given = {name: getattr(body, name) for name in SAME} | {"repetition_penalty": body.repeat_penalty}
    given |= without_samplers(body.samplers)
    n_tokens = body.n_predict if body.n_predict is not None else body.max_tokens
    given["max_tokens"] = 1 if n_tokens == 0 else n_tokens
    given["logprobs"] = within("logprobs", body.n_probs) if body.n_probs else None
    given["logit_bias"] = bias_of(body.logit_bias, tokenizer)
    return given


def is_prefill_only(body: NativeBody) -> bool:
    """Whether nothing is to be generated."""
    return (body.n_predict if body.n_predict is not None else body.max_tokens) == 0


def grammar_of(body: NativeBody) -> FieldGrammar | None:
    if body.grammar is not None and body.json_schema is not None:
        message = "grammar and json_schema both say what the text must be: leave one of them out."
        raise bad_field("json_schema", message)
    if body.grammar is not None:
        return made("grammar", "gbnf", body.grammar)
    return None if body.json_schema is None else made("json_schema", "json_schema", body.json_schema)


def without_samplers(samplers: Sequence[str] | None) -> dict[str, Any]:
    """Settings that switch off the samplers that are not listed."""
    if samplers is None:
        return {}
    kept = {OTHER_NAMES.get(name, name) for name in samplers}
    unknown = sorted(name for name in kept if name and name not in OFF)
    if unknown:
        raise bad_field("samplers", f"samplers names {unknown[0][:40]!r}, which is none of {', '.join(OFF)}.")
    return {field: value for name, off in OFF.items() if name not in kept for field, value in off.items()}


def bias_of(bias: Any, tokenizer: "Tokenizer") -> dict[str, float] | None:
    """Bias by token ids; a text stands for all of its tokens, and false for never."""
    if not bias:
        return None
    pairs = list(bias.items()) if isinstance(bias, dict) else bias
    if len(pairs) > MAX_BIASES:
        raise bad_field("logit_bias", f"logit_bias has {len(pairs)} entries, but this server takes {MAX_BIASES}.")
    by_id: dict[str, float] = {}
    for pair in pairs:
        key, value = pair if len(pair) == 2 else (None, None)
        if isinstance(value, bool):
            value = None if value else NEVER
        if not isinstance(key, int | str) or not isinstance(value, int | float) or abs(value) > MAX_BIAS:
            raise bad_field("logit_bias", "logit_bias must hold pairs of a token or a text and a number or false.")
        for token in tokens_of_key(key, tokenizer):
            by_id[str(token)] = float(value)
    return by_id


def tokens_of_key(key: int | str, tokenizer: "Tokenizer") -> list[int]:
    if isinstance(key, int):
        return [key]
    if len(key) > MAX_BIASES:
        raise bad_field("logit_bias", f"logit_bias names a text of more than {MAX_BIASES} characters.")
    is_id = key.isascii() and key.isdigit() and len(key) < 11
    return [int(key)] if is_id else tokenizer.encode(key, add_special=False, parse_special=False)


# ---- prompts ------------------------------------------------------------------------------------------------


def prompts_of(engine: ServedEngine, prompt: NativePrompt) -> list[list[int]]:
    """The tokens of each prompt."""
    several = isinstance(prompt, list) and bool(prompt) and not any(isinstance(each, int) for each in prompt)
    entries: list[Any] = prompt if several and isinstance(prompt, list) else [prompt]
    if len(entries) > MAX_PROMPTS:
        raise bad_field("prompt", f"prompt has {len(entries)} entries, but this server takes {MAX_PROMPTS} at most.")
    prompts = [one_prompt(engine, each) for each in entries]
    if not all(prompts):
        raise bad_field("prompt", "prompt is empty or holds an empty text: give at least one token.")
    return prompts


def one_prompt(engine: ServedEngine, entry: Any) -> list[int]:
    if isinstance(entry, dict):
        entry = text_of(entry)
    if isinstance(entry, str):
        return encode_one(engine, entry, "prompt")
    if isinstance(entry, list) and len(entry) > engine.context_size:
        message = f"prompt has {len(entry)} entries, but the context of this model holds {engine.context_size} tokens."
        raise bad_field("prompt", message, "context_length_exceeded")
    if not isinstance(entry, list) or not all(type(each) in (int, str) for each in entry):
        raise wrong_prompt()
    check_text_size(engine, "".join(each for each in entry if isinstance(each, str)), "prompt")
    parts = [each if isinstance(each, int) else part(engine, each, i == 0) for i, each in enumerate(entry)]
    tokens = [token for each in parts for token in ([each] if isinstance(each, int) else each)]
    return encode_one(engine, tokens, "prompt")


def part(engine: ServedEngine, text: str, is_first: bool) -> list[int]:
    return encode_text(engine, text, "prompt", add_special=is_first)


def text_of(entry: dict[str, Any]) -> str:
    text = entry.get("prompt_string")
    images = entry.get("multimodal_data")
    if images:
        raise bad_field(
            "prompt", "prompt.multimodal_data is not supported: send images in a chat, or leave it out.", "unsupported"
        )
    if not isinstance(text, str) or entry.keys() - {"prompt_string", "multimodal_data"}:
        raise wrong_prompt()
    return text


def wrong_prompt() -> HttpError:
    message = "prompt must be a text, a list of tokens and texts, an object with prompt_string, or a list of these."
    return bad_field("prompt", message)


# ---- what a reply repeats -----------------------------------------------------------------------------------


def settings_shown(body: NativeBody | None, defaults: SamplingParams) -> dict[str, Any]:
    """The sampling settings of a request, or of one that says nothing."""

    def value(name: str) -> Any:
        requested = getattr(body, name, None)
        return getattr(defaults, name) if requested is None else requested

    shown = {name: value(name) for name in SHOWN}
    requested = body.n_predict if body and body.n_predict is not None else getattr(body, "max_tokens", None)
    n_predict = defaults.max_tokens if requested is None else requested
    penalty = body.repeat_penalty if body and body.repeat_penalty is not None else defaults.repetition_penalty
    stop = ([body.stop] if isinstance(body.stop, str) else body.stop) if body and body.stop else list(defaults.stop)
    return shown | {
        "repeat_penalty": penalty,
        "n_predict": -1 if n_predict is None else n_predict,
        "max_tokens": -1 if n_predict is None else n_predict,
        "stop": stop,
        "n_probs": body.n_probs or 0 if body else 0,
        "stream": bool(body and body.stream),
        "grammar": (body.grammar or "") if body else "",
        "samplers": list(OFF),
    }

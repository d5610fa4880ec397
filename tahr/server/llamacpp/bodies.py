"""The bodies of llama.cpp's own routes. A field is honoured, known to change no text, or refused by name."""

from typing import Any

from msgspec import Struct, field

from tahr.server.bodies.decoding import Inert
from tahr.server.bodies.sampling_fields import LlamaSamplingFields, Lora

# A text, tokens, both in one list, or several of these.
NativePrompt = str | dict[str, Any] | list[Any]


class NativeBody(LlamaSamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields that /completion and /infill share; null is the same as not given."""

    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = None
    max_tokens: int | None = None  # another name of the same
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    n_probs: int | None = None
    return_progress: bool | None = None
    logit_bias: dict[str, float | bool] | list[list[Any]] | None = None
    samplers: list[str] | None = None
    lora: Lora = None
    speculative: bool | None = None

    dynatemp_range: float | None = None  # 0 alone is honoured
    dynatemp_exponent: Inert = None
    post_sampling_probs: bool | None = None  # false alone is honoured
    min_keep: int | None = None  # 0 alone is honoured
    timings_per_token: bool | None = None  # false alone is honoured
    n_cmpl: int | None = None  # 1 alone is honoured

    id_slot: Inert = None  # inert: slots do not differ
    n_keep: Inert = None  # inert: no context is shifted here
    n_discard: Inert = None
    n_cache_reuse: Inert = None
    t_max_prompt_ms: Inert = None  # llama.cpp's server takes it and does nothing with it
    backend_sampling: Inert = None
    spec_n_max: Inert = field(default=None, name="speculative.n_max")  # inert: drafts change no text
    spec_n_min: Inert = field(default=None, name="speculative.n_min")
    spec_p_min: Inert = field(default=None, name="speculative.p_min")


class NativeCompletionBody(NativeBody, kw_only=True):
    """The body of /completion."""

    prompt: NativePrompt


class ExtraFile(Struct, forbid_unknown_fields=True):
    """A file beside the one that is edited."""

    text: str
    filename: str = "tmp"
    time: Inert = None


class InfillBody(NativeBody, kw_only=True):
    """The body of /infill; `prompt` stands between the prefix and the cursor."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str = ""


ONLY: dict[str, Any] = {
    "dynatemp_range": 0,
    "post_sampling_probs": False,
    "min_keep": 0,
    "timings_per_token": False,
    "n_cmpl": 1,
}

"""The fields by which requests of several APIs say how to sample; null is the same as not given."""

from typing import Any

from msgspec import Struct

from tahr.server.http.errors import bad_field


class SamplingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Shared by OpenAI's, Ollama's and llama.cpp's routes."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class LlamaSamplingFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Sampling fields that llama.cpp adds; OpenAI's routes take them too."""

    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    grammar: str | None = None
    json_schema: Any = None


class LoraItem(Struct, forbid_unknown_fields=True):
    """An adapter among others, by its name or, as llama.cpp has it, by its number in /lora-adapters."""

    name: str | None = None
    id: int | None = None
    scale: float | None = None


Lora = str | list[str | LoraItem] | None  # an adapter, or several


def lora_of(lora: Lora) -> Any:
    """The field `lora` as `SamplingParams` takes it."""
    if not isinstance(lora, list):
        return lora
    return [each if isinstance(each, str) else (named(each, i), each.scale) for i, each in enumerate(lora)]


def named(item: LoraItem, index: int) -> str | int:
    found = [each for each in (item.name, item.id) if each is not None]
    if len(found) != 1:
        raise bad_field(f"lora[{index}]", "An entry of lora must have a name or an id: give one of the two.")
    return found[0]

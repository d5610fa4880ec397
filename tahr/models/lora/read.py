"""The common result of both readers of adapters."""

from collections.abc import Mapping
from dataclasses import dataclass

from tahr.models.lora.adapter import RawFactors


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """The tensors of an adapter by the model's names of linears, not yet checked against it."""

    factors: Mapping[str, RawFactors]
    base: str = ""  # the model it was made for, as its file says
    notes: tuple[str, ...] = ()

"""The stages that narrow the choice down, in their fixed order. Each sees what the ones before it left."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from tahr.backends.sampling.candidates import Candidates
from tahr.backends.sampling.lanes import Doubles
from tahr.backends.sampling.logit_rows import LogitRows
from tahr.backends.sampling.narrowing import (
    eta,
    min_p,
    mirostat,
    temperature,
    top_a,
    top_k,
    top_n_sigma,
    top_p,
    typical,
    xtc,
)
from tahr.backends.sampling.sample_rows import OFF

FACTS: dict[str, Callable[[LogitRows, Doubles], Doubles]] = {
    "sigma": lambda rows, temperature: rows.sigmas(),
    "total": lambda rows, temperature: rows.totals(np.ones_like(temperature)),
    "entropy": lambda rows, temperature: rows.entropies(),
    "total_at_temperature": lambda rows, temperature: rows.totals(temperature),
}


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One row of the table: its parameter, and the facts about whole rows it may need."""

    parameter: str
    apply: Callable[[Candidates], None]
    facts: tuple[str, ...] = ()
    closes: bool = True  # its result is a short list of candidates, as a rule

    def wanted(self, params: np.void) -> bool:
        return self is TEMPERATURE or bool(params[self.parameter] != OFF[self.parameter])


TEMPERATURE = Stage("temperature", temperature, closes=False)

MIROSTAT = Stage("mirostat_mu", mirostat, ("total_at_temperature",))

STAGES = (
    Stage("top_n_sigma", top_n_sigma, ("sigma",)),
    Stage("xtc_probability", xtc, ("total",), closes=False),
    Stage("typical_p", typical, ("total", "entropy")),
    Stage("top_a", top_a, ("total",)),
    Stage("eta_cutoff", eta, ("total", "entropy")),
    TEMPERATURE,
    Stage("top_k", top_k),
    Stage("min_p", min_p),
    Stage("top_p", top_p, ("total_at_temperature",)),
)

Chain = tuple[Stage, ...]

TAKE_BEST: Chain = ()  # greedy: there is nothing to narrow down

DRAW_FROM_ALL: Chain = (TEMPERATURE,)  # temperature alone needs no candidates


def chain_of(params: np.void) -> Chain:
    """The stages a row of SAMPLE_ROW needs, in order."""
    if params["temperature"] == 0:
        return TAKE_BEST
    if not np.isnan(params["mirostat_mu"]):
        return (TEMPERATURE, MIROSTAT)
    return tuple(stage for stage in STAGES if stage.wanted(params))


@cache
def facts_of(chain: Chain) -> tuple[str, ...]:
    """Facts about whole rows that the stages need, up to the first one that leaves a short list."""
    wanted: dict[str, None] = {}
    for stage in chain:
        wanted |= dict.fromkeys(stage.facts)
        if stage.closes:
            return tuple(wanted)
    return (*wanted, "total_at_temperature")

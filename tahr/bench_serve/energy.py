"""Energy of a run, as the server measures it: its counters before and after."""

import asyncio
import re
from typing import NamedTuple

from tahr.bench_serve.client import Target, fetch_bytes
from tahr.errors import ServerError

COUNTER = re.compile(
    r'^tahr_energy_(?:joules|measured_seconds)_total\{model_name="((?:[^"\\]|\\.)*)"(?:,phase="(\w+)")?\} (\d\S*)$'
)
SETTLE_S = 0.5  # wait after a run: the server reads its device's counter some times a second
LEAST_S = 0.3  # time measured without which there is no figure


class Energy(NamedTuple):
    """Joules of prompts and of decoding, and the seconds in which they were measured."""

    prefill_j: float = 0.0
    decode_j: float = 0.0
    measured_s: float = 0.0


async def energy_of(target: Target, model: str) -> Energy:
    """The counters of a model; zeros where the server has none, or none yet."""
    try:
        text = (await fetch_bytes(target, "GET", "/metrics")).decode(errors="replace")
    except ServerError:
        return Energy()
    return energy_in(text, model)


def energy_in(text: str, model: str) -> Energy:
    """The counters of a model in Prometheus' format."""
    known = {}
    for line in text.splitlines():
        if found := COUNTER.match(line):
            name, phase, value = found.groups()
            if name.replace(r"\"", '"').replace(r"\\", "\\") == model:
                known[phase or "measured"] = float_of(value)
    return Energy(known.get("prefill", 0.0), known.get("decode", 0.0), known.get("measured", 0.0))


def float_of(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


async def energy_since(target: Target, model: str, before: Energy) -> Energy | None:
    """The energy of a run that has just ended; None where no figure of it would mean anything."""
    if (await energy_of(target, model)) == Energy():
        return None
    await asyncio.sleep(SETTLE_S)
    now = await energy_of(target, model)
    spent = Energy(*(b - a for a, b in zip(before, now, strict=True)))
    return spent if spent.measured_s >= LEAST_S and min(spent) >= 0 else None


def millijoules_per_token(energy: Energy, n_prompt: int, n_output: int) -> dict[str, float]:
    """The energy of a token, prompts and decoding apart."""
    found = {"mj_per_prompt_token": (energy.prefill_j, n_prompt), "mj_per_output_token": (energy.decode_j, n_output)}
    return {name: 1e3 * joules / n for name, (joules, n) in found.items() if n}

"""Rotary position embeddings: the frequencies of a layer, and the ways checkpoints stretch them to longer texts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import RopeStyle
from tahr.errors import UnsupportedModel
from tahr.models.config.fields import Fields

MOST_FACTOR = 1e4
MOST_CONTEXT = 1 << 28
MEAN_POSITIONS = 4096  # the mean key is taken over these: most texts are shorter
Frequencies = NDArray[np.float64]


class Scaling(Protocol):
    """Changes plain frequencies; the second result multiplies cos and sin."""

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]: ...


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The rotation of one kind of layer: pair i of `n_dims / 2` turns by theta ** (-2i / n_dims) per position."""

    theta: float
    n_dims: int
    scaling: Scaling | None = None
    axes: tuple[int, ...] = ()  # axis by pair: its position turns the pair; empty: the first for all

    def frequencies(self) -> tuple[NDArray[np.float32], float]:
        """(angle per position of every pair, factor of cos and sin)."""
        freq = self.theta ** (-np.arange(0, self.n_dims, 2, dtype=np.float64) / self.n_dims)
        freq, scale = self.scaling.apply(freq, self.theta) if self.scaling else (freq, 1.0)
        return freq.astype(np.float32), scale


def mean_rotated(
    heads: NDArray[np.float32], rope: RopeConfig, style: RopeStyle, n_positions: int
) -> NDArray[np.float32]:
    """The mean over positions of heads [n, head_dim] after rope: slow pairs keep most of theirs, fast ones nothing."""
    freq, scale = rope.frequencies()
    n = min(n_positions, MEAN_POSITIONS)
    half = rope.n_dims // 2
    turns = np.exp(1j * freq.astype(np.float64)[:, None] * np.arange(n)).mean(axis=1) * scale
    first, second = (
        (slice(half), slice(half, 2 * half)) if style == "halves" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    turned = (heads[:, first] + 1j * heads[:, second]) * turns
    out = heads.astype(np.float32)
    out[:, first] = turned.real
    out[:, second] = turned.imag
    return out


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every position counts 1 / factor."""

    factor: float

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        return freq / self.factor, 1.0


@dataclass(frozen=True, slots=True)
class Llama3:
    """Slow pairs are slowed by `factor`, fast ones kept, others blended by how often they turn in the old context."""

    factor: float
    low: float
    high: float
    old_context: int

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        n_turns = self.old_context * freq / (2 * math.pi)
        # Equal ends make the blend a step, as in Llama 4.
        kept = np.clip((n_turns - self.low) / ((self.high - self.low) or 1e-6), 0, 1)
        return freq * (kept + (1 - kept) / self.factor), 1.0


@dataclass(frozen=True, slots=True)
class Yarn:
    """Like llama3, but blended by pair index, and attention is sharpened by `attention`."""

    factor: float
    old_context: int
    fast: float
    slow: float
    attention: float
    whole: bool  # the blend begins and ends at whole pairs

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        n_dims = 2 * len(freq)
        begin, end = (self.pair_turning(n, n_dims, theta) for n in (self.fast, self.slow))
        if self.whole:
            begin = math.floor(begin)
            end = math.ceil(end)
        begin = max(begin, 0)
        end = min(end, n_dims - 1)
        # Equal ends would divide by zero; a thousandth of a pair makes the blend a step.
        blend = np.clip((np.arange(len(freq)) - begin) / ((end - begin) or 0.001), 0, 1)
        return freq * (1 - blend + blend / self.factor), self.attention

    def pair_turning(self, n_turns: float, n_dims: int, theta: float) -> float:
        """The (fractional) pair that turns `n_turns` times within the old context."""
        return n_dims * math.log(self.old_context / (n_turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class Divisors:
    """GGUF files may carry one divisor per pair instead of a recipe."""

    values: tuple[float, ...]

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        return freq / np.array(self.values), 1.0


@dataclass(frozen=True, slots=True)
class Unrotated:
    """Pairs that never turn: layers without positions of their own."""

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        return np.zeros_like(freq), 1.0


@dataclass(frozen=True, slots=True)
class Proportional:
    """The first `n_turning` pairs turn as fast as if all did; the others never."""

    n_turning: int

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        return np.where(np.arange(len(freq)) < self.n_turning, freq, 0.0), 1.0


@dataclass(frozen=True, slots=True)
class Axial:
    """Both halves of the pairs turn alike, each by the positions of another axis; or the second by the speeds between
    those of the first."""

    between: bool = False

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        return np.concatenate([freq[::2], freq[1::2] if self.between else freq[::2]]), 1.0


def in_the_plane(theta: float, n_dims: int, between: bool = False) -> RopeConfig:
    """The rope of a tower: half of the pairs turn by the height, half by the width."""
    return RopeConfig(theta, n_dims, Axial(between), axes=(1,) * (n_dims // 4) + (2,) * (n_dims // 4))


NO_ROPE = RopeConfig(1.0, 2, Unrotated())


@dataclass(frozen=True, slots=True)
class LongRope:
    """One divisor per pair, and a factor of cos and sin, for texts of at most `context` tokens.

    Files hold those of the old context, which are taken, and those of longer texts, which would change what short ones
    mean: they must be asked for.
    """

    divisors: tuple[float, ...]
    attention: float
    context: int
    longer: "LongRope | None" = None

    def apply(self, freq: Frequencies, theta: float) -> tuple[Frequencies, float]:
        return freq / np.array(self.divisors), self.attention


# ---- from config.json ---------------------------------------------------------------------------------------


def hf_linear(f: Fields, context: int) -> Scaling:
    return LinearScaling(f.number("factor", 0, MOST_FACTOR))


def hf_llama3(f: Fields, context: int) -> Scaling:
    low, high = (f.number(name, 0, MOST_FACTOR) for name in ("low_freq_factor", "high_freq_factor"))
    if high < low:
        raise f.wrong("high_freq_factor", f"a number from {low:g} to {MOST_FACTOR:g}")
    return Llama3(
        factor=f.number("factor", 0, MOST_FACTOR),
        low=low,
        high=high,
        old_context=f.count("original_max_position_embeddings", MOST_CONTEXT),
    )


def hf_yarn(f: Fields, context: int) -> Scaling:
    old_context = f.count("original_max_position_embeddings", MOST_CONTEXT, default=context)
    factor = f.number("factor", 0, MOST_FACTOR, default=context / old_context)
    mscales = [f.number(name, -1, MOST_FACTOR, default=0) for name in ("mscale", "mscale_all_dim")]
    above, below = mscales if all(mscales) else (1.0, 0.0)
    return Yarn(
        factor=factor,
        old_context=old_context,
        fast=f.number("beta_fast", 0, MOST_FACTOR, default=32),
        slow=f.number("beta_slow", 0, MOST_FACTOR, default=1),
        attention=f.number("attention_factor", 0, MOST_FACTOR, sharpness(factor, above) / sharpness(factor, below)),
        whole=f.flag("truncate", True),
    )


def hf_longrope(f: Fields, context: int) -> Scaling:
    old_context = f.count("original_max_position_embeddings", MOST_CONTEXT)
    factor = f.number("factor", 0, MOST_FACTOR, default=context / old_context)
    attention = f.number("attention_factor", 0, MOST_FACTOR, default=long_attention(factor, old_context))
    longer = LongRope(positive_numbers(f, "long_factor"), attention, context) if context > old_context else None
    return LongRope(positive_numbers(f, "short_factor"), attention, old_context, longer)


def hf_dynamic(f: Fields, context: int) -> Scaling | None:
    """Frequencies that change once a text outgrows the context: within it, which Tahr keeps to, they are plain."""
    if f.get("alpha") is not None:
        raise unknown_scaling("dynamic with alpha", f.where, list(HF_SCALINGS))
    return None


def long_attention(factor: float, old_context: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(old_context)) if factor > 1 and old_context > 1 else 1.0


def positive_numbers(f: Fields, name: str) -> tuple[float, ...]:
    values = f.items(name)
    if not values or not all(isinstance(v, int | float) and 0 < v <= MOST_FACTOR for v in values):
        raise f.wrong(name, f"a list of numbers above 0 and at most {MOST_FACTOR:g}")
    return tuple(float(v) for v in values)


def sharpness(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor on cos and sin when a context grows by `factor`."""
    return 1 + 0.1 * weight * math.log(factor) if factor > 1 else 1.0


HF_SCALINGS: dict[str, Callable[[Fields, int], Scaling | None]] = {
    "": lambda f, context: None,
    "default": lambda f, context: None,
    "mrope": lambda f, context: None,
    "dynamic": hf_dynamic,
    "linear": hf_linear,
    "llama3": hf_llama3,
    "yarn": hf_yarn,
    "longrope": hf_longrope,
    "su": hf_longrope,
}


def hf_scaling(f: Fields, context: int) -> Scaling | None:
    """The scaling that `rope_parameters` (or, in older files, `rope_scaling`) asks for."""
    kind = f.text("rope_type") or f.text("type")
    if kind not in HF_SCALINGS:
        raise unknown_scaling(kind, f.where, list(HF_SCALINGS))
    return HF_SCALINGS[kind](f, context)


# ---- from GGUF metadata -------------------------------------------------------------------------------------


def gguf_linear(f: Fields, context: int) -> Scaling:
    return LinearScaling(f.number("factor", 0, MOST_FACTOR))


def gguf_yarn(f: Fields, context: int) -> Scaling:
    factor = f.number("factor", 0, MOST_FACTOR)
    return Yarn(
        factor=factor,
        old_context=f.count("original_context_length", MOST_CONTEXT, default=context),
        fast=f.number("yarn_beta_fast", 0, MOST_FACTOR, default=32),
        slow=f.number("yarn_beta_slow", 0, MOST_FACTOR, default=1),
        attention=f.number("attn_factor", 0, MOST_FACTOR, default=1) * sharpness(factor),
        whole=True,
    )


GGUF_SCALINGS: dict[str, Callable[[Fields, int], Scaling | None]] = {
    "": lambda f, context: None,
    "longrope": lambda f, context: None,  # told by a tensor of divisors
    "none": lambda f, context: None,
    "linear": gguf_linear,
    "yarn": gguf_yarn,
}


def gguf_scaling(f: Fields, context: int) -> Scaling | None:
    """The scaling that the `rope.scaling.*` keys ask for."""
    kind = f.text("type")
    if kind not in GGUF_SCALINGS:
        raise unknown_scaling(kind, f.where, list(GGUF_SCALINGS))
    return GGUF_SCALINGS[kind](f, context)


def unknown_scaling(kind: str, where: str, known: list[str]) -> UnsupportedModel:
    names = ", ".join(name for name in known if name)
    return UnsupportedModel(
        f"In {where}, the model asks for rope scaling {kind!r}, which Tahr does not know; it knows {names}. "
        "Use a checkpoint without it, or one converted to a known kind."
    )

"""What each format of `tahr quantize` costs and loses: bits per weight, and the error on normally distributed weights.

usage: benchmarks/quantise_error.py      (prints the table of docs/tools.md)
"""

import numpy as np

from tahr.weights.formats import FORMATS
from tahr.weights.quantise.quantiser import quantise
from tahr.weights.quantise.recipes import MIXES

N_VALUES = 1 << 18
MIN_BITS, MAX_BITS = 2, 9  # floats lose next to nothing, and are no news


def error(name: str, values: np.ndarray) -> float:
    """Root mean square of the difference, over that of the values."""
    back = FORMATS[name].dequantise(quantise(values, FORMATS[name])).reshape(-1)
    return float(np.sqrt(np.mean((back - values) ** 2) / np.mean(values**2)))


def main() -> None:
    values = np.random.default_rng(0).standard_normal(N_VALUES).astype(np.float32)
    names: dict[str, list[str]] = {}  # a format, and the mixes that are mostly made of it
    for mix_name, mix in MIXES.items():
        names.setdefault(mix.format, []).append(mix_name)
    rows = [(error(name, values), 8 * FORMATS[name].block_bytes / FORMATS[name].block, name) for name in names]
    print("| type | bits per weight | error on normal weights |\n|---|---|---|")
    for lost, bits, name in sorted(rows):
        if MIN_BITS < bits < MAX_BITS:
            print(f"| {', '.join(names[name])} | {bits:.2f} | {lost:.1%} |")


if __name__ == "__main__":
    main()

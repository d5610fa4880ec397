"""What converters to GGUF do to the tensors of a family beyond giving them other names."""

from collections.abc import Callable

import numpy as np

from family_cases import Config

Arrays = dict[str, np.ndarray]


def granite_moe(config: Config, arrays: Arrays) -> Arrays:
    """Gate and up of the experts apart."""
    out: Arrays = {}
    for name, values in arrays.items():
        if not name.endswith("input_linear.weight"):
            out[name] = values
            continue
        gate, up = np.split(values, 2, axis=-2)
        home = name.split(".block_sparse_moe.")[0].split(".shared_mlp.")[0]
        kind = "shared_expert" if "shared_mlp" in name else "experts"
        out |= {f"{home}.mlp.{kind}.gate_proj.weight": gate, f"{home}.mlp.{kind}.up_proj.weight": up}
    return out


FORMS: dict[str, Callable[[Config, Arrays], Arrays]] = {
    "granitemoe": granite_moe,
    "granitemoeshared": granite_moe,
}


def gguf_forms(config: Config, arrays: Arrays) -> Arrays:
    """The tensors as a converter names and cuts them before it looks up their GGUF names."""
    return FORMS.get(config["model_type"], lambda config, arrays: arrays)(config, arrays)

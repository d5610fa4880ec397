"""Which format each tensor of a model gets: mixes that spend bits where they matter, as rules a reader can scan.

The mixes and their names are those of llama.cpp, so that a file says what people expect of its name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tahr.errors import QuantError
from tahr.weights.formats import FORMATS, Format


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a model a tensor is."""

    layer: int
    n_layers: int
    n_sharing: int  # query heads that share a key head

    @property
    def eighth(self) -> int:
        return self.n_layers // 8

    def anywhere(self) -> bool:
        return True

    def weighty(self) -> bool:
        """The first and the last eighth of the layers, and every third between."""
        inside = self.eighth <= self.layer < 7 * self.n_layers // 8
        return not inside or (self.layer - self.eighth) % 3 == 2

    def first_eighth(self) -> bool:
        return self.layer < self.eighth

    def first_sixteenth(self) -> bool:
        return self.layer < self.n_layers // 16

    def first_two(self) -> bool:
        return self.layer < 2

    def first_four(self) -> bool:
        return self.layer < 4

    def widely_shared(self) -> bool:
        """Values that many heads read are few and matter much."""
        return self.n_sharing >= 4


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors called `part` get `format` where `when` holds."""

    part: str
    when: Callable[[Place], bool]
    format: str


@dataclass(frozen=True, slots=True)
class Mix:
    """A recipe such as Q4_K_M: the number GGUF files give it, the format of most tensors, and the exceptions."""

    file_type: int
    format: str
    rules: tuple[Rule, ...] = ()
    head: str = "Q6_K"  # the output head, or the embedding that doubles as one


ALWAYS = Place.anywhere
MIXES: dict[str, Mix] = {
    "F32": Mix(0, "F32", head="F32"),
    "F16": Mix(1, "F16", head="F16"),
    "BF16": Mix(32, "BF16", head="BF16"),
    "Q8_0": Mix(7, "Q8_0", head="Q8_0"),
    "Q4_0": Mix(2, "Q4_0"),
    "Q4_1": Mix(3, "Q4_1"),
    "Q5_0": Mix(8, "Q5_0"),
    "Q5_1": Mix(9, "Q5_1"),
    "Q2_K": Mix(10, "Q2_K", (
        Rule("attn_v", Place.widely_shared, "Q4_K"),
        Rule("attn_v", ALWAYS, "Q3_K"),
        Rule("ffn_down", ALWAYS, "Q3_K"),
        Rule("attn_output", ALWAYS, "Q3_K"),
    )),
    "Q3_K_S": Mix(11, "Q3_K"),
    "Q3_K_M": Mix(12, "Q3_K", (
        Rule("attn_v", Place.first_two, "Q5_K"),
        Rule("attn_v", ALWAYS, "Q4_K"),
        Rule("attn_qkv", ALWAYS, "Q4_K"),
        Rule("ffn_down", Place.first_sixteenth, "Q5_K"),
        Rule("ffn_down", ALWAYS, "Q4_K"),
        Rule("attn_output", ALWAYS, "Q4_K"),
    )),
    "Q3_K_L": Mix(13, "Q3_K", (
        Rule("attn_v", ALWAYS, "Q5_K"),
        Rule("attn_qkv", ALWAYS, "Q4_K"),
        Rule("ffn_down", ALWAYS, "Q5_K"),
        Rule("attn_output", ALWAYS, "Q5_K"),
    )),
    "Q4_K_S": Mix(14, "Q4_K", (
        Rule("attn_v", Place.first_four, "Q5_K"),
        Rule("ffn_down", Place.first_eighth, "Q5_K"),
    )),
    "Q4_K_M": Mix(15, "Q4_K", (
        Rule("attn_v", Place.weighty, "Q6_K"),
        Rule("attn_qkv", ALWAYS, "Q5_K"),
        Rule("ffn_down", Place.weighty, "Q6_K"),
    )),
    "Q5_K_S": Mix(16, "Q5_K"),
    "Q5_K_M": Mix(17, "Q5_K", (
        Rule("attn_v", Place.weighty, "Q6_K"),
        Rule("attn_qkv", ALWAYS, "Q6_K"),
        Rule("ffn_down", Place.weighty, "Q6_K"),
    )),
    "Q6_K": Mix(18, "Q6_K"),
    "IQ4_NL": Mix(25, "IQ4_NL", (
        Rule("attn_v", Place.widely_shared, "Q5_K"),
        Rule("ffn_down", Place.first_eighth, "Q5_K"),
    )),
    "IQ4_XS": Mix(30, "IQ4_XS", (
        Rule("attn_v", Place.widely_shared, "Q5_K"),
        Rule("ffn_down", Place.first_eighth, "Q5_K"),
    )),
    "MXFP4": Mix(38, "MXFP4", head="Q8_0"),
}  # fmt: skip
ALSO = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "INT8": "Q8_0", "INT4": "Q4_0"}
# Where rows are no multiple of a block: the nearest format with a smaller one.
NARROWER = {
    **dict.fromkeys(("Q2_K", "Q3_K", "IQ4_XS"), "IQ4_NL"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), "F16"),
}
# Kernels of convolutions and tables that are added are no factors of a product: llama.cpp has them in f32 alone.
DELICATE = (
    *("_norm.weight", "_gate_inp.weight", "_gate_inp_shexp.weight"),
    *("ssm_conv1d.weight", "shortconv.conv.weight", "position_embd.weight", "token_types.weight"),
)
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+?)(?:_exps|_shexp)?\.weight")


def mix_named(name: str) -> tuple[str, Mix]:
    """The mix of that name, in any case of letters, with its full name."""
    full = ALSO.get(name.upper(), name.upper())
    if full not in MIXES:
        raise QuantError(
            f"Tahr cannot quantise to {name!r}. Choose one of: {', '.join(MIXES)}; "
            f"{', '.join(f'{short} is {long}' for short, long in ALSO.items())}."
        )
    return full, MIXES[full]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A mix applied to one model."""

    mix: Mix
    n_layers: int
    n_sharing: int
    tied: bool

    def format_for(self, name: str, shape: tuple[int, ...]) -> Format | None:
        """The format of the tensor of that GGUF name; None leaves it as it is."""
        if not keeps_meaning(name, shape):
            return None
        return fitting(self._wanted(name), shape[-1])

    def _wanted(self, name: str) -> str:
        if name == ("token_embd.weight" if self.tied else "output.weight"):
            return self.mix.head
        found = LAYER_TENSOR.fullmatch(name)
        if found is None:
            return self.mix.format
        place = Place(int(found[1]), self.n_layers, self.n_sharing)
        fits = (rule.format for rule in self.mix.rules if rule.part == found[2] and rule.when(place))
        return next(fits, self.mix.format)


def keeps_meaning(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor survives rounding: matrices do; norms, biases and expert routers are small and delicate."""
    return len(shape) >= 2 and name.endswith(".weight") and not name.endswith(DELICATE)


def fitting(name: str, n_columns: int) -> Format:
    """The format, or the nearest one whose blocks the rows are a multiple of."""
    while n_columns % FORMATS[name].block:
        name = NARROWER[name]
    return FORMATS[name]


def recipe_for(mix: Mix, shapes: Mapping[str, tuple[int, ...]]) -> Recipe:
    """The mix applied to a model whose GGUF tensors have these shapes."""
    layers = {int(found[1]) for name in shapes if (found := LAYER_TENSOR.fullmatch(name))}
    query = shapes.get("blk.0.attn_q.weight")
    key = shapes.get("blk.0.attn_k.weight")
    n_sharing = query[0] // key[0] if query and key else 1
    return Recipe(mix, max(layers, default=-1) + 1, n_sharing, "output.weight" not in shapes)

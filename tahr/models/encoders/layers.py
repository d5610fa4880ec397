"""The layer of BERT and its kin, and what their files have in common."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tahr.errors import CorruptFile
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder, decoder_of
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.attention import Attention
from tahr.models.parts.makers import Make
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer, Sublayer
from tahr.models.parts.weights import Weights
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

TABLE, POSITIONS, TYPES = (f"model.embed_{name}.weight" for name in ("tokens", "positions", "types"))


class PostNormLayer(DecoderLayer):
    """Both sublayers read the stream as it is; a norm follows each addition."""

    def attention(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Let tokens read each other."""
        self._add_and_norm(0, run, stream)

    def mlp(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Work on each token alone."""
        self._add_and_norm(1, run, stream)

    def _add_and_norm(self, i: int, run: ForwardPass, stream: ResidualStream) -> None:
        stream.add(self.sublayers[i](run, NormedInput(stream, None)))
        stream.rows = stream.normed(self.norms[i])


def post_norm_encoder(cfg: ModelConfig, w: Weights, mlp: Callable[[ModelConfig, Weights], Sublayer]) -> Decoder:
    """The layers of BERT with an MLP of this kind."""

    def layer(i: int, at: Weights) -> PostNormLayer:
        norms = at.pick("attention_norm", "output_norm")
        return PostNormLayer(Attention(cfg, i, at.at("self_attn")), mlp(cfg, at.at("mlp")), norms)

    return decoder_of(cfg, w, layer)


def encoder(cfg: ModelConfig, n_labels: int) -> ModelConfig:
    """`cfg` of a model that reads texts in both directions and writes none, with layer norms."""
    return replace(cfg, bidirectional=True, norm_kind="layer", norm_bias=True, tied=True, n_labels=n_labels)


def add_type(tensors: Tensors, name: str) -> None:
    """Add the embedding of the first token type, which all tokens of a single text have, to every row of a table."""
    if TYPES in tensors:
        table = tensors.make_of(name)
        types = tensors.make_of(TYPES)
        tensors.drop(TYPES)
        tensors.define(name, lambda: added(table(), types()))


def double_by_type(tensors: Tensors) -> None:
    """Make the table one of both token types: token t of a pair's second text becomes token n_vocab + t."""
    table = tensors.make_of(TABLE)
    types = tensors.make_of(TYPES)
    tensors.drop(TYPES)
    tensors.define(TABLE, lambda: doubled(table(), types()))


def doubled(table: HostTensor, types: HostTensor) -> HostTensor:
    first, second = rows_for(table, types, 2)
    values = table.dense()
    return of_floats(table.name, np.concatenate([values + first, values + second]))


def added(table: HostTensor, types: HostTensor) -> HostTensor:
    (first,) = rows_for(table, types, 1)
    return of_floats(table.name, table.dense() + first)


def rows_for(table: HostTensor, types: HostTensor, n: int) -> np.ndarray:
    """The first rows of `types`, to be added to those of `table`; NumPy would stretch what is narrower."""
    # Programs that quantise GGUF files drop sizes of 1: a table of one row is a vector there.
    n_rows, *width = types.shape if len(types.shape) > 1 else (1, *types.shape)
    if n_rows < n or len(width) != 1 or tuple(width) != table.shape[1:]:
        raise CorruptFile(
            f"Tensor {types.name} has the shape {list(types.shape)}, which does not fit {table.name} of "
            f"{list(table.shape)}; the file is damaged, fetch the model again."
        )
    return types.dense().reshape(n_rows, -1)[:n]


def of_floats(name: str, values: np.ndarray) -> HostTensor:
    data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return HostTensor(name, FORMATS["F32"], values.shape, data)


def last_rows(stored: Make, n_rows: int) -> Make:
    """The last rows of a table, in f32."""

    def make() -> HostTensor:
        tensor = stored()
        return of_floats(tensor.name, tensor.dense()[len(tensor.dense()) - n_rows :])

    return make

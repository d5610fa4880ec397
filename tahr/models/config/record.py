"""A model in numbers: one frozen record, whatever file it was read from."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tahr.backends.api import Activation, AttentionScaling, RopeStyle, StateSpaceSizes
from tahr.errors import CorruptFile
from tahr.models.config.rope import RopeConfig

# Far beyond every released model, small enough that no product of them can ask for absurd memory.
MOST_LAYERS = 1024
MOST_WIDTH = 1 << 17
MOST_HEADS = 1024
MOST_HEAD_DIM = 1024
MOST_FFN = 1 << 20
MOST_VOCAB = 1 << 22
MOST_EXPERTS = 4096
MOST_MULTIPLIER = 1e6
MOST_PATCHES = 1024  # limit on an image of any size


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How one layer differs from its neighbours: its rope, its window (0: sees everything), whether it has experts."""

    rope: RopeConfig
    window: int = 0
    sparse: bool = False
    n_kv_heads: int = 0  # 0: as the model; likewise the next two
    head_dim: int = 0
    ffn_width: int = 0
    recurrent: bool = False  # a state of fixed size in place of attention
    chunked: bool = False  # the window begins at a multiple of itself
    attn_scaled: bool = True  # the model's attention temperature scaling, if it has one, counts here


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """The experts of a sparse layer."""

    n_experts: int
    n_active: int
    ffn_width: int
    renormalise: bool
    shared_width: int = 0  # width of the expert that every token goes to
    shared_gate: bool = False  # the shared expert's result is gated by a score of its own
    biased: bool = False  # router and experts have biases
    sigmoid: bool = False  # scores become shares by a sigmoid each, not by a softmax
    choice_bias: bool = False  # a stored bias counts for the choice of experts alone
    n_groups: int = 0  # groups of experts: a token chooses among those of its `n_best_groups` best
    n_best_groups: int = 0
    group_top: int = 1  # experts that make up the worth of a group
    scale: float = 1.0
    scales_input: bool = False  # experts read their rows times the share
    jitter: float = 0.0  # experts are chosen one after the other, each against those that are nearly as good; 0: not


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """The gated delta rule of recurrent layers."""

    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    kernel: int
    tiled: bool = False  # the order of value heads


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention: what a token keeps, and the parts of a head's query."""

    q_rank: int  # width of the vector that queries are linears of; 0: the stream itself
    rank: int  # width of the vector that keys and values are linears of
    nope_dim: int  # numbers of a query that are not rotated
    rope_dim: int  # numbers of a query that are rotated
    value_dim: int


class HeadPart(NamedTuple):
    """The query heads of one rank: the first of them, and how many all ranks have."""

    first: int
    n_all: int


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The tower of a model that embeds images beside texts."""

    layers: "ModelConfig"
    processor: str  # the image processor where the files name none
    patch_size: int
    n_positions: int  # rows of the table of positions, that of the class token among them
    width_out: int  # width of vectors, made of images or texts
    head: Literal["class", "probe"]  # part that makes one row of all
    patch_bias: bool = False
    resized: bool = False  # images differ in size, and the grid of positions is resized to each
    text_pooling: str = "last"
    text_bias: bool = False  # bias of the linear that texts go through after pooling
    n_padded: int = 0  # texts are padded to so many tokens, which all count; 0: they are not

    @property
    def n_patches(self) -> int:
        """Patches of an image, where all have one size."""
        return self.n_positions - (self.head == "class")

    @property
    def n_most_patches(self) -> int:
        return MOST_PATCHES if self.resized else self.n_patches

    @property
    def row_width(self) -> int:
        """Width of an input row: the numbers of a patch and, where positions are resized, its shares of each."""
        return 3 * self.patch_size**2 + (self.n_positions if self.resized else 0)


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """The encoder of a model that writes down what is said in a recording."""

    layers: "ModelConfig"
    n_bins: int  # bands of a frame's spectrum
    n_rows: int  # rows that the frames of a recording become, two frames each

    @property
    def n_frames(self) -> int:
        return 2 * self.n_rows


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """Frames of a model that speaks. The first code of a frame is drawn by the model, the others by its predictor."""

    predictor: "ModelConfig"
    n_codes: int  # codes of a frame
    n_first: int  # rows of the table of first codes
    n_sounds: int  # the first of these, which are sounds; the others steer the model
    n_entries: int  # rows of the tables of other codes
    end: int  # first code behind the last frame
    text_width: int  # width of the table of tokens


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """How an image stands in a prompt."""

    placeholder: int  # token that stands for a row
    written: str = ""  # text that the chat template has for an image; "": the placeholder
    around: str = ""  # text that takes its place: the placeholder, and marks around it
    both_ways: bool = False  # tokens of an image see all of it in every layer of the text model
    line_ends: tuple[str, str] | None = None  # tokens behind every line of an image, and behind its last one
    # Tiles of an image that is split: with tokens around each that say where it is; one after the other; or line by
    # line side by side, with a row of the model's behind each line.
    tiles: Literal["", "marked", "plain", "lines"] = ""


@dataclass(frozen=True, slots=True)
class ChatVisionConfig:
    """The tower of a model that chats about images, and how these stand in a prompt."""

    layers: "ModelConfig"
    processor: str  # the image processor where the files name none
    patch_size: int
    merge: int  # patches on a side of a square that becomes one row
    n_positions: int  # rows of a square table of positions, which is resized to each image; 0: rope alone
    width_out: int  # width of the text model
    place: ImagePlace
    side: int = 0  # patches on a side of all images, whose table of positions stays as it is; 0: images differ in size
    activation: Activation = "gelu"  # between the matrices that make rows for the text model
    projector: Literal["mlp", "square", "mean", "merged", "joined"] = "mlp"  # part that makes rows for the text model
    deepstack: tuple[int, ...] = ()  # layers whose states are added to the text model's, after its first layers
    gated: bool = False  # layers have gated MLPs
    row_norms: bool = False  # queries and keys are normed, each row as a whole
    window: int = 0  # squares on a side of the windows that layers see; 0: all of an image
    whole: tuple[int, ...] = ()  # layers without windows all the same

    @property
    def has_class(self) -> bool:
        """Whether a token without pixels stands behind the patches, and gives no row."""
        return 0 < self.side**2 < self.n_positions

    @property
    def placeholder(self) -> int:
        """The token that stands for a row of an image."""
        return self.place.placeholder

    def is_windowed(self, layer: int) -> bool:
        return self.window > 0 and layer not in self.whole

    @property
    def n_merged(self) -> int:
        """Patches of one row."""
        return self.merge**2

    @property
    def n_fixed_rows(self) -> int:
        """Rows of an image or a tile, where all have one size; 0: they differ."""
        return self.side**2 // self.n_merged

    @property
    def row_width(self) -> int:
        """Width of an input row: the numbers of a patch and, where images differ in size, its shares of positions."""
        return 3 * self.patch_size**2 + (0 if self.side else self.n_positions)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """How large a model is, and of which layers."""

    family: str
    guess: str = ""  # reason for the family, where the file did not name it
    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_width: int
    n_vocab: int
    max_context: int
    kinds: tuple[LayerKind, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """How tokens see each other. A softcap is 0 where a family has none."""

    attn_scale: float
    attn_softcap: float = 0.0
    attn_scaling: AttentionScaling | None = None
    rope_style: RopeStyle = "halves"
    alibi: float = 0.0  # the steepest slope is 2^-alibi per head; 0: none
    head_part: HeadPart | None = None  # the heads that one of several ranks has; None: there is one rank
    alibi_scaled: bool = False  # slopes count as part of the scores that are scaled
    qkv_bias: bool = False
    out_bias: bool = False
    qkv_clip: float = 0.0  # queries, keys and values are held within +-this; 0: not
    unit_norms: bool = False  # queries and keys are normed head by head, without gains
    qk_layer_norms: bool = False  # each head of queries and keys has a layer norm
    latent: LatentConfig | None = None
    n_kv_shared: int = 0  # last layers that read the keys and values of earlier ones
    bidirectional: bool = False  # an encoder: tokens see those after them too, and no text is generated


@dataclass(frozen=True, kw_only=True)
class SublayerConfig:
    """The parts of a layer beside attention, and how they are added up."""

    activation: Activation = "silu"
    mlp_bias: bool = False
    parallel: bool = False  # the sublayers of a layer read the same rows
    residual_scale: float = 1.0
    moe: MoeConfig | None = None
    delta: DeltaConfig | None = None
    mamba: StateSpaceSizes | None = None  # sizes of state space layers
    per_layer_width: int = 0  # width of an input that every layer reads beside the stream; 0: none


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """The norms of all layers."""

    norm_eps: float
    norm_kind: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_offset: float = 0.0  # added to every stored norm gain
    final_norm: bool = True  # a norm follows the last layer


@dataclass(frozen=True, kw_only=True)
class EndConfig:
    """Both ends of the layers: the embedding and the head. Multipliers are 1 where a family has none."""

    tied: bool = False
    n_head_rows: int = 0  # rows of the head, of a rank's part or of a model that speaks; 0: one for each token
    embed_scale: float = 1.0
    n_positions: int = 0  # rows of a learned table
    first_position: int = 0  # rows of that table before the one of position 0, where a file has them
    paired_types: bool = False  # tokens of a pair's second text are other rows of the table than those of the first
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    generates: bool = True  # text; models that embed or score texts need no head
    n_labels: int = 0  # classes of a text classifier; 0: it is none


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelShape, AttentionConfig, SublayerConfig, NormConfig, EndConfig):
    """A decoder in numbers, flat, so that a family states what differs in one `replace`."""

    vision: VisionConfig | None = None
    audio: AudioConfig | None = None
    speech: SpeechConfig | None = None
    chat_vision: ChatVisionConfig | None = None

    def __post_init__(self) -> None:
        for wrong, sentence in self.complaints():
            if wrong:
                raise CorruptFile(f"The model's configuration contradicts itself: {sentence}. Fetch the model again.")

    def complaints(self) -> list[tuple[bool, str]]:
        """Contradictions, each with the sentence that names it."""
        heads = self.n_heads
        kv_heads = self.n_kv_heads
        head_dim = self.head_dim
        dims = sorted({kind.rope.n_dims for kind in self.kinds})
        delta = self.delta
        return [
            (
                delta is not None and delta.n_v_heads % delta.n_k_heads != 0,
                "the value heads of recurrent layers cannot share their key heads evenly",
            ),
            (
                self.mamba is not None and self.mamba.n_heads % self.mamba.n_groups != 0,
                "the heads of recurrent layers cannot share their groups evenly",
            ),
            (len(self.kinds) != self.n_layers, f"{self.n_layers} layers, but {len(self.kinds)} are described"),
            (heads % kv_heads != 0, f"{heads} query heads cannot share {kv_heads} key heads evenly"),
            (
                any(d % 2 or not 0 < d <= head_dim for d in dims),
                f"rope turns {dims} numbers of each head, which is no even part of its {head_dim}",
            ),
        ]

    @property
    def embeds_whole(self) -> bool:
        """Whether texts are embedded and never continued, so that nothing of them is kept."""
        return self.bidirectional or self.vision is not None

    @property
    def windows(self) -> tuple[int, ...]:
        """How much of a text every layer has to remember; 0: all of it, as an encoder needs while it reads the text."""
        return tuple(0 if self.bidirectional else kind.window for kind in self.kinds)

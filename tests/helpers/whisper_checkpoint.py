"""OpenAI's tiny.en, as the package index has it, turned into the folder that the hub has of it.

The .pt is a pickle, which may call anything: a closed list of its opcodes is interpreted here, and nothing is called.

Usage: python whisper_checkpoint.py tiny.en.pt VOCABULARY.gguf FOLDER
"""

import json
import pickletools
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from gguf_maker import safetensors

TYPES = {"torch HalfStorage": "<f2", "torch FloatStorage": "<f4"}
KNOWN = {*TYPES, "torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
MARK = object()


class Pickle:
    """The stack of a pickle whose globals stay names and whose storages are members of the archive."""

    def __init__(self, archive: zipfile.ZipFile, root: str):
        self.archive = archive
        self.root = root
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def load(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name not in STEPS:
                raise ValueError(f"the file has the opcode {name}")
            STEPS[name](self, argument)
        raise ValueError("the file ends early")

    def above_mark(self) -> list[Any]:
        at = max(i for i, value in enumerate(self.stack) if value is MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def set_items(self, items: list[Any]) -> None:
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def pop(self, n: int) -> list[Any]:
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def global_name(self, name: str) -> str:
        if name not in KNOWN:
            raise ValueError(f"the file asks for {name}")
        return name

    def reduce(self) -> Any:
        function, arguments = self.pop(2)
        if function == "collections OrderedDict" and arguments == ():
            return {}
        if function != "torch._utils _rebuild_tensor_v2":
            raise ValueError(f"the file calls {function}")
        values, offset, shape, strides = arguments[:4]
        size = values.itemsize
        view = np.lib.stride_tricks.as_strided(values[offset:], shape, [size * n for n in strides])
        return view.copy()

    def storage(self) -> Any:
        (kind, type_name, key, _, n) = self.stack.pop()
        assert kind == "storage"
        values = np.frombuffer(self.archive.read(f"{self.root}/data/{key}"), TYPES[type_name])
        assert len(values) == n
        return values


def pushes(value: Callable[[Pickle, Any], Any]) -> Callable[[Pickle, Any], None]:
    return lambda p, argument: p.stack.append(value(p, argument))


def memoise(p: Pickle, argument: int) -> None:
    p.memo[argument] = p.stack[-1]


STEPS: dict[str, Callable[[Pickle, Any], None]] = {
    "PROTO": lambda p, _: None,
    "MARK": pushes(lambda p, _: MARK),
    "NEWTRUE": pushes(lambda p, _: True),
    "NEWFALSE": pushes(lambda p, _: False),
    "EMPTY_DICT": pushes(lambda p, _: {}),
    "EMPTY_TUPLE": pushes(lambda p, _: ()),
    "BINPERSID": pushes(lambda p, _: p.storage()),
    "REDUCE": pushes(lambda p, _: p.reduce()),
    "GLOBAL": pushes(lambda p, name: p.global_name(name)),
    "TUPLE": pushes(lambda p, _: tuple(p.above_mark())),
    "SETITEM": lambda p, _: p.set_items(p.pop(2)),
    "SETITEMS": lambda p, _: p.set_items(p.above_mark()),
    **{f"TUPLE{n}": pushes(lambda p, _, n=n: tuple(p.pop(n))) for n in (1, 2, 3)},  # type: ignore[misc]
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2"), pushes(lambda p, argument: argument)),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), memoise),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), pushes(lambda p, argument: p.memo[argument])),
}


def read_pt(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        (pickle,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        found: dict[str, Any] = Pickle(archive, pickle.removesuffix("/data.pkl")).load(archive.read(pickle))
        return found


# ---- names of the hub ---------------------------------------------------------------------------------------------

NAMES = (
    (".blocks.", ".layers."),
    (".attn.query", ".self_attn.q_proj"),
    (".attn.key", ".self_attn.k_proj"),
    (".attn.value", ".self_attn.v_proj"),
    (".attn.out", ".self_attn.out_proj"),
    (".attn_ln", ".self_attn_layer_norm"),
    (".cross_attn.query", ".encoder_attn.q_proj"),
    (".cross_attn.key", ".encoder_attn.k_proj"),
    (".cross_attn.value", ".encoder_attn.v_proj"),
    (".cross_attn.out", ".encoder_attn.out_proj"),
    (".cross_attn_ln", ".encoder_attn_layer_norm"),
    (".mlp.0", ".fc1"),
    (".mlp.2", ".fc2"),
    (".mlp_ln", ".final_layer_norm"),
    ("encoder.ln_post", "encoder.layer_norm"),
    ("decoder.ln", "decoder.layer_norm"),
    (".positional_embedding", ".embed_positions.weight"),
    ("decoder.token_embedding", "decoder.embed_tokens"),
)


def hub_name(name: str) -> str:
    for theirs, hubs in NAMES:
        name = name.replace(theirs, hubs)
    return "model." + name


def config_of(dims: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": dims["n_vocab"], "d_model": dims["n_text_state"], "num_mel_bins": dims["n_mels"],
        "encoder_layers": dims["n_audio_layer"], "encoder_attention_heads": dims["n_audio_head"],
        "decoder_layers": dims["n_text_layer"], "decoder_attention_heads": dims["n_text_head"],
        "encoder_ffn_dim": 4 * dims["n_audio_state"], "decoder_ffn_dim": 4 * dims["n_text_state"],
        "max_source_positions": dims["n_audio_ctx"], "max_target_positions": dims["n_text_ctx"],
        "num_hidden_layers": dims["n_audio_layer"], "activation_function": "gelu",
        "decoder_start_token_id": 50257, "eos_token_id": 50256,
    }  # fmt: skip


# ---- the vocabulary of English models -----------------------------------------------------------------------------

N_LANGUAGES = 99
N_TIMES = 1501
SYMBOLS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
PAIRS = (
    "<<",
    ">>",
    "<<<",
    ">>>",
    "--",
    "---",
    "-(",
    "-[",
    "('",
    '("',
    "((",
    "))",
    "(((",
    ")))",
    "[[",
    "]]",
    "{{",
    "}}",
)
SYMBOL_WORDS = (*PAIRS, "♪♪", "♪♪♪")
NOTES = "♩♪♫♬♭♮♯"


def specials() -> dict[str, int]:
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|language {i}|>" for i in range(N_LANGUAGES))]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    names += [f"<|{i * 0.02:.2f}|>" for i in range(N_TIMES)]
    return {name: 50256 + i for i, name in enumerate(names)}


def tokenizer_of(vocabulary: Path) -> dict[str, Any]:
    """A tokenizer.json of GPT-2's vocabulary and the special tokens of English models."""
    fields = gguf.GGUFReader(vocabulary).fields
    texts = [fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()]
    tokens, merges = texts
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": not name[2:3].isdigit()} for name, i in specials().items()]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens[:50256])}, "merges": merges},
    }  # fmt: skip


def suppressed(folder: Path) -> list[int]:
    """Tokens of symbols that nobody says, and special ones."""
    from tahr.text.tokens.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_dir(folder)
    found = {tokenizer.encode(" -")[0], tokenizer.encode(" '")[0]}
    for symbol in [*SYMBOLS, *SYMBOL_WORDS, *NOTES]:
        for tokens in (tokenizer.encode(symbol), tokenizer.encode(" " + symbol)):
            if len(tokens) == 1 or symbol in NOTES:
                found.add(tokens[0])
    names = specials()
    after = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "startoftranscript")
    return sorted(found | {names[f"<|{name}|>"] for name in after})


def write(source: Path, vocabulary: Path, folder: Path) -> None:
    checkpoint = read_pt(source)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        hub_name(name): ("F16" if values.itemsize == 2 else "F32", values.shape, values.tobytes())
        for name, values in checkpoint["model_state_dict"].items()
    }
    (folder / "model.safetensors").write_bytes(safetensors(stored))
    (folder / "config.json").write_text(json.dumps(config_of(checkpoint["dims"])))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(vocabulary)))
    names = specials()
    generation = {
        "is_multilingual": False,
        "decoder_start_token_id": 50257,
        "eos_token_id": 50256,
        "no_timestamps_token_id": names["<|notimestamps|>"],
        "prev_sot_token_id": names["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "begin_suppress_tokens": [220, 50256],
        "alignment_heads": [[1, 0], [2, 0], [2, 5], [3, 0], [3, 1], [3, 2], [3, 3], [3, 4]],
        "suppress_tokens": suppressed(folder),
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:4]))

"""The GGUF writer, `tahr quantize`, and checkpoints and tokenizers converted to GGUF."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from assets import need
from family_cases import MORE_CASES
from model_cases import CASES, NO_GGUF, make_weights, token_ids
from model_files import write_hf
from model_runs import Runs
from tahr import hub
from tahr.backends.reference.backend import ReferenceBackend
from tahr.cli.main import main
from tahr.errors import CorruptFile, LoadError, QuantError, TokenizerError, UnsupportedModel, WeightsChanged
from tahr.models.loader import Loaded, load, open_model
from tahr.models.loader.convert import convert
from tahr.text.gguf.fields import gguf_fields
from tahr.text.tokens.pretokenizers import PRE_TOKENIZERS
from tahr.text.tokens.tokenizer import Tokenizer as OurTokenizer
from tahr.tools.convert_check import refuse_unloadable
from tahr.tools.gguf_export import export
from tahr.weights import FORMATS, HostTensor, open_gguf
from tahr.weights.gguf_write import Entry, Part, encode, stored_metadata, write_gguf
from tahr.weights.quantise.quantiser import pieces, quantise, quantised

gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle of these tests")

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"


def normal(n_rows: int = 64, n_cols: int = 512, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n_rows, n_cols)) * 0.02).astype(np.float32)


def tensor(values: np.ndarray, name: str = "w") -> HostTensor:
    stored = np.ascontiguousarray(values, np.float32)
    return HostTensor(name, FORMATS["F32"], stored.shape, stored.reshape(-1).view(np.uint8))


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))


# ---- the writer ---------------------------------------------------------------------------------------------


METADATA = {
    "general.architecture": "llama", "a.bool": True, "a.u32": 7, "a.i32": -7, "a.u64": 1 << 40, "a.f32": 0.5,
    "a.strings": ["x", "ümläut", "\udc80"], "a.i32s": np.array([1, -2], np.int32), "a.bools": np.array([True, False]),
    "a.f32s": [0.5, 1.5], "a.more": [True, True], "a.some": [-1, 2], "a.u8s": np.array([1, 255], np.uint8),
}  # fmt: skip


def entry(name: str, values: np.ndarray, target: str = "F32") -> Entry:
    made = quantised(tensor(values, name), FORMATS[target])
    return Entry(name, made.format, made.shape, lambda: [made.data])


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    values = normal(3, 64)
    path = tmp_path / "m.gguf"
    write_gguf(path, METADATA, [entry("odd", values[0, :5]), entry("w", values, "Q8_0"), entry("v", values)])
    opened = open_gguf(path)
    assert {key: list(v) if isinstance(v, list | np.ndarray) else v for key, v in METADATA.items()} == dict(
        opened.metadata
    )
    assert np.array_equal(opened.tensors["v"].dense(), values)
    assert opened.tensors["w"].format.name == "Q8_0" and opened.tensors["w"].shape == (3, 64)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_the_oracle_reads_it_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    values = normal(3, 64)
    write_gguf(path, {**METADATA, "a.strings": ["x", "y"]}, [entry("w", values, "Q4_0")])
    reader = gguf.GGUFReader(path)
    kinds = {key: [kind.name for kind in field.types] for key, field in reader.fields.items() if key.startswith("a.")}
    assert kinds == {
        "a.bool": ["BOOL"], "a.u32": ["UINT32"], "a.i32": ["INT32"], "a.u64": ["UINT64"], "a.f32": ["FLOAT32"],
        "a.strings": ["ARRAY", "STRING"], "a.i32s": ["ARRAY", "INT32"], "a.bools": ["ARRAY", "BOOL"],
        "a.f32s": ["ARRAY", "FLOAT32"], "a.u8s": ["ARRAY", "UINT8"], "a.more": ["ARRAY", "BOOL"],
        "a.some": ["ARRAY", "INT32"],
    }  # fmt: skip
    (found,) = reader.tensors
    assert np.array_equal(found.data.reshape(-1), quantise(values, FORMATS["Q4_0"]).reshape(-1))


def test_metadata_keeps_its_types_when_copied(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, METADATA, [entry("w", normal(1, 32))])
    kept = stored_metadata(open_gguf(path))
    assert {key: value.data for key, value in kept.items()} == {key: encode(value) for key, value in METADATA.items()}


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> list[np.ndarray]:
        raise QuantError("as if")

    path = tmp_path / "m.gguf"
    path.write_bytes(b"the file that was there")
    with pytest.raises(QuantError, match="as if"):
        write_gguf(path, {}, [Entry("w", FORMATS["F32"], (4,), broken)])
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"] and path.read_bytes() == b"the file that was there"


ROOT = Path(__file__).parents[2]
SLOWLY = """
import sys, time
from tahr.cli.main import main
from tahr.weights import gguf_write
write = gguf_write._write_tensor
gguf_write._write_tensor = lambda *given: (write(*given), time.sleep(0.2))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(number: int, stories: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOWLY, "quantize", str(stories), str(tmp_path / "out.gguf"), "q8_0"]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # whoever runs the tests may ignore it
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=heard) as process:
        deadline = time.monotonic() + 30
        while not any(path.stat().st_size for path in tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [path.name for path in tmp_path.iterdir()] == ["out.gguf.tahr-partial"]
        process.send_signal(number)
        said = process.communicate(timeout=20)[1]
    assert not list(tmp_path.iterdir()) and process.returncode == 128 + number
    assert "Traceback" not in said and ("terminated by SIG" in said or "interrupted" in said)


def test_two_that_write_one_file_do_not_mix_their_bytes(tmp_path: Path) -> None:
    path, values = tmp_path / "m.gguf", normal(1, 32)

    def meanwhile() -> Iterator[np.ndarray]:
        with pytest.raises(LoadError, match="Another process is writing"):
            write_gguf(path, {"of": "the second"}, [entry("v", normal(4, 32))])
        yield values.reshape(-1).view(np.uint8)

    write_gguf(path, {"of": "the first"}, [Entry("w", FORMATS["F32"], values.shape, meanwhile)])
    assert open_gguf(path).metadata["of"] == "the first" and [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    path.with_name("m.gguf.tahr-partial").write_bytes(bytes(9999))  # of a process that was ended
    write_gguf(path, {"of": "the third"}, [entry("w", values)])
    assert open_gguf(path).metadata["of"] == "the third" and [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_no_directory_to_write_to(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no directory"):
        write_gguf(tmp_path / "absent" / "m.gguf", {}, [])


# ---- quantize and convert -----------------------------------------------------------------------------------


def logits(loaded: Loaded, backend: ReferenceBackend) -> np.ndarray:
    return Runs(loaded, backend).eager([(0, token_ids())])


def written(parts: list[Part], metadata: dict[str, object], path: Path) -> Path:
    entries = [Entry(p.name, p.format, p.shape, lambda p=p: pieces(p.make(), p.format)) for p in parts]  # type: ignore[misc]
    write_gguf(path, metadata, entries)
    return path


@pytest.mark.parametrize("case", [case for case in CASES if case not in NO_GGUF | MORE_CASES.keys()])
def test_a_converted_model_gives_the_same_logits(case: str, tmp_path: Path) -> None:
    source = open_model([], write_hf(tmp_path / "hf", CASES[case], make_weights(CASES[case])))
    made = convert(source)
    refuse_unloadable(made)
    path = written(made.parts, made.metadata, tmp_path / "m.gguf")
    backend = ReferenceBackend()
    want = np.load(FIXTURES / f"{case}.npz")["logits"]
    assert np.abs(logits(load(open_model([path]), backend), backend) - want).max() <= 1e-4


Q_PROJ, EXPERT = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.experts.1.up_proj.weight"
BROKEN: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray] | None]] = {
    "no final norm": ("llama_llama3", "model.norm.weight", None),
    "no matrix": ("llama_llama3", Q_PROJ, None),
    "fewer rows": ("llama_llama3", Q_PROJ, lambda a: a[:-1]),
    "no rows": ("llama_llama3", Q_PROJ, lambda a: a[:0]),
    "one number": ("llama_llama3", Q_PROJ, lambda a: a.reshape(-1)[0]),
    "flat": ("llama_llama3", "model.layers.1.mlp.down_proj.weight", lambda a: a.reshape(-1)),
    "a missing expert": ("qwen3_moe", EXPERT, None),
    "a smaller expert": ("qwen3_moe", EXPERT, lambda a: a[:-1]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_checkpoint_that_would_not_load_is_not_converted(what: str, tmp_path: Path) -> None:
    case, name, change = BROKEN[what]
    arrays = make_weights(CASES[case])
    found = arrays.pop(name)
    if change is not None:
        arrays[name] = np.ascontiguousarray(change(found))
    folder = write_hf(tmp_path / "hf", CASES[case], arrays)
    with pytest.raises(CorruptFile):
        export(hub.resolve(str(folder)), tmp_path / "m.gguf", None)
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize("case", sorted(NO_GGUF - MORE_CASES.keys()))
def test_what_gguf_has_no_words_for_is_refused(case: str, tmp_path: Path) -> None:
    source = open_model([], write_hf(tmp_path, CASES[case], make_weights(CASES[case])))
    with pytest.raises(UnsupportedModel, match=r"no words for|as it is"):
        convert(source)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny qwen3 with a byte-level tokenizer of its own."""
    folder = write_hf(
        tmp_path_factory.mktemp("qwen3"),
        {**CASES["qwen3"], "vocab_size": 300},
        make_weights({**CASES["qwen3"], "vocab_size": 300}),
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w")]
    ids = {piece: i for i, piece in enumerate([*letters, *("".join(pair) for pair in merges)])}
    write_tokenizer(folder, ids, merges, PRE_TOKENIZERS["qwen2"].splits, eos="<|im_end|>")
    return folder


def write_tokenizer(
    folder: Path, ids: dict[str, int], merges: list[tuple[str, str]], splits: tuple[str, ...], eos: str
) -> None:
    made = Tokenizer(models.BPE(ids, merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>", eos])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": eos, "chat_template": "{{ messages[0].content }}"})
    )


def test_convert_does_not_take_the_place_of_what_it_reads(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tokenizer.json", "config.json"):
        kept = (checkpoint / name).read_bytes()
        assert main(["convert", str(checkpoint), str(checkpoint / name)]) == 3
        assert "which is read" in capsys.readouterr().err and (checkpoint / name).read_bytes() == kept


def test_convert_writes_a_whole_model(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    config = checkpoint / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": 262}))
    assert main(["convert", str(checkpoint), str(out)]) == 0
    assert "F32" in capsys.readouterr().out
    opened = open_gguf(out)
    theirs, ours = OurTokenizer.from_dir(checkpoint), OurTokenizer.from_gguf(opened.metadata)
    for text in ("hello world", "12 héllo\n\n  <|im_end|>"):
        assert ours.encode(text) == theirs.encode(text)
    assert opened.metadata["tokenizer.ggml.pre"] == "qwen2" and ours.eos_id == theirs.eos_id
    assert opened.metadata["tokenizer.chat_template"] == "{{ messages[0].content }}"
    assert len(opened.metadata["tokenizer.ggml.tokens"]) == 300  # as many as the embedding has rows
    backend = ReferenceBackend()
    a, b = (
        logits(load(open_model([out] if form else [], None if form else checkpoint), backend), backend)
        for form in (0, 1)
    )
    assert np.abs(a - b).max() <= 1e-5


def test_the_name_is_that_of_the_model_and_not_of_a_commit(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    shutil.copytree(checkpoint, tmp_path / "hub" / "models--org--Tiny-1B" / "snapshots" / ("a" * 40))
    shutil.copytree(checkpoint, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    for given, name in {"org/Tiny-1B": "Tiny-1B", ".": "mine", "../mine": "mine"}.items():
        assert main(["convert", given, str(tmp_path / "out.gguf")]) == 0
        assert open_gguf(tmp_path / "out.gguf").metadata["general.name"] == name


N_PIECES = 20_000


@pytest.mark.parametrize("kind", ["qwen2", "llama-bpe", "gpt-2"])
def test_released_tokenizers_survive(kind: str, tmp_path: Path) -> None:
    """The first of their pieces, that is, and what merges into these."""
    metadata = open_gguf(need(f"tokenizers/ggml-vocab-{kind}.gguf")).metadata
    pieces_of = list(metadata["tokenizer.ggml.tokens"])[:N_PIECES]
    known = set(pieces_of)
    pairs = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"]]
    merges = [pair for pair in pairs if known.issuperset((*pair, "".join(pair)))]
    row = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]
    normal_ids = {p: i for i, p in enumerate(pieces_of) if metadata["tokenizer.ggml.token_type"][i] == 1}
    made = Tokenizer(models.BPE(normal_ids, merges, ignore_merges=row.whole_words))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.splits]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.save(str(tmp_path / "tokenizer.json"))
    fields = gguf_fields(tmp_path, len(pieces_of))
    assert fields["tokenizer.ggml.pre"] == metadata["tokenizer.ggml.pre"]
    assert fields["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]


def sentencepiece_json(ids: dict[str, int], merges: list[list[str]], special: list[str]) -> str:
    """A tokenizer.json as transformers makes them of SentencePiece models."""
    made = Tokenizer(models.BPE(ids, [tuple(pair) for pair in merges], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens(special)
    return str(made.to_str())


def test_sentencepiece_merges_become_scores(stories: Path, tmp_path: Path) -> None:
    metadata = open_gguf(stories).metadata
    pieces_of, scores = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.scores"])
    ids = {piece: i for i, piece in enumerate(pieces_of)}
    pairs = [
        (-scores[i], ids[p[:k]], (p[:k], p[k:]))
        for p, i in ids.items()
        if i > 258
        for k in range(1, len(p))
        if p[:k] in ids and p[k:] in ids
    ]
    merges = [list(pair) for *_, pair in sorted(pairs)]
    (tmp_path / "tokenizer.json").write_text(sentencepiece_json(ids, merges, pieces_of[:3]))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    )
    fields = gguf_fields(tmp_path, len(pieces_of))
    ours, original = OurTokenizer.from_gguf(fields), OurTokenizer.from_gguf(metadata)
    text = "Once upon a time, there was a little girl named Lily. She loved 7 dogs — née Ü!"
    assert ours.encode(text) == original.encode(text)
    assert ours.encode(text)[0] == original.bos_id


def test_a_tokenizer_without_a_name_for_its_cuts_is_refused(tmp_path: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    write_tokenizer(tmp_path, {piece: i for i, piece in enumerate(letters)}, [], (r"[aeiou]",), eos="<end>")
    with pytest.raises(TokenizerError, match="no GGUF name stands for"):
        gguf_fields(tmp_path, 300)


def test_quantize_writes_what_its_name_says(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "q8.gguf"
    assert main(["quantize", str(stories), str(out), "--target", "q8_0"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: Q8_0, ")
    before, after = open_gguf(stories), open_gguf(out)
    assert after.metadata["general.file_type"] == 7 and list(after.tensors) == list(before.tensors)
    for name, made in after.tensors.items():
        form = "F32" if len(made.shape) < 2 else "F16" if made.shape[-1] % 32 else "Q8_0"
        assert made.format.name == form
        assert relative_error(made.dense(), before.tensors[name].dense()) <= 0.008
    same = {k for k, v in before.metadata.items() if after.metadata[k] == v}
    assert same >= before.metadata.keys() - {"general.file_type", "general.quantization_version"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{stories}", "{tmp}/x.gguf", "Q9_K"], 3, "cannot quantise to 'Q9_K'"),
        (["{stories}", "{tmp}/x.gguf"], 3, "Name the type once"),
        (["{tmp}/absent.gguf", "{tmp}/x.gguf", "Q8_0"], 2, "absent.gguf"),
        (["{tmp}/q4.gguf", "{tmp}/q4.gguf", "Q8_0"], 3, "the file that is read"),
        (["{tmp}/q4.gguf", "{tmp}/x.gguf", "Q8_0"], 3, "Q4_0 already"),
    ],
)
def test_quantize_refuses(
    words: list[str], code: int, said: str, stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(stories), str(tmp_path / "q4.gguf"), "Q4_0"]) == 0
    assert main(["quantize", *(w.format(stories=stories, tmp=tmp_path) for w in words)]) == code
    assert said in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["q4.gguf"]


def test_what_keeps_its_formats_keeps_the_name_of_its_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = {f"blk.{i}.{name}.weight": normal(8, 256) for i in range(8) for name in ("attn_q", "attn_v", "ffn_down")}
    write_gguf(tmp_path / "f32.gguf", {"general.architecture": "llama"}, [entry(*item) for item in base.items()])
    assert main(["quantize", str(tmp_path / "f32.gguf"), str(tmp_path / "q4.gguf"), "Q4_K_M"]) == 0
    assert main(["convert", str(tmp_path / "q4.gguf"), str(tmp_path / "same.gguf")]) == 0
    assert (tmp_path / "same.gguf").read_bytes() == (tmp_path / "q4.gguf").read_bytes()
    assert capsys.readouterr().out.count("Q4_K_M") == 2
    other = {"general.architecture": "llama", "general.file_type": 19}  # IQ2_XXS, with matrices in wider formats
    write_gguf(tmp_path / "iq2.gguf", other, [entry("blk.0.attn_v.weight", normal(8, 256), "Q4_K")])
    assert main(["convert", str(tmp_path / "iq2.gguf"), str(tmp_path / "same.gguf")]) == 0
    assert open_gguf(tmp_path / "same.gguf").metadata["general.file_type"] == 19


def test_quantize_copies_what_it_cannot_make(tmp_path: Path) -> None:
    """Integers, one number alone, and blocks that Tahr reads but does not write."""
    iq, i32 = FORMATS["IQ4_XS"], FORMATS["I32"]
    codes = np.arange(4 * iq.block_bytes, dtype=np.uint8)
    matrix, numbers = normal(4, 256), np.arange(8, dtype="<i4").view(np.uint8)
    entries = [
        entry("blk.0.attn_q.weight", matrix),
        Entry("blk.0.attn_k.bias", i32, (8,), lambda: [numbers]),
        Entry("scale", FORMATS["F32"], (), lambda: [np.zeros(4, np.uint8)]),
        Entry("blk.0.attn_v_norm.weight", iq, (4, 256), lambda: [codes]),
    ]
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, entries)
    assert main(["quantize", str(tmp_path / "m.gguf"), str(tmp_path / "q.gguf"), "Q8_0"]) == 0
    found = open_gguf(tmp_path / "q.gguf").tensors
    assert [t.format.name for t in found.values()] == ["Q8_0", "I32", "F32", "IQ4_XS"]
    assert (found["blk.0.attn_v_norm.weight"].data == codes).all()
    assert (found["blk.0.attn_k.bias"].data == numbers).all()


@pytest.mark.parametrize("form", ["gguf", "checkpoint"])
def test_a_file_that_changes_while_it_is_read_is_not_written(
    form: str, stories: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Half of the old file and half of a new one would look like a whole model."""
    source = tmp_path / "model"
    shutil.copytree(checkpoint, source)
    weights = source / "model.safetensors"
    if form == "gguf":
        source = weights = Path(shutil.copy(stories, tmp_path / "model.gguf"))

    class Meddler(hub.Progress):
        def advance(self, n_bytes: int) -> None:
            with weights.open("r+b") as file:  # in place, as a download that goes on does
                file.seek(-4, os.SEEK_END)
                file.write(bytes(4))

    with pytest.raises(WeightsChanged, match="changed while"):
        export(hub.resolve(str(source)), tmp_path / "out.gguf", "Q8_0", progress=Meddler())
    assert not list(tmp_path.glob("out*"))


def test_quantize_writes_where_a_link_points(stories: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "disk" / "model.gguf")
    for _ in range(2):  # the first time to a file that is not there yet
        assert main(["quantize", str(stories), str(link), "Q8_0"]) == 0
        assert link.is_symlink() and open_gguf(tmp_path / "disk" / "model.gguf").tensors


def test_a_link_that_leads_to_itself_is_refused(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(link)
    assert main(["quantize", str(stories), str(link), "Q8_0"]) == 3
    assert "leads to itself" in capsys.readouterr().err and link.is_symlink()


def test_quantize_does_not_take_the_place_of_a_device(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root would have replaced /dev/null by a GGUF; a pipe stands for it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["quantize", str(stories), str(pipe), "Q8_0"]) == 3
    assert "no plain file" in capsys.readouterr().err
    assert pipe.is_fifo() and [p.name for p in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("verb", ["convert", "quantize"])
def test_how_to_quantise_again_is_told_for_every_verb(
    verb: str, stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tahr convert` and `tahr merge` have no --requantize."""
    assert main(["quantize", str(stories), str(tmp_path / "q8.gguf"), "Q8_0"]) == 0
    words = ["--type", "Q4_0"] if verb == "convert" else ["Q4_0"]
    assert main([verb, str(tmp_path / "q8.gguf"), str(tmp_path / "q4.gguf"), *words]) == 3
    assert "use `tahr quantize --requantize`" in capsys.readouterr().err


def test_requantize_goes_on(stories: Path, tmp_path: Path) -> None:
    assert main(["quantize", str(stories), str(tmp_path / "q8.gguf"), "Q8_0"]) == 0
    assert main(["quantize", str(tmp_path / "q8.gguf"), str(tmp_path / "q5.gguf"), "Q5_1", "--requantize"]) == 0
    assert "Q5_1" in {t.format.name for t in open_gguf(tmp_path / "q5.gguf").tensors.values()}

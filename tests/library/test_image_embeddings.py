"""Images and texts through the library: forms of images, batches, what is refused, and the command line."""

import asyncio
import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

import backends_here
from encoder_files import wordpiece, write_json, write_sentence_model
from image_cases import png
from tahr import LLM, AsyncLLM
from tahr.cli.main import main
from tahr.errors import ConfigError, LoadError, TahrError, TokenizerError
from tahr.images.errors import BadImage
from tahr.library.embeddings import MAX_QUEUED
from tahr.text.tokens import tokenizer as text_tokenizer
from vision_cases import CASES
from vision_files import PROCESSORS, write_vision

PHOTO = png("RGB", 300, 500)
SMALL = png("RGBA", 31, 33)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vision(tmp_path_factory.mktemp("clip"), "clip")


@pytest.fixture(scope="module")
def llm(folder: str) -> LLM:
    return LLM(folder, n_threads=2)


def test_forms_of_an_image(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    image = Image.open(BytesIO(PHOTO))
    wanted = llm.embed(images=PHOTO)
    assert wanted.shape == (24,) and np.linalg.norm(wanted) == pytest.approx(1, abs=1e-6)
    for form in (path, str(path), bytearray(PHOTO), memoryview(PHOTO), image, np.array(image)):
        np.testing.assert_array_equal(llm.embed(images=form), wanted)
    np.testing.assert_array_equal(llm.embed(images=[path]), wanted[None])
    both = llm.embed("cat", images=PHOTO)
    np.testing.assert_array_equal(both, [llm.embed("cat"), wanted])
    np.testing.assert_array_equal(
        llm.embed(["cat", "dog"], images=[PHOTO, SMALL])[2:], llm.embed(images=[PHOTO, SMALL])
    )
    cut = llm.embed(images=PHOTO, dimensions=5, normalize=False)
    np.testing.assert_array_equal(cut, llm.embed(images=PHOTO, normalize=False)[:5])


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", CASES)
def test_every_family_from_its_files(case: str, name: str, tmp_path: Path) -> None:
    """Vectors of texts and of images have one width; a GPU computes in bf16."""
    folder = write_vision(tmp_path, case)
    found = LLM(folder, backend=name).embed(["cat", "dog cat"], images=[PHOTO, SMALL])
    oracle = LLM(folder, backend="reference").embed(["cat", "dog cat"], images=[PHOTO, SMALL])
    assert (found * oracle).sum(axis=1).min() > 1 - (5e-3 if name == "cuda" else 1e-5)
    assert np.abs(oracle[2] - oracle[3]).max() > 1e-3 and np.abs(oracle[0] - oracle[1]).max() > 1e-5


def test_many_images_beside_texts(llm: LLM) -> None:
    """More than are queued at once; equal ones are computed once."""
    sizes = [(20 + i % 7, 20 + i % 5) for i in range(MAX_QUEUED + 40)]
    images = [png("L", *size) for size in sizes]
    found = llm.embed(["cat"] * 40, images=images)
    np.testing.assert_array_equal(found[40:], llm.embed(images=images[:35] * 16)[: len(images)])
    assert llm.stats().pages_used == 0


def test_beside_replies_of_others(folder: str) -> None:
    async def both() -> np.ndarray:
        shared = AsyncLLM(folder, n_threads=2)
        try:
            large = asyncio.create_task(shared.embed(["cat dog"] * 900, images=[PHOTO] * 300))
            await asyncio.sleep(0.05)
            small = await shared.embed(images=SMALL)
            large.cancel()
            with pytest.raises(asyncio.CancelledError):
                await large
            await shared.embed("dog")
            assert shared.stats().pages_used == 0
            return small
        finally:
            await shared.close()

    np.testing.assert_array_equal(asyncio.run(both()), LLM(folder, n_threads=2).embed(images=SMALL))


@pytest.mark.parametrize(
    "image", [3, None, "nowhere.png", b"", b"hello", np.zeros((3, 3)), np.zeros((2, 2, 4), np.uint8)]
)
def test_what_is_no_image(llm: LLM, image: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        llm.embed(images=[image])
    assert str(raised.value).endswith(".")


def test_what_means_nothing_for_images(llm: LLM, tmp_path: Path) -> None:
    for options, words in (({"pooling": "mean"}, "pooling"), ({"dimensions": 25}, "24 numbers")):
        with pytest.raises(ConfigError, match=words):
            llm.embed(images=PHOTO, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing to embed"):
        llm.embed()
    with pytest.raises(ConfigError, match="embeds texts"):
        llm.generate("cat")
    with pytest.raises(ConfigError, match="embeds texts alone"):
        LLM(str(write_sentence_model(tmp_path)), n_threads=1).embed(images=PHOTO)


def test_limits_are_settings(folder: str) -> None:
    with pytest.raises(BadImage, match="300 x 500 pixels, but 1000 are allowed"):
        LLM(folder, n_threads=1, max_image_pixels=1000).embed(images=PHOTO)
    with pytest.raises(BadImage, match="bytes, but 100 are allowed"):
        LLM(folder, n_threads=1, max_image_bytes=100).embed(images=PHOTO)


def test_without_pillow(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert len(llm.embed("cat")) == 24
    with pytest.raises(ConfigError, match=r"pip install '.*\[images\]'"):
        llm.embed(images=PHOTO)


# ---- texts --------------------------------------------------------------------------------------------------------


def test_a_list_of_pieces_is_a_tokenizer(tmp_path: Path) -> None:
    llm = LLM(write_vision(tmp_path, "chinese_clip"), n_threads=1)
    for text in ("cat dog", "Zebra, dog!", "", "猫 cat"):
        assert llm.tokenizer.encode(text) == wordpiece().encode(text).ids
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(TokenizerError, match="lacks"):
        LLM(str(tmp_path), n_threads=1)


def test_words_as_clip_has_them() -> None:
    """Byte-level pieces of which the last of a word is marked, lower case, between two special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "ca", "cat</w>", "<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[("c", "a"), ("ca", "t</w>")],
            unk_token="<|endoftext|>",
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    split = pre_tokenizers.Split(words, behavior="removed", invert=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    first, last = ((name, vocab[name]) for name in pieces[-2:])
    made.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=False, trim_offsets=False)
    made.add_special_tokens(pieces[-2:])
    ours = text_tokenizer.Tokenizer.from_json(made.to_str())
    for text in ("a cat", "A photo of a CAT's 42 things!", "h\u00e9llo   w\u00f6rld\n x", "\u732b", ""):
        assert ours.encode(text) == made.encode(text).ids


def test_texts_are_filled_up(tmp_path: Path) -> None:
    """To the length that the model has seen, with tokens that count."""
    folder = write_vision(tmp_path, "siglip")
    llm = LLM(folder, n_threads=1)
    tokens = llm.encode_texts("a cat")[0]
    assert len(tokens) == 20 and tokens[-16:] == [0] * 16
    np.testing.assert_array_equal(llm.embed("a cat"), llm.embed("  A,\n 'CAT'!"))
    assert np.abs(llm.embed("a cat") - llm.embed([[*tokens[:-1], 4]])[0]).max() > 1e-4
    with pytest.raises(ConfigError, match="context holds 20"):
        llm.embed("cat " * 30)
    assert len(llm.encode_texts("cat " * 30, truncate=-1)[0]) == 20
    kept = {"pad_token": {"content": "[PAD]"}, "padding_side": "left", "tokenizer_class": "GemmaTokenizer"}
    write_json(tmp_path / "tokenizer_config.json", kept)
    other = LLM(folder, n_threads=1)
    assert other.encode_texts("A CAT")[0] == [0] * 16 + tokens[:4] and other.inputs.padding
    assert other.inputs.padding.cleaned("A, b") == "a, b"
    write_json(tmp_path / "tokenizer_config.json", {"pad_token": "<none>"})
    with pytest.raises(TokenizerError, match="fill texts up"):
        LLM(folder, n_threads=1)


# ---- files that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "changed", "words"),
    [
        ("clip", {"crop_size": 48}, "belong together"),
        ("clip", {"do_center_crop": False}, "belong together"),
        ("clip", {"image_processor_type": "ViTImageProcessor"}, "ViT"),
        ("clip", {"do_resize": False}, "leaves images"),
        ("siglip2", {"max_num_patches": 4000}, "belong together"),
        ("siglip2", {"patch_size": 16}, "cuts patches of 16"),
    ],
)
def test_a_processor_of_another_model(case: str, changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write_vision(tmp_path, case, preprocessor_config=PROCESSORS[case] | changed)
    with pytest.raises(LoadError, match=words):
        LLM(folder, n_threads=1)


ODD: list[Any] = [None, True, -1, 0, 7, 10**9, 2**70, 0.5, float("nan"), "x", [], {}, [[]]]
FIELDS = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "patch_size", "image_size"]


@pytest.mark.parametrize("name", [*FIELDS, "hidden_act", "layer_norm_eps", "num_channels", "num_patches"])
@pytest.mark.parametrize("case", ["clip", "siglip2"])
def test_odd_fields_of_configs(case: str, name: str, tmp_path: Path) -> None:
    folder = write_vision(tmp_path, case)
    plain = CASES[case]
    for odd in ODD:
        write_json(tmp_path / "config.json", plain | {"vision_config": plain["vision_config"] | {name: odd}})
        try:
            LLM(folder, backend="reference").embed(images=SMALL)
        except TahrError as error:
            assert str(error).endswith(".")


@pytest.mark.parametrize("case", ["clip", "siglip", "siglip2"])
def test_tensors_of_other_shapes(case: str, tmp_path: Path) -> None:
    from gguf_maker import safetensors
    from model_files import stored_hf
    from vision_cases import make_weights

    folder = write_vision(tmp_path, case)
    arrays = make_weights(case)
    for name in [name for name in arrays if name.startswith("vision_model") and ".layers." not in name]:
        for odd in (arrays[name].reshape(-1)[:-1], arrays[name][None], np.resize(arrays[name], (0,))):
            stored = arrays | {name: np.ascontiguousarray(odd)}
            (tmp_path / "model.safetensors").write_bytes(safetensors(stored_hf(stored)))
            with pytest.raises(LoadError) as raised:
                LLM(folder, backend="reference")
            assert str(raised.value).endswith(".")


# ---- the command line -----------------------------------------------------------------------------------------------


def test_images_on_the_command_line(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], llm: LLM) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    assert main(["embed", folder, "--text", "cat", "--image", str(path), "--image", str(path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("image") for line in lines] == [None, str(path), str(path)] and lines[0]["text"] == "cat"
    np.testing.assert_allclose(lines[1]["embedding"], llm.embed(images=PHOTO), atol=1e-6)
    assert main(["embed", folder, "--image", str(path), "--format", "raw"]) == 0
    assert len(capsys.readouterr().out.split()) == 24
    assert main(["embed", folder, "--image", str(tmp_path / "nowhere.png")]) == 3
    assert "cannot be read" in capsys.readouterr().err

"""Conversations with images, from files to replies: what the library takes, and what is refused."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chat_vision_cases import CASES, IMAGE
from chat_vision_files import BEST, GRID, PROCESSOR, SPLIT, SPLIT_18, SQUARES, write_chat_vision
from image_cases import pixels, png
from tahr import LLM, SamplingParams
from tahr.cli.chat.commands import obey
from tahr.cli.chat.conversation import Conversation
from tahr.cli.main import main
from tahr.cli.terminal.console import TextOutput
from tahr.errors import ConfigError, TahrError, TemplateError
from tahr.generation.pictures import MessageImage
from tahr.grammar import Grammar
from tahr.images.errors import BadImage, ImageTooLarge
from tahr.library.feeder import Feeder
from tahr.loading import kv_tiers

EIGHT = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
PHOTO = png("RGB", 300, 500)
OTHER = png("RGB", 640, 427)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_chat_vision(tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture(scope="module")
def llm(folder: str) -> LLM:
    return LLM(folder, context_size=256, page_size=8)


def asked(*parts: Any) -> list[dict[str, Any]]:
    """A message of texts and images."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


def shown(image: Any) -> dict[str, Any]:
    return {"type": "image", "image": image}


def said(llm: LLM, *parts: Any) -> list[int]:
    return list(llm.chat(asked(*parts), EIGHT).token_ids)


def test_every_form_is_the_same_image(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    opened = Image.open(BytesIO(PHOTO))
    forms = [PHOTO, bytearray(PHOTO), opened, np.array(opened), str(tmp_path / "photo.png"), tmp_path / "photo.png"]
    replies = [said(llm, "what ", shown(form), " cat") for form in forms]
    assert replies == replies[:1] * len(forms)
    assert said(llm, "what ", shown(OTHER), " cat") != replies[0]
    assert said(llm, "what ", " cat") != replies[0]


def test_tokens_of_an_image_count(llm: LLM) -> None:
    """300 by 500 pixels are brought to 24 by 40, each token is made of 8 by 8."""
    tokens = llm.encode_chat(asked("cat", shown(PHOTO)))
    assert tokens.count(IMAGE) == 3 * 5
    done = llm.chat(asked("cat", shown(PHOTO)), EIGHT)
    assert done.n_prompt_tokens == len(tokens)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_each_alone(case: str, tmp_path: Path) -> None:
    """Bit for bit, whatever shares the steps, in chunks of any size, and when the prefix is known."""
    folder = write_chat_vision(tmp_path, case)
    chats = [asked("cat ", shown(PHOTO)), asked(shown(OTHER), shown(PHOTO), " dog"), asked("a b c d"), asked("b")]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=2)
    fresh = LLM(folder, context_size=256, page_size=8, prefix_cache=False)
    alone = [fresh.chat(chat, params) for chat in chats]
    wanted = [(each.token_ids, each.logprobs) for each in alone]
    for options in ({}, {"prefill_chunk_size": 7}, {"prefill_chunk_size": 64}):
        batched = LLM(folder, context_size=256, page_size=8, **options)
        for _ in range(2):
            found = batched.chat(chats * 2, params, progress=False)
            assert [(each.token_ids, each.logprobs) for each in found] == wanted * 2


def test_an_image_is_computed_once(llm: LLM) -> None:
    slots = llm.engine.scheduler.rows
    assert slots
    said(llm, "a ", shown(PHOTO), " b")
    used = slots.slots.n_used
    said(llm, "c ", shown(PHOTO), " d")
    assert slots.slots.n_used == used and not slots.slots.n_held


def test_grammars_bind_what_is_said_of_images(folder: str, llm: LLM) -> None:
    pytest.importorskip("llguidance")
    letters = SamplingParams(max_tokens=8, temperature=0, grammar=Grammar("regex", "[a-e ]{20}"))
    chats = [asked("a ", shown(PHOTO)), asked(shown(OTHER), " b"), asked("cat")]
    found = [each.text for each in llm.chat(chats, letters, progress=False)]
    assert all(text and set(text) <= set("abcde ") for text in found)
    fresh = LLM(folder, context_size=256, page_size=8, prefix_cache=False)
    assert [fresh.chat(chat, letters).text for chat in chats] == found


def test_a_model_of_chats_embeds_no_images(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="This model embeds texts alone"):
        llm.embed(["cat"], images=[PHOTO])


def test_names_of_placeholders_are_text(llm: LLM) -> None:
    """Only what the template writes stands for an image."""
    text = "<|vision_start|><|image_pad|><|vision_end|>"
    tokens = llm.encode_chat(asked(text, shown(PHOTO)))
    assert tokens.count(IMAGE) == 15
    assert llm.encode_chat([{"role": "user", "content": text}]).count(IMAGE) == 0
    with pytest.raises(ConfigError, match="stands for an image"):
        llm.generate(text, EIGHT)
    with pytest.raises(ConfigError, match="stands for an image"):
        llm.generate([1, IMAGE, 2], EIGHT)


@pytest.mark.parametrize(
    ("case", "text", "n_rows"),
    [
        ("llava", "<image>", 9),
        ("llava_next", "<image>", 9 + 6 * (4 + 1)),
        ("internvl", "<img><IMG_CONTEXT></img>", 3 * 4),
        ("mistral3", "[IMG][IMG_BREAK][IMG_END]", 3 * 4),
        ("gemma3", "<start_of_image><image_soft_token><end_of_image>", 9),
        ("smolvlm", "<fake_token_around_image><global-img><image><row_1_col_1>", 5 * 4),
        ("idefics3", "<fake_token_around_image><row_1_col_1><image>", 5 * 4),
    ],
)
def test_names_of_what_stands_around_images_are_text(case: str, text: str, n_rows: int, tmp_path: Path) -> None:
    """The photo becomes a square, or two by two tiles and the whole of it."""
    llm = LLM(write_chat_vision(tmp_path, case), context_size=256, page_size=8)
    tokens = llm.encode_chat(asked(text, shown(PHOTO), text))
    assert tokens.count(IMAGE) == n_rows
    special = {token: tokens.count(token) for token in (*range(91, 96), IMAGE)}
    without = llm.encode_chat(asked("a", shown(PHOTO), "a"))
    assert special == {token: without.count(token) for token in special}
    assert llm.encode_chat([{"role": "user", "content": text}]).count(IMAGE) == 0
    for prompt in (text, [1, IMAGE, 2]):
        with pytest.raises(ConfigError, match="stands for an image"):
            llm.generate(prompt, EIGHT)


def test_limits_on_tiles(tmp_path: Path) -> None:
    """Fewer tiles, one at least; images of one size are as they are, or refused."""
    tiles = write_chat_vision(tmp_path / "tiles", "smolvlm")
    for most, n_rows in ((20, 20), (19, 4), (4, 4)):
        llm = LLM(tiles, context_size=256, page_size=8, image_max_tokens=most)
        assert llm.encode_chat(asked(shown(PHOTO))).count(IMAGE) == n_rows
        assert said(llm, shown(PHOTO), "cat")
    square = write_chat_vision(tmp_path / "square", "llava")
    pressed = write_chat_vision(tmp_path / "pressed", "gemma3")
    for folder, most in ((tiles, 3), (square, 8), (pressed, 8)):
        with pytest.raises(ConfigError, match="image_max_tokens"):
            LLM(folder, context_size=256, page_size=8, image_max_tokens=most)


@pytest.mark.parametrize(
    ("case", "n_rows"), [("llava", 9), ("gemma3", 9), ("smolvlm", 4), ("internvl", 4), ("llava_next", 10)]
)
def test_little_detail(case: str, n_rows: int, tmp_path: Path) -> None:
    """An image has few tokens, unless all of the model's have as many; the whole of it has a row behind its end where
    lines have one."""
    llm = LLM(write_chat_vision(tmp_path, case), context_size=256, page_size=8)
    image = shown(MessageImage(PHOTO, "the photo", 8))
    assert llm.encode_chat(asked(image)).count(IMAGE) == n_rows


def test_processors_that_belong_to_other_towers(tmp_path: Path) -> None:
    wrong = [("llava", SPLIT), ("smolvlm", SQUARES), ("smolvlm", SPLIT_18), ("llava", PROCESSOR), ("gemma3", SQUARES)]
    wrong += [("llava_next", GRID), ("internvl", BEST), ("internvl", SPLIT_18), ("llava", BEST)]
    for case, processor in wrong:
        folder = write_chat_vision(tmp_path / case, case, preprocessor_config=processor)
        with pytest.raises(TahrError, match="do not belong together"):
            LLM(folder, context_size=256, page_size=8)


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (b"", BadImage, r"messages\[0\]\.content\[1\]: The image is empty"),
        (PHOTO[:200], BadImage, r"messages\[0\]\.content\[1\]: The image is damaged"),
        (b"<svg/>", BadImage, "SVG"),
        ("/no/such/file.png", ConfigError, "cannot be read"),
        (7, ConfigError, "must be a path"),
    ],
)
def test_what_is_no_image(llm: LLM, image: Any, error: type[TahrError], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        said(llm, "cat", shown(image))
    assert str(raised.value).endswith(".")


def test_what_is_too_much(folder: str) -> None:
    small = LLM(folder, context_size=32, page_size=8, max_image_bytes=500_000)
    with pytest.raises(TahrError, match="context"):
        said(small, shown(PHOTO), shown(PHOTO), shown(PHOTO))
    big = BytesIO()
    pixels("RGB", 640, 427).save(big, "BMP")
    with pytest.raises(ImageTooLarge, match=r"messages\[0\]\.content\[0\]"):
        said(small, shown(big.getvalue()))
    few = LLM(folder, context_size=256, page_size=8, feature_cache_bytes=4 * 4 * 32 * 20)
    with pytest.raises(ConfigError, match="memory for 20"):
        said(few, shown(PHOTO), shown(OTHER))


def test_images_where_none_belong(llm: LLM, folder: str) -> None:
    with pytest.raises(ConfigError, match=r"messages\[0\] is a system message"):
        llm.chat([{"role": "system", "content": [shown(PHOTO)]}, *asked("cat")], EIGHT)
    with pytest.raises(ConfigError, match="has no image"):
        said(llm, {"type": "image"})
    blind = "{%- for message in messages %}{{ message.content if message.content is string else 'x' }}{% endfor %}"
    path = Path(folder) / "blind.jinja"
    path.write_text(blind)
    other = LLM(folder, context_size=256, page_size=8, chat_template=str(path))
    with pytest.raises(TemplateError, match="1 images, but the model's chat template wrote placeholders for 0"):
        said(other, shown(PHOTO))


def test_sessions_refuse_images(llm: LLM) -> None:
    tokens = llm.encode_chat(asked("cat", shown(PHOTO)))
    with pytest.raises(ConfigError, match="A session's text reads no rows of images"):
        Feeder(llm.engine).open(tokens, lambda _: None)


# ---- the command line ---------------------------------------------------------------------------------------------


def test_images_on_the_command_line(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    image = str(tmp_path / "photo.png")
    options = ["--temperature", "0", "-n", "8", "--ctx-size", "256", "--quiet", "--no-stats"]
    assert main(["run", folder, "--image", image, "-p", "cat", *options]) == 0
    shown_reply = capsys.readouterr().out
    llm = LLM(folder, context_size=256)
    assert shown_reply.strip() == llm.chat(asked(shown(PHOTO), "cat"), SamplingParams(max_tokens=8, temperature=0)).text
    assert main(["run", folder, "--image", str(tmp_path / "none.png"), "-p", "cat", *options]) != 0
    assert "cannot be read" in capsys.readouterr().err
    assert main(["run", folder, "--image", image, "--raw", "-p", "cat", *options]) != 0
    assert "--image" in capsys.readouterr().err


def test_an_image_in_the_chat(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    conversation = Conversation(llm, TextOutput(stats=False, thinking=False), EIGHT)
    obey(conversation, f"/image {tmp_path / 'photo.png'}")
    conversation.reply("cat")
    conversation.reply("dog")
    assert [type(each["content"]) for each in conversation.messages] == [list, str, str, str]
    obey(conversation, f"/save {tmp_path / 'chat.json'}")
    other = Conversation(llm, TextOutput(stats=False, thinking=False), EIGHT)
    obey(other, f"/load {tmp_path / 'chat.json'}")
    assert other.messages == conversation.messages
    with pytest.raises(ConfigError, match="has images"):
        obey(conversation, f"/save --kv {tmp_path / 'chat.json'}")


# ---- pages outside the pools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if case != "qwen3_5"])
def test_pages_that_come_back_from_files(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart: those of an image are its own, also where another of its size was there before."""
    monkeypatch.setattr(kv_tiers, "MOST_TOKENS", 16)  # of a file
    folder = write_chat_vision(tmp_path / "model", case)
    turned = BytesIO()
    Image.open(BytesIO(PHOTO)).rotate(180).save(turned, "PNG")
    chats = [asked("a b c d ", shown(image), " cat a b c d") for image in (PHOTO, turned.getvalue())]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=2)

    def said_by(**options: Any) -> list[Any]:
        with LLM(folder, context_size=256, page_size=8, **options) as llm:
            made = [llm.chat(chat, params) for chat in chats]
        cached.append([each.n_cached_tokens for each in made])
        return [(each.token_ids, each.logprobs) for each in made]

    cached: list[list[int]] = []
    wanted = said_by(prefix_cache=False)
    assert wanted[0] != wanted[1]
    for _ in range(2):
        assert said_by(kv_disk=str(tmp_path / "pages")) == wanted
    assert cached[1][0] == 0 and min(cached[2]) >= 16

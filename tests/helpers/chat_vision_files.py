"""Folders of tiny models that chat about images, with everything a released one has."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from chat_vision_cases import CASES, END, IMAGE, IN_LINES, IN_TILES, MARKS, QWEN, START, WITHOUT_MARKS, make_weights
from encoder_files import WORDS, write_json
from model_files import write_hf

SPECIAL = {88: "<|im_start|>", 89: "<|im_end|>", IMAGE: "<|image_pad|>", START: "<|vision_start|>"}
SPECIAL |= {END: "<|vision_end|>", 93: "<|video_pad|>"}
# The part of Qwen's template that writes images.
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}{%- for part in message.content %}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
# From 16 pixels on a side to 16 tokens of 8 by 8 pixels.
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
    "size": {"shortest_edge": 64, "longest_edge": 1024}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
# Of a family whose images have one size and no marks around them.
SQUARES = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 12},
    "crop_size": {"height": 12, "width": 12}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
# Of one that splits images into tiles of 24 pixels or, with one patch less and what is beside it, 18.
SPLIT = {
    "image_processor_type": "SmolVLMImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 24},
}  # fmt: skip
SPLIT_18 = {**SPLIT, "size": {"longest_edge": 36}, "max_image_size": {"longest_edge": 18}}
# Of one that makes squares of all images, whatever their proportions.
PRESSED = {
    "image_processor_type": "Gemma3ImageProcessor", "size": {"height": 24, "width": 24}, "image_seq_length": 9,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_pan_and_scan": None,
}  # fmt: skip
# Of one whose images keep their proportions and have at most so many pixels on a side.
SHRUNK = {
    "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 32},
    "patch_size": {"height": 4, "width": 4}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
PROCESSORS = {"llava": SQUARES, "smolvlm": SPLIT, "idefics3": SPLIT_18, "gemma3": PRESSED, "mistral3": SHRUNK}
# Of one that puts images into the middle of the best of some sizes, and of one that presses them into tiles.
BEST = {**SQUARES, "image_processor_type": "LlavaNextImageProcessor"}
BEST["image_grid_pinpoints"] = [[12, 24], [24, 12], [24, 24], [36, 12], [12, 36]]
GRID = {
    "image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": 16, "width": 16}, "max_patches": 4,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip
PROCESSORS |= {"llava_next": BEST, **dict.fromkeys(WITHOUT_MARKS, GRID)}
PROCESSORS["pixtral"] = {**SHRUNK, "size": {"longest_edge": 16}}
MARKED = "<|vision_start|><|image_pad|><|vision_end|>"
TILE_SPECIAL = {token: name for name, token in MARKS.items() if token >= IMAGE}
GEMMA = {**SPECIAL, IMAGE: "<image_soft_token>", START: "<start_of_image>", END: "<end_of_image>"}
LINES = {**SPECIAL, IMAGE: "[IMG]", START: "[IMG_BREAK]", END: "[IMG_END]"}
SPECIALS = {"llava": {**SPECIAL, IMAGE: "<image>"}, "gemma3": GEMMA}
SPECIALS |= {"llava_next": SPECIALS["llava"]}
BETWEEN = {**SPECIAL, IMAGE: "<IMG_CONTEXT>", START: "<img>", END: "</img>"}
SPECIALS |= dict.fromkeys(WITHOUT_MARKS, BETWEEN)
SPECIALS |= dict.fromkeys(IN_TILES, SPECIAL | TILE_SPECIAL) | dict.fromkeys(IN_LINES, LINES)


def write_chat_vision(folder: Path, case: str = "qwen3_vl", **files: Any) -> str:
    """The case's model with a tokenizer of words; `files` is what else lies there."""
    write_hf(folder, CASES[case], make_weights(case))
    write_json(folder / "preprocessor_config.json", PROCESSORS.get(case, PROCESSOR))
    special = SPECIALS.get(case, SPECIAL)
    words(special).save(str(folder / "tokenizer.json"))
    written = special[START] if case == "gemma3" else special[IMAGE]
    template = TEMPLATE if case in QWEN else TEMPLATE.replace(MARKED, written)
    config = {"chat_template": template, "eos_token": SPECIAL[89], "tokenizer_class": "Qwen2Tokenizer"}
    for name, content in ({"tokenizer_config": config} | files).items():
        write_json(folder / f"{name}.json", content)
    return str(folder)


def words(special: dict[int, str] = SPECIAL) -> Any:
    """A vocabulary of words and letters, the special tokens at the end."""
    vocabulary = {word: i for i, word in enumerate(WORDS[:88])}
    vocabulary |= {f"unused{i}": i for i in range(len(vocabulary), 88)} | {text: i for i, text in special.items()}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.add_special_tokens(list(special.values()))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made

"""Folders of tiny models that chat about images, with everything a released one has."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from chat_vision_cases import CASES, END, IMAGE, START, make_weights
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


def write_chat_vision(folder: Path, case: str = "qwen3_vl", **files: Any) -> str:
    """The case's model with a tokenizer of words; `files` is what else lies there."""
    write_hf(folder, CASES[case], make_weights(case))
    write_json(folder / "preprocessor_config.json", PROCESSOR)
    words().save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": SPECIAL[89], "tokenizer_class": "Qwen2Tokenizer"}
    for name, content in ({"tokenizer_config": config} | files).items():
        write_json(folder / f"{name}.json", content)
    return str(folder)


def words() -> Any:
    """A vocabulary of words and letters, the special tokens at the end."""
    vocabulary = {word: i for i, word in enumerate(WORDS[:88])}
    vocabulary |= {f"unused{i}": i for i in range(len(vocabulary), 88)} | {text: i for i, text in SPECIAL.items()}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.add_special_tokens(list(SPECIAL.values()))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made

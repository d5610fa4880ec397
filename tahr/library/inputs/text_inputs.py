"""Texts on their way into an encoder: prompts, pairs, and lengths that are cut only where that was asked for."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from functools import partial

from tahr.config import whole
from tahr.errors import ConfigError
from tahr.executor.protocol import DecoderFacts
from tahr.images.reading import ImageReader
from tahr.library.inputs.arguments import token_ids
from tahr.library.inputs.image_inputs import NO_IMAGES, ImageInput, ImageInputs, ImageRows
from tahr.library.inputs.prompt_images import PromptImages
from tahr.loading.text_padding import TextPadding
from tahr.models.config.record import ModelConfig
from tahr.models.parts.encoding import Encoding
from tahr.text.tokens.tokenizer import Tokenizer

TO_CONTEXT = -1  # truncate to what the model takes
# Requests' names of the two sides of a search, and the prompts that models have for them, the likeliest first.
INPUT_TYPES = {
    "query": ("query", "search_query", "retrieval_query", "Retrieval-query"),
    "document": ("document", "passage", "search_document", "retrieval_document", "Retrieval-document", "corpus"),
}


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Turns texts into the tokens that one model reads."""

    tokenizer: Tokenizer
    encoding: Encoding | None  # None: the model generates, and has no prompts
    context_size: int
    vector_width: int  # width of embeddings, before they are cut
    images: ImageInputs | None = None  # reader of images; None: the model reads texts alone
    pictures: PromptImages | None = None  # reader of images in conversations; None: there are none
    padding: TextPadding | None = None  # length of all texts; None: they are read as they are
    second_offset: int = 0  # added to the tokens of a pair's second text, see `ModelConfig.paired_types`

    @staticmethod
    def of(
        tokenizer: Tokenizer,
        config: ModelConfig,
        facts: DecoderFacts,
        context_size: int,
        reader: ImageReader | None = None,
        padding: TextPadding | None = None,
    ) -> "TextInputs":
        """For a loaded model, with the reader of its images."""
        chats = None
        if reader and config.chat_vision:
            encode = partial(tokenizer.encode, add_special=False)
            chats = PromptImages.of(reader, config.chat_vision, facts, encode)
        return TextInputs(
            tokenizer,
            facts.encoding,
            context_size,
            vector_width=facts.head_width or facts.width,
            images=ImageInputs(reader, config.vision) if reader and config.vision else None,
            pictures=chats,
            padding=padding,
            second_offset=config.n_vocab // 2 if config.paired_types else 0,
        )

    @property
    def reads_images(self) -> bool:
        """Whether it has any use for images."""
        return self.images is not None or self.pictures is not None

    def read_images(self, images: ListOf[ImageInput]) -> list[ImageRows]:
        """Images as the model's tower reads them; refused where it has none."""
        if self.images is None:
            raise ConfigError(NO_IMAGES)
        return [self.images.read(image) for image in images]

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a cross-encoder."""
        return self.encoding is not None and self.encoding.scores_pairs

    def prompt(self, name: str | None = None) -> str:
        """The prompt of that name, or the model's default; refused if it has none of that name."""
        prompts = self.encoding.prompts if self.encoding else {}
        if name is None:
            return prompts.get(self.encoding.default_prompt, "") if self.encoding else ""
        if name not in prompts:
            known = ", ".join(prompts) or "none"
            raise ConfigError(f"This model has no prompt {name[:80]!r}: it has {known}. Choose one, or leave it out.")
        return prompts[name]

    def prompt_for(self, input_type: str) -> str:
        """The prompt for queries or for documents; a model without one takes both as they are."""
        if input_type not in INPUT_TYPES:
            raise ConfigError(f"input_type is {input_type[:80]!r}, but it must be one of {', '.join(INPUT_TYPES)}.")
        prompts = self.encoding.prompts if self.encoding else {}
        return next((prompts[name] for name in INPUT_TYPES[input_type] if name in prompts), "")

    def encode(
        self,
        text: str | ListOf[int],
        prompt: str = "",
        truncate: int | None = None,
    ) -> list[int]:
        """The tokens of a text, or those given; with `truncate`, its first so many, the last ones closing it."""
        tokens = self._cut(text, prompt, self.limit(truncate))
        return self.padding.padded(tokens) if self.padding else tokens

    def _cut(self, text: str | ListOf[int], prompt: str, limit: int | None) -> list[int]:
        if isinstance(text, str):
            text = self.padding.cleaned(prompt + text) if self.padding else prompt + text
            text = self.tokenizer.encode(text if limit is None else self.tokenizer.beginning(text, limit))
        tokens = token_ids(text)
        if limit is None or len(tokens) <= limit:
            return tokens
        n_closing = self._n_closing(tokens)
        return tokens[: limit - n_closing] + tokens[len(tokens) - n_closing :]

    def _n_closing(self, tokens: list[int]) -> int:
        """How many of the last tokens only close the text."""
        n = len(self.tokenizer.suffix)
        return n if n and tokens[-n:] == list(self.tokenizer.suffix) else 0

    def encode_first(self, first: str, truncate: int | None = None) -> list[int]:
        """How pairs with this first text begin. It is never cut: one that leaves no tokens for a second is refused."""
        tokenizer = self.tokenizer
        limit = self.limit(truncate) or self.context_size
        opening = [*tokenizer.prefix, *tokenizer.encode(first, add_special=False), *tokenizer.between]
        if len(opening) + len(tokenizer.suffix) >= limit:
            raise ConfigError(f"The query alone has {len(opening)} tokens, but a pair may have {limit}: shorten it.")
        return opening

    def encode_pair(self, opening: list[int], second: str, truncate: int | None = None) -> list[int]:
        """The tokens of two texts as a cross-encoder reads them; with `truncate`, the second is cut."""
        suffix = self.tokenizer.suffix
        limit = self.limit(truncate)
        if limit is not None:
            second = self.tokenizer.beginning(second, limit)
        body = self.tokenizer.encode(second, add_special=False)
        if limit is not None:
            body = body[: limit - len(opening) - len(suffix)]
        return opening + [token + self.second_offset for token in (*body, *suffix)]

    def limit(self, truncate: int | None) -> int | None:
        """How many tokens are kept; None: all."""
        if truncate is None:
            return None
        n_ends = len(self.tokenizer.prefix) + len(self.tokenizer.suffix)
        if truncate != TO_CONTEXT and not whole(n_ends + 1, self.context_size).holds(truncate):
            raise ConfigError(
                f"Texts are to be truncated to {truncate!r} tokens, but it must be -1 (what the model takes) or "
                f"{n_ends + 1} to {self.context_size}."
            )
        return self.context_size if truncate == TO_CONTEXT else truncate

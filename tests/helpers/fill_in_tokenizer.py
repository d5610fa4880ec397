"""A tokenizer with tokens for filling in."""

from scripted_engine import ByteTokenizer

FILL_IN = {300: "<|fim_prefix|>", 301: "<|fim_suffix|>", 302: "<|fim_middle|>"}


class FillInTokenizer(ByteTokenizer):
    """With tokens for filling in."""

    n_vocab = 303

    def split_special(self, text: str) -> list[str | int]:
        found = [token for token, name in FILL_IN.items() if name == text]
        return [*found] or super().split_special(text)

    def piece(self, token: int) -> str:
        return FILL_IN.get(token) or super().piece(token)

"""How byte-level vocabularies cut text into words before merging: one row per `tokenizer.ggml.pre` of released models.

A row holds regular expressions applied in turn, each to the pieces the one before left; matches and the gaps between
them both become pieces. The expressions are facts of the vocabularies: a model trained on other cuts sees other tokens.
"""

from dataclasses import dataclass

# Words that start many of the expressions below: English contractions and what follows a run of letters.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _gpt4(digits: str, *, letters: str = r"\p{L}+", other: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """The shape most vocabularies since 2023 share; they differ in how many digits stay together."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{other}|{_SPACES}"


def _cased(digits: str, *, contractions: str, exclude: str = "", other: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*") -> str:
    """The o200k shape: a word changes where lower case meets upper case."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclude}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclude}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}{upper}*{lower}+{contractions}|{lead}{upper}+{lower}*{contractions}"
    return rf"{words}|{digits}|{other}|{_SPACES}"


_LLAMA3 = _gpt4(r"\p{N}{1,3}")
_QWEN2 = _gpt4(r"\p{N}")
_QWEN35 = _gpt4(r"\p{N}", letters=r"[\p{L}\p{M}]+", other=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_GPT4O = _cased(r"\p{N}{1,3}", contractions=f"{_CONTRACTIONS}?")
_TEKKEN = _cased(r"\p{N}", contractions="")
_YOUTU = _cased(r"\p{N}", contractions=f"{_CONTRACTIONS}?")
_KIMI = r"\p{Han}+|" + _cased(
    r"\p{N}{1,3}", contractions=f"{_CONTRACTIONS}?", exclude=r"&&[^\p{Han}]", other=r" ?[^\s\p{L}\p{N}]+[\r\n]*"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEEPSEEK3_WORDS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK3_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_DEEPSEEK3_ASIAN = r"[一-龥぀-ゟ゠-ヿ]+"
_SPARK = rf"{_DEEPSEEK3_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"  # every line break alone
_DEEPSEEK_HAN = r"[一-龥ࠀ-一가-퟿]+"
# Letters of the scripts with upper and lower case, as the first DeepSeek vocabularies listed them.
_DEEPSEEK_CASED = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}"
    r"ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DIGITS_FROM_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"  # 12345 -> 12 345
_AFMOE_ASIAN = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_JAIS2 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """The word rules of one vocabulary, and how it is encoded besides."""

    splits: tuple[str, ...]
    whole_words: bool = False  # a word that is itself a token skips the merges
    add_bos: bool = False  # default of a file that is silent
    cuts_at_words: bool = True  # a space between two words, and the beginning of a line, always begin a piece


_DEEPSEEK3_ROW = PreTokenizer((r"\p{N}{1,3}", _DEEPSEEK3_ASIAN, _DEEPSEEK3))
_GPT2_ROW = PreTokenizer((_GPT2,))
_DIGIT_ROW = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_ROW = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_ROW = PreTokenizer((_QWEN2,))
_BAILING_ROW = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)

_ROWS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
    "modern-bert mpt olmo jais trillion granite-docling exaone4": _GPT2_ROW,
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _DIGIT_ROW,
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _LLAMA3_ROW,
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), whole_words=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": _QWEN2_ROW,
    "qwen35": PreTokenizer((_QWEN35,)),
    "ufakzeka": PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTIONS}|"),)),  # Turkish suffixes follow apostrophes
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), whole_words=True),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "tiny_aya cohere2moe": PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "youtu": PreTokenizer(
        (r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", _YOUTU), whole_words=True
    ),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", _DEEPSEEK_CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _DEEPSEEK_HAN, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _DEEPSEEK3_ROW,
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _DEEPSEEK3_ASIAN, _SPARK, r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "poro-chat bloom gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "bailingmoe bailingmoe2 llada-moe": _BAILING_ROW,
    "seed-coder": PreTokenizer((_gpt4(r"\p{N}{1}", other=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), cuts_at_words=False),
    "afmoe": PreTokenizer((_DIGITS_FROM_RIGHT, _AFMOE_ASIAN, _DEEPSEEK3)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        cuts_at_words=False,
    ),
    "jais-2": PreTokenizer((_JAIS2,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), whole_words=True),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
}

# Vocabularies of files that say gpt2 but merge whole lines in SentencePiece's alphabet.
WHOLE_LINES = frozenset(("gemma4", "granite-embed-multi-311m", "sarvam-moe"))
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: row for names, row in _ROWS.items() for name in names.split()}

"""The way from a text and options to the parts that are spoken one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tahr.engine.sequences.frames import CodeSampling, FrameSampling
from tahr.errors import ConfigError
from tahr.loading.sound.speaking import SpeakingParts
from tahr.speech.codec.tensors import Floats
from tahr.speech.speaking.guard import most_frames
from tahr.speech.speaking.options import SpeakOptions
from tahr.speech.speaking.prompt import Encode, SpokenPrompt, Wanted, spoken_prompt
from tahr.speech.speaking.sentences import parts_of
from tahr.speech.speaking.tokens import VoiceTokens
from tahr.text.tokens.tokenizer import Tokenizer

MOST_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class SpokenPart:
    """A part of a text, as the engine is asked for it."""

    prompt: SpokenPrompt
    most_frames: int
    padding: int  # token of text beside frames behind the text


@dataclass(frozen=True, slots=True)
class SpeakPlan:
    """All parts, how frames are drawn, and the vector of the voice, if it has one."""

    parts: Sequence[SpokenPart]
    sampling: FrameSampling
    vector: Floats | None


def plan_speech(
    parts: SpeakingParts, tokenizer: Tokenizer, text: str, options: SpeakOptions, vector: Floats | None
) -> SpeakPlan:
    """The parts of a text; wrong texts and options are refused here."""
    tokens = parts.tokens
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("There is nothing to say: give a text.")
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"The text has {len(text)} characters; at most {MOST_CHARACTERS} are spoken at once: cut it.")
    wanted = Wanted(
        text="",
        language=language_of(tokens, options.language),
        speaker=speaker_of(tokens, options.voice, vector is not None),
        instructions=instructions_of(tokens, options.instructions.strip()),
        has_vector=vector is not None,
        is_streaming=options.is_streaming,
    )
    encode = partial(tokenizer.encode, add_special=False, parse_special=False)
    # A voice that is made up is another one each time.
    texts = parts_of(text) if wanted.speaker or vector is not None else [text.strip()]
    made = [part_of(replace(wanted, text=each), tokens, encode, options) for each in texts]
    return SpeakPlan(made, sampling_of(parts, options), vector)


def part_of(wanted: Wanted, tokens: VoiceTokens, encode: Encode, options: SpeakOptions) -> SpokenPart:
    prompt = spoken_prompt(wanted, tokens, encode)
    n_most = min(options.max_frames, most_frames(len(prompt.tokens) + len(prompt.later)))
    return SpokenPart(prompt, n_most, tokens.text.pad)


def language_of(tokens: VoiceTokens, name: str) -> str:
    found = CODES.get(name.lower(), name.lower())
    if found in ("", "auto"):
        return ""
    if found not in tokens.languages:
        known = ", ".join(sorted(each for each in tokens.languages if "dialect" not in each))
        raise ConfigError(f"The model does not speak {name[:40]!r}; it speaks {known}.")
    return found


CODES = {
    "zh": "chinese", "en": "english", "ja": "japanese", "ko": "korean", "de": "german", "fr": "french",
    "ru": "russian", "pt": "portuguese", "es": "spanish", "it": "italian",
}  # fmt: skip


def speaker_of(tokens: VoiceTokens, name: str, has_vector: bool) -> str:
    """The name of a speaker; empty where voices have none."""
    if tokens.kind == "custom_voice":
        known = ", ".join(tokens.speakers)
        if has_vector:
            raise ConfigError(f"This model has voices of its own and takes no recording of one: choose of {known}.")
        found = name.lower() or next(iter(tokens.speakers), "")
        if found not in tokens.speakers:
            raise ConfigError(f"The model has no voice {name[:40]!r}; it has {known}.")
        return found
    if name:
        how = "describe one with instructions" if tokens.kind == "voice_design" else "give a recording of one"
        raise ConfigError(f"This model has no voices with names: {how}, or load a CustomVoice model.")
    if has_vector and tokens.kind == "voice_design":
        raise ConfigError("This model makes voices from descriptions and takes no recording: load a Base model.")
    return ""


def instructions_of(tokens: VoiceTokens, instructions: str) -> str:
    if instructions and tokens.kind == "base":
        raise ConfigError("This model copies voices and follows no instructions: leave them out.")
    if instructions and not tokens.follows_instructions:
        raise ConfigError("This model is too small to follow instructions: leave them out, or load the 1.7B one.")
    if not instructions and tokens.kind == "voice_design":
        raise ConfigError("This model makes a voice from a description: give one as instructions.")
    return instructions


def sampling_of(parts: SpeakingParts, options: SpeakOptions) -> FrameSampling:
    """The options over what the model's files say."""
    saved = parts.sampling
    first = CodeSampling(
        temperature=given(options.temperature, saved, "do_sample", "temperature", 0.9),
        top_k=int(given(options.top_k, saved, "", "top_k", 50)),
        top_p=given(options.top_p, saved, "", "top_p", 1.0),
    )
    others = CodeSampling(
        temperature=given(options.temperature, saved, "subtalker_dosample", "subtalker_temperature", 0.9),
        top_k=int(given(options.top_k, saved, "", "subtalker_top_k", 50)),
        top_p=given(options.top_p, saved, "", "subtalker_top_p", 1.0),
    )
    penalty = given(options.repetition_penalty, saved, "", "repetition_penalty", 1.05)
    return FrameSampling(first, others, penalty, seed=options.seed)


def given(value: float | None, saved: Mapping[str, Any], switch: str, name: str, default: float) -> float:
    """An option, or what the files say if that is a number; 0 where they draw nothing by chance."""
    if value is not None:
        return value
    if switch and saved.get(switch) is False:
        return 0.0
    found = saved.get(name)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= 1 << 16:
        return float(found)
    return default

"""`tahr tts`: a text as sound."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tahr.cli.bench.bench_shapes import positive
from tahr.cli.settings.options import within_cores
from tahr.cli.terminal.console import note
from tahr.cli.terminal.sound_progress import SoundProgress
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.speech.speaking.encoding import FORMS, SoundFile, sound_file, wav_head
from tahr.speech.speaking.options import MOST_FRAMES, SpeakOptions

if TYPE_CHECKING:
    from tahr.library.speaking.speech import Speech

HELP = "speak a text"
STDIN = "-"
MOST_TEXT_BYTES = 4 << 20

EXAMPLES = """\
examples:
  tahr tts qwen3-tts "Good morning." -o morning.wav
  tahr tts qwen3-tts "Guten Morgen." -l german --voice ryan -o morgen.wav
  tahr tts qwen3-tts:design "Once upon a time" --instruct "an old man, slowly" -o story.wav
  tahr tts qwen3-tts:clone "This is my voice." --ref-audio me.wav -o copy.mp3     MP3 needs tahr[audio]
  tahr tts qwen3-tts - -o - < book.txt | aplay                                    as it is made
  tahr list --voices qwen3-tts"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which text, which voice."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="which model: a Qwen3-TTS")
    parser.add_argument("text", metavar="TEXT", help="the text; - is standard input")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to: .wav, .pcm, .mp3, .opus, .flac or .aac; - is"
        " standard output, as WAV",
    )  # fmt: skip
    parser.add_argument("-l", "--language", default="", metavar="X", help="language (default: the model decides)")
    parser.add_argument("--voice", default="", metavar="X", help="a voice of the model; `tahr list --voices MODEL`")
    parser.add_argument("--instruct", default="", metavar="TEXT", help="how to speak, or the voice to design")
    parser.add_argument("--ref-audio", metavar="FILE", help="a recording whose voice is copied (Base models)")
    parser.add_argument("--ref-text", metavar="TEXT", help="not there yet: what is said in that recording")
    parser.add_argument("--streaming", action="store_true", help="the model reads the text word by word as it speaks")
    parser.add_argument("--chunk-frames", type=positive, default=10, metavar="N", help="frames made at once")
    parser.add_argument("--max-frames", type=positive, default=MOST_FRAMES, metavar="N", help="most frames of a part")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed speaks the same way")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 takes the likeliest codes")
    where = parser.add_argument_group("how it runs")
    where.add_argument("-t", "--threads", type=positive, metavar="N", help="CPU threads (default: one per core)")
    where.add_argument("--backend", default="auto", metavar="X", help="where to run; `tahr devices` lists them")
    where.add_argument("--quantize", metavar="TYPE", help="quantise a float checkpoint at load, such as q8_0")


def run(args: argparse.Namespace) -> int:
    if args.ref_text is not None:
        raise ConfigError("--ref-text is not there yet: leave it out, and the voice alone is copied.")
    form = form_of(args.output)
    options = SpeakOptions(
        voice=args.voice,
        language=args.language,
        instructions=args.instruct,
        is_streaming=args.streaming,
        chunk_frames=args.chunk_frames,
        max_frames=args.max_frames,
        seed=args.seed,
        temperature=args.temperature,
    )
    text = text_of(args.text)
    config = EngineConfig(backend=args.backend, n_threads=args.threads, quantize=args.quantize, max_batch_size=1)

    from tahr import LLM
    from tahr.hub.progress import Progress

    with (
        LLM(args.model, config=within_cores(config, note), progress=Progress(sys.stderr)) as llm,
        llm.speak(text, options, voice_of=args.ref_audio) as speech,
        opened(args.output) as out,
    ):
        write(speech, sound_file(form, speech.sample_rate), out, form)
    return 0


def form_of(path: str) -> str:
    """The form of sound that a file's name asks for."""
    form = "wav" if path == STDIN else Path(path).suffix.removeprefix(".").lower()
    form = {"ogg": "opus", "raw": "pcm"}.get(form, form)
    if form not in FORMS:
        raise ConfigError(f"{path} ends in no form of sound that Tahr writes: name it .{', .'.join(FORMS)}.")
    return form


def text_of(given: str) -> str:
    """The text, or what stands on standard input."""
    if given != STDIN:
        return given
    data = sys.stdin.buffer.read(MOST_TEXT_BYTES + 1)
    if len(data) > MOST_TEXT_BYTES:
        raise ConfigError(f"Standard input has more than {MOST_TEXT_BYTES} bytes: speak it in parts.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("Standard input is no text in UTF-8: convert it.") from error


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file to write, which goes again if nothing whole comes of it."""
    if path == STDIN:
        yield sys.stdout.buffer
        return
    try:
        with Path(path).open("wb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another file.") from error
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def write(speech: "Speech", made: SoundFile, out: BinaryIO, form: str) -> None:
    """Write sound as it is made; a WAV file that is no pipe gets its length at the end."""
    progress = SoundProgress(sys.stderr, "spoken")
    n = 0
    out.write(made.begin())
    for samples in speech:
        n += len(samples)
        out.write(made.add(samples))
        out.flush()
        progress.show(n / speech.sample_rate)
    out.write(made.finish())
    if form == "wav" and out.seekable() and out is not sys.stdout.buffer:
        out.seek(0)
        out.write(wav_head(speech.sample_rate, 2 * n))
    progress.wipe()
    note(progress.summary(n / speech.sample_rate))

"""`tahr transcribe`: what is said in recordings."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tahr.cli.bench.bench_shapes import positive
from tahr.cli.settings.options import within_cores
from tahr.cli.terminal.console import CONTROL, note
from tahr.cli.terminal.sound_progress import SoundProgress
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.decoding.results import SpokenSegment
from tahr.speech.formats import (
    FORMATS,
    VTT_HEAD,
    by_word,
    srt_cue,
    text_of,
    verbose_object,
    vtt_cue,
    words_object,
)
from tahr.speech.languages import code_of

if TYPE_CHECKING:
    from tahr import LLM
    from tahr.library.transcribing.transcription import Transcription

HELP = "write down what is said in recordings"
STDIN = "-"
SUBTITLES = ("srt", "vtt")
WITH_WORDS = (*SUBTITLES, "verbose_json")
STREAMED = {"text": lambda s: s.text.strip() + "\n", "srt": srt_cue, "vtt": vtt_cue}
N_SEATS = 2  # recordings whose rows are in memory at once: a window's, and the next one's

EXAMPLES = """\
examples:
  tahr transcribe ./whisper-base meeting.wav
  tahr transcribe ./whisper-base talk.mp3 -f srt > talk.srt         other files than WAV need tahr[audio]
  tahr transcribe ./whisper-base talk.wav -f vtt --words            a cue for each word
  tahr transcribe ./whisper-base -l de --task translate rede.m4a
  ffmpeg -i film.mkv -f wav - | tahr transcribe ./whisper-base -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, which recordings, which form."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="which model: a Whisper")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording; - is standard input")
    parser.add_argument("-l", "--language", metavar="X", help="language, such as en or german (default: what is heard)")
    parser.add_argument("--task", choices=TranscribeOptions.TASKS, default="transcribe", help="translate: into English")
    parser.add_argument("-f", "--format", choices=FORMATS, default="text", help="text, JSON or subtitles")
    parser.add_argument("--beam", type=positive, default=5, metavar="N", help="texts followed at once (default: 5)")
    parser.add_argument("--patience", type=float, default=1.0, metavar="X", help="share of beams that must have ended")
    parser.add_argument("--best-of", type=positive, default=5, metavar="N", help="texts drawn above temperature 0")
    parser.add_argument("--temperature", type=float, metavar="X", help="one temperature in place of a ladder from 0")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="text as if said before: names, spelling")
    parser.add_argument("--hotwords", default="", metavar="TEXT", help="words that are likely in all of it")
    parser.add_argument("--words", action="store_true", help="times of words: a cue each, or in verbose_json")
    parser.add_argument(
        "--hallucination-silence-threshold",
        type=float,
        metavar="S",
        help="with --words: drop words that seem made up within so many seconds of silence",
    )
    parser.add_argument("--no-vad", action="store_true", help="hear windows of noise and silence too")
    parser.add_argument("--no-previous", action="store_true", help="windows do not read the text before them")
    where = parser.add_argument_group("how it runs")
    where.add_argument("-t", "--threads", type=positive, metavar="N", help="CPU threads (default: one per core)")
    where.add_argument("--backend", default="auto", metavar="X", help="where to run; `tahr devices` lists them")
    where.add_argument("--quantize", metavar="TYPE", help="quantise a float checkpoint at load, such as q8_0")


def run(args: argparse.Namespace) -> int:
    if args.format in SUBTITLES and len(args.files) > 1:
        raise ConfigError("Subtitles are those of one recording: give one file.")
    if args.words and args.format not in WITH_WORDS:
        raise ConfigError(f"Times of words have no place in {args.format}: choose -f {', '.join(WITH_WORDS)}.")
    options = options_of(args)
    config = EngineConfig(
        backend=args.backend,
        n_threads=args.threads,
        quantize=args.quantize,
        max_batch_size=max(N_SEATS, options.beams, options.best_of),
    )

    from tahr import LLM
    from tahr.hub.progress import Progress

    with LLM(args.model, config=within_cores(config, note), progress=Progress(sys.stderr)) as llm:
        for path in args.files:
            write(llm, path, args.format, options)
    return 0


def options_of(args: argparse.Namespace) -> TranscribeOptions:
    given: dict[str, Any] = {} if args.temperature is None else {"temperatures": (args.temperature,)}
    return TranscribeOptions(
        language=args.language and code_of(args.language),
        task=args.task,
        beams=args.beam,
        patience=args.patience,
        best_of=args.best_of,
        prompt=args.prompt,
        hotwords=args.hotwords,
        has_words=args.words,
        most_silence_s=args.hallucination_silence_threshold,
        passes_silence=not args.no_vad,
        uses_previous=not args.no_previous,
        **given,
    )


def write(llm: "LLM", path: str, form: str, options: TranscribeOptions) -> None:
    """Write down what is said in one recording; text and subtitles as they are found."""
    progress = SoundProgress(sys.stderr, shown=not sys.stdout.isatty())
    with opened(llm, path, options) as found:
        segments = followed(found, progress)
        if form in STREAMED:
            sys.stdout.write(VTT_HEAD if form == "vtt" else "")
            for segment in by_word(segments) if options.has_words else segments:
                sys.stdout.write(STREAMED[form](segment).translate(CONTROL if sys.stdout.isatty() else {}))
                sys.stdout.flush()
        else:
            made = whole(found, list(segments), form, options)
            sys.stdout.write(json.dumps(made, ensure_ascii=False) + "\n")
    note(progress.summary(found.seconds))


def followed(found: "Transcription", progress: SoundProgress) -> Iterator[SpokenSegment]:
    """The segments, while a terminal shows how far they are."""
    for segment in found:
        progress.show(segment.end)
        yield segment
    progress.wipe()


def opened(llm: "LLM", path: str, options: TranscribeOptions) -> "Transcription":
    return llm.transcribe(sys.stdin.buffer if path == STDIN else path, options)


def whole(
    found: "Transcription", segments: list[SpokenSegment], form: str, options: TranscribeOptions
) -> dict[str, Any]:
    if form == "json":
        return {"text": text_of(segments)}
    made = verbose_object(segments, found.language, found.seconds, options.task)
    return {**made, **words_object(segments)} if options.has_words else made

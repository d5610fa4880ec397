"""A recording that an engine writes down: the way through it waits for windows, and for texts of them."""

from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows, RowSource, rows_of_input
from tahr.kv.prefix import HASH_BYTES
from tahr.library.transcribing.beams import BeamTexts
from tahr.library.transcribing.looking import LookedAt
from tahr.library.transcribing.searches import IndependentTexts, NextRow, WindowTask
from tahr.models.config.record import ModelConfig
from tahr.speech.audio.windows import SoundReader, SoundWindow
from tahr.speech.decoding.results import Heard, SpokenSegment
from tahr.speech.decoding.transcript import Transcript
from tahr.speech.decoding.wanted import HostWork, LookAt, NextLogits, WindowAt, WriteText

Found = Heard | SpokenSegment


class TranscriptionJob:
    """Runs on the thread that steps the engine: `advance` after each step. What is found is taken from `found`.

    Where `host_work` is set, others call it on any thread, with the reader of the recording, and `go_on` with its
    result.
    """

    def __init__(self, engine: Engine, config: ModelConfig, transcript: Transcript, salt: str = ""):
        self.found: deque[Found] = deque()
        self.finished = False
        self.host_work: Callable[[SoundReader], object] | None = None
        self.n_windows = 0
        self.n_fallbacks = 0
        self._engine = engine
        self._config = config
        self._transcript = transcript
        self._salt = salt  # windows are shared with those of the same salt only
        self._run = transcript.run()
        self._task: WindowTask | None = None
        self._rows: tuple[SoundWindow, PromptRows] | None = None  # the last window, and its rows

    def start(self) -> None:
        """Wanted for the first window."""
        self.go_on(None)

    def advance(self) -> None:
        """Go on with what the last step brought."""
        while self._task and self._task.advance():
            result = self._task.result()
            self._task.close()
            self._task = None
            self.go_on(result)

    def go_on(self, result: object) -> None:
        """Give what was wanted last."""
        self.host_work = None
        while not self.finished:
            try:
                found = self._run.send(result)
            except StopIteration:
                self.finished = True
                return
            if isinstance(found, Heard | SpokenSegment):
                self.found.append(found)
                result = None
            elif isinstance(found, WindowAt):
                self.host_work = partial(read_window, found.frame)
                return
            elif isinstance(found, HostWork):
                self.host_work = partial(without_reader, found.work)
                return
            else:
                self._task = self._open(found)
                return

    def close(self) -> None:
        """Stop, and free what it holds."""
        self.finished = True
        self.host_work = None
        self._run.close()
        if self._task:
            self._task.close()
            self._task = None

    def _open(self, wanted: NextLogits | LookAt | WriteText) -> WindowTask:
        rows = self._rows_of(wanted.window)
        if isinstance(wanted, LookAt):
            return LookedAt(self._engine, rows, wanted, self._config, self._transcript.tokens)
        if isinstance(wanted, NextLogits):
            return NextRow(self._engine, rows, wanted.tokens)
        self.n_fallbacks += wanted.temperature > 0
        made = BeamTexts if wanted.n_texts > 1 and not wanted.temperature else IndependentTexts
        return made(self._engine, rows, wanted, self._transcript.tokens, self._transcript.decode)

    def _rows_of(self, window: SoundWindow) -> PromptRows:
        if self._rows is None or self._rows[0] is not window:
            self.n_windows += 1
            digest = blake2b(window.rows.data, digest_size=HASH_BYTES).digest()
            self._rows = window, rows_of_input(digest, RowSource(window.rows)).salted(self._salt)
        return self._rows[1]


def read_window(frame: int, reader: SoundReader) -> object:
    return reader.read(frame)


def without_reader(work: Callable[[], object], _: SoundReader) -> object:
    return work()

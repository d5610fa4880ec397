"""Frames as sound, piece by piece, on any thread."""

from tahr.library.speaking.job import FramePiece
from tahr.speech.codec.decoder import CodecDecoder, CodecStream
from tahr.speech.codec.tensors import Floats
from tahr.speech.speaking.guard import SilenceGuard


class SoundMaker:
    """The codec of one text: every part begins anew."""

    def __init__(self, codec: CodecDecoder):
        self.sample_rate = codec.sizes.sample_rate
        self._codec = codec
        self._part = -1
        self._stream: CodecStream | None = None
        self._guard = SilenceGuard(self.sample_rate)

    def make(self, piece: FramePiece) -> tuple[Floats, bool]:
        """The sound of a piece, and whether nothing has been heard for long."""
        if self._stream is None or piece.part != self._part:
            self._part = piece.part
            self._stream = self._codec.stream()
            self._guard = SilenceGuard(self.sample_rate)
        samples = self._stream.decode(piece.codes)
        return samples, self._guard.hears_nothing(samples)

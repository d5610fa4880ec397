"""Kinds of files by their first bytes: a demuxer is named before it sees a byte, and there are few."""

from typing import NamedTuple

from tahr.speech.audio.errors import BadAudio

HEAD_BYTES = 64
READABLE = "send WAV, MP3, FLAC, M4A, OGG, WebM, AAC or AMR"


class AudioKind(NamedTuple):
    """A container."""

    name: str
    demuxer: str  # PyAV's name for it


WAV = AudioKind("WAV", "wav")
MP3 = AudioKind("MP3", "mp3")
AAC = AudioKind("AAC", "aac")
# A place in the file, the bytes that stand there, and what they are the beginning of.
MAGIC = (
    (0, b"RIFF", WAV),
    (0, b"RF64", WAV),
    (0, b"fLaC", AudioKind("FLAC", "flac")),
    (0, b"OggS", AudioKind("OGG", "ogg")),
    (0, b"\x1aE\xdf\xa3", AudioKind("WebM", "matroska")),
    (4, b"ftyp", AudioKind("M4A", "mov")),
    (0, b"#!AMR", AudioKind("AMR", "amr")),
    (0, b"ID3", MP3),
    (0, b"\xff\xfb", MP3),
    (0, b"\xff\xf3", MP3),
    (0, b"\xff\xf2", MP3),
    (0, b"\xff\xfa", MP3),
    (0, b"\xff\xf1", AAC),
    (0, b"\xff\xf9", AAC),
)
FOREIGN = ((b"#EXTM3U", "a playlist"), (b"<", "a web page or XML"), (b"{", "JSON"), (b"%PDF", "PDF"))


def kind_of(head: bytes) -> AudioKind:
    """The kind of a file that begins so."""
    if not head:
        raise BadAudio("The recording is empty: send its bytes.")
    for place, magic, kind in MAGIC:
        if head[place : place + len(magic)] == magic and (kind is not WAV or head[8:12] == b"WAVE"):
            return kind
    start = head.lstrip()
    named = next((name for magic, name in FOREIGN if start.startswith(magic)), "")
    if named:
        raise BadAudio(f"The file is {named}, which Tahr neither plays nor follows: {READABLE}.")
    raise BadAudio(f"The bytes are no recording that Tahr knows, or its beginning is damaged: {READABLE}.")

"""The routes about recordings."""

from tahr.server.audio import bodies, transcriptions
from tahr.server.state.route import Route

ROUTES = [
    Route(
        "POST",
        "/v1/audio/transcriptions",
        transcriptions.transcribe,
        bodies.TranscriptionBody,
        bodies.TranscriptReply,
        takes_form=True,
        aliases=("/audio/transcriptions",),
    ),
    Route(
        "POST",
        "/v1/audio/translations",
        transcriptions.translate,
        bodies.TranslationBody,
        bodies.TranscriptReply,
        takes_form=True,
        aliases=("/audio/translations",),
    ),
]

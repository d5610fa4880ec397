"""The routes about recordings and speech."""

from tahr.server.audio import bodies, speech, speech_fields, transcriptions
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
    Route(
        "POST",
        "/v1/audio/speech",
        speech.speak,
        speech_fields.SpeechBody,
        aliases=("/audio/speech",),
    ),
    Route(
        "GET",
        "/v1/audio/voices",
        speech.voices,
        None,
        speech.VoiceList,
        aliases=("/audio/voices",),
    ),
]

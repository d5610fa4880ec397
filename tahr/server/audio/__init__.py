"""Recordings over HTTP: transcriptions and translations, as OpenAI's API has them."""

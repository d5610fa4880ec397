"""Speech as text: audio in, the rules of decoding, and the forms in which transcripts are written."""

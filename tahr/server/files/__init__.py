"""OpenAI's files and batches: what is uploaded, what is to be done with it, and what came of it, in a folder."""

"""The public library: LLM, AsyncLLM, sessions, beams, embeddings, snapshots."""

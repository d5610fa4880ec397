"""What `from tahr import ...` gives: LLM, AsyncLLM, sessions, beams, embeddings, snapshots."""

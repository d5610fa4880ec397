"""Requests become tokens, and tokens become text, reasoning and tool calls for their client."""

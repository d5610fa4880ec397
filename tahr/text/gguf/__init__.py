"""Tokenizers in the words of GGUF: read from a file, made of its parts, written to one."""

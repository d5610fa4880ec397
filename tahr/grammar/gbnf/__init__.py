"""GBNF, the grammars of llama.cpp: parsed, and translated to Lark."""

"""Pages of keys and values: who holds them, page tables, and the prefix cache."""

"""The columns of a step: tokens, pages, drafts, adapters."""

"""Tool calls: how each family of models writes them, and how they are found in a reply while it is generated."""

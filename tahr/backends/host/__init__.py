"""The memory of the host: what it has, and how much of it a cache may take."""

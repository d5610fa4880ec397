"""Pages in other places than the pool: in the host's memory, and in files that outlive the process.

- `folders`: directories that hold keys and values: ours alone, never reached through a link.
- `page_files`: one file: some pages of a text, or a state, under a block hash; checked before a byte of it is believed.
- `seal`: files that nobody can read or make without a key.
- `janitor`: keeps a directory, which several processes may share, within its bounds.
- `disk`: reads and writes files on a thread of its own, and gives up at the first sign of a failing disk.

What goes there and what comes back is decided in `engine/tiers`.
"""

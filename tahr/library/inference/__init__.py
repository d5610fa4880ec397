"""The engine that is fed step by step: sessions, snapshots, stored prefixes."""

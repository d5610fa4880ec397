"""The backend that every other one is held against."""

"""Audio files as samples at 16 kHz, and these as the frames that a model's tower reads."""

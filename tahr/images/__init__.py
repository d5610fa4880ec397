"""Bytes of images as the rows of pixels that a model's tower reads."""

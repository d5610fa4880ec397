"""Encoders of images: layers without pages, beside a model of texts."""

"""Heedful: from a file of text pairs to a trained, measured, served and inspectable Transformer."""

__version__ = "0.1.0"

"""Audiobooks: reads a book, speaks it in segments, and writes one file or one per chapter."""

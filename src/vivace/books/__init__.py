"""Audiobooks: a book as chapters, spoken piece by piece, and put together as one file or many."""

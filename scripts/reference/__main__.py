from __future__ import annotations

from scripts.reference import write_pages

write_pages()

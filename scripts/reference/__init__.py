"""Makes the reference pages; `make_reference.py` writes them."""

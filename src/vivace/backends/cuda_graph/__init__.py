"""A whole frame in one CUDA graph, for many slots at once; see backend.py."""

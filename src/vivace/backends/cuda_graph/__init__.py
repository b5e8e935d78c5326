"""The CUDA graph backend; see backend.py."""

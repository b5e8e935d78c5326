"""The codec's decoder: its graphs, layers and kernels."""

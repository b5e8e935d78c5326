"""The predictor as one persistent CUDA kernel, compiled for the installed GPU."""

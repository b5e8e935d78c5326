"""Talker and predictor as persistent CUDA kernels, compiled for the installed GPU."""

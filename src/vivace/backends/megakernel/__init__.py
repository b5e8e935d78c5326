"""The frame as persistent CUDA kernels, compiled for the GPU that is there."""

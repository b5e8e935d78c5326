"""What the CUDA kernels for Hopper GPUs share."""

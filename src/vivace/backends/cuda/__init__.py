"""CUDA driver calls and the NVRTC compiler, for kernels in CUDA C++."""

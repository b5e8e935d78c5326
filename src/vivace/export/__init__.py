"""Checkpoints as ONNX graphs, for onnxruntime in browsers and other programs."""

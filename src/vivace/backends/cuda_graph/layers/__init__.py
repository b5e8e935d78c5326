"""The talker and the predictor: one frame for a batch, its layers and their kernels."""

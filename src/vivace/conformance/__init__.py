"""Compares a checkpoint with golden values: recorded token ids, states, codes and samples."""

"""Proves a checkpoint against golden values: recorded token ids, states, codes and samples."""

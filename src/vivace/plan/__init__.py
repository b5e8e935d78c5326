"""Capacity planning: simulates one replica and computes how many GPUs a number of calls needs."""

"""Capacity on paper: one replica simulated turn by turn, and as many as a number of calls needs."""

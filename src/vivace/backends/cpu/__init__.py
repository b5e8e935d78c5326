"""The `cpu` backend: talker and predictor in C++, compiled at first use."""

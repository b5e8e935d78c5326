"""The served models: what they can do, their voices, loading and recovery."""

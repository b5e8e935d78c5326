"""Device state of the slots: tables, pages of the KV cache, reservations and copies."""

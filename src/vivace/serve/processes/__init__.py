"""A server of several processes: one supervisor, one engine process and the HTTP workers."""

"""An engine in another process: its messages, the client's side and the host's side."""

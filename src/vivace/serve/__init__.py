"""The server: HTTP and WebSockets over `TTS`; needs the extra `server`."""

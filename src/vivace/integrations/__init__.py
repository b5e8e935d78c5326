"""Vivace as the voice of frameworks: a module for each, which imports its framework.

`pipecat` and `livekit` speak in process or through a server's WebSocket; `realtimetts` in process.
"""

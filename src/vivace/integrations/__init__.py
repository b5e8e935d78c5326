"""Adapters for voice frameworks, one module each. A module imports its framework.

`pipecat` and `livekit` use a TTS of this process or a server's WebSocket; `realtimetts` uses a TTS.
"""

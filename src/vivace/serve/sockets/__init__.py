"""WebSockets: text in while speech comes out, in the dialects that clients speak."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from vivace.serve.context import ServeContext
from vivace.serve.encoders import Encoders
from vivace.serve.sockets.elevenlabs import ElevenLabsSession
from vivace.serve.sockets.omni import OmniSession
from vivace.serve.sockets.realtime import RealtimeSession
from vivace.serve.sockets.speech import Studio
from vivace.serve.speech import Clones


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()
    studio = Studio(context, Encoders(), Clones())

    @router.websocket("/v1/audio/speech/stream")
    async def omni(websocket: WebSocket) -> None:
        await OmniSession(websocket, studio).run()

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        await RealtimeSession(websocket, studio).run()

    @router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
    async def stream_input(websocket: WebSocket, voice_id: str) -> None:
        await ElevenLabsSession(websocket, studio, voice_id, has_contexts=False).run()

    @router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
        await ElevenLabsSession(websocket, studio, voice_id, has_contexts=True).run()

    return router

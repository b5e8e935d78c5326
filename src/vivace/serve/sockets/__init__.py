"""WebSocket routes: text is spoken while it arrives, in the protocols of several services."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response
from starlette.websockets import WebSocket

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure
from vivace.serve.sockets.elevenlabs import ElevenLabsSession
from vivace.serve.sockets.omni import OmniSession
from vivace.serve.sockets.realtime import RealtimeSession

OMNI, REALTIME = "/v1/audio/speech/stream", "/v1/realtime"
ELEVENLABS = "/v1/text-to-speech/{voice_id}"


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.websocket(OMNI)
    async def omni(websocket: WebSocket) -> None:
        await OmniSession(websocket, context).run()

    @router.websocket(REALTIME)
    async def realtime(websocket: WebSocket) -> None:
        await RealtimeSession(websocket, context).run()

    @router.websocket(f"{ELEVENLABS}/stream-input")
    async def stream_input(websocket: WebSocket, voice_id: str) -> None:
        await ElevenLabsSession(websocket, context, voice_id, has_contexts=False).run()

    @router.websocket(f"{ELEVENLABS}/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
        await ElevenLabsSession(websocket, context, voice_id, has_contexts=True).run()

    @router.get(OMNI, include_in_schema=False)
    @router.get(REALTIME, include_in_schema=False)
    @router.get(f"{ELEVENLABS}/stream-input", include_in_schema=False)
    @router.get(f"{ELEVENLABS}/multi-stream-input", include_in_schema=False)
    async def refuse() -> Response:
        """For plain GET requests, such as those of proxies that remove the upgrade header."""
        message = "this is a WebSocket: use ws:// or wss://, and let proxies pass the upgrade"
        response = Failure(426, message, "websocket_needed").response()
        response.headers["upgrade"] = "websocket"
        return response

    return router

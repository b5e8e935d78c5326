"""Speech in your own FastAPI application: over HTTP, and over a WebSocket while text arrives.

    pip install . fastapi 'uvicorn[standard]'
    uvicorn --app-dir examples fastapi_app:app
    curl 'http://127.0.0.1:8000/speech?text=Hello.' -o hello.mp3

`/talk` receives pieces of text, an empty one at the end, and sends 16-bit PCM at 24 kHz. For a
complete server with formats, limits and metrics, use `vivace serve`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, Response

from vivace import TTS
from vivace.errors import QueueFullError, RequestError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with TTS.load() as app.state.tts:
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RequestError)
async def reject(request: Request, error: RequestError) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=400)


@app.exception_handler(QueueFullError)
async def retry_later(request: Request, error: QueueFullError) -> Response:
    headers = {"Retry-After": str(round(error.retry_s + 0.5))}
    return JSONResponse({"detail": str(error)}, status_code=503, headers=headers)


@app.get("/speech")
async def speech(request: Request, text: str) -> Response:
    audio = await request.app.state.tts.aspeak(text)
    return Response(audio.to_bytes("mp3"), media_type="audio/mpeg")


@app.websocket("/talk")
async def talk(socket: WebSocket) -> None:
    async def pieces() -> AsyncIterator[str]:
        while piece := await socket.receive_text():
            yield piece

    await socket.accept()
    async with await socket.app.state.tts.astream(pieces()) as chunks:
        async for chunk in chunks:
            await socket.send_bytes((np.asarray(chunk) * 32767).astype("<i2").tobytes())
    await socket.close()

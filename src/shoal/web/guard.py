"""Applies the rules of `access.py` to every request, and adds the security headers to answers."""

import json
from collections import defaultdict
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.web.access import SECURITY_HEADERS, Access, Refusal, RequestFacts

_HEADERS: Final = [
    (name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()
]


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = read_facts(scope)
        if refusal := self._access.find_refusal(request):
            await _answer(send, refusal)
            return
        query = scope.get("query_string", b"")
        if request.path == "/" and query.startswith(b"token="):
            await self._exchange(request, query, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    async def _exchange(self, request: RequestFacts, query: bytes, send: Send) -> None:
        token = query.decode("latin-1").partition("&")[0].removeprefix("token=")
        cookie = self._access.exchange(token)
        if cookie is None and not self._access.has_session(request):
            text = "this address was used before; shoal serve has printed another one"
            await _answer(send, Refusal(403, text))
            return
        headers = [(b"location", b"/"), (b"cache-control", b"no-store"), *_HEADERS]
        if cookie:
            headers.append((b"set-cookie", cookie.encode()))
        await _send(send, 303, headers, b"")


def read_facts(scope: Scope) -> RequestFacts:
    """The facts of a request that the rules look at."""
    headers: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, value in scope["headers"]:
        headers[name.decode("latin-1").lower()] += (value.decode("latin-1"),)
    return RequestFacts(scope["method"], scope["path"], headers)


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        # The rest of a refused body is not read.
        (b"connection", b"close"),
        *_HEADERS,
    ]
    await _send(send, refusal.status, headers, body)


async def _send(send: Send, status: int, headers: list[Any], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})

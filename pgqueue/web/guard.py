"""The checks before every page: the Host, the user, requests from other sites, and the headers.

No cookies and no tokens. A request that changes something must come from this page itself, by Sec-Fetch-Site, or where
a browser sends none, by Origin. The Host must be a known one, so that a foreign name that resolves to the
loopback address is refused.
"""

from __future__ import annotations

import inspect
import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgqueue.web.users import Authorize

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SAFE = {"GET", "HEAD"}
_PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]+)+")


class Guard:
    """Wraps the app. `hosts`: accepted names, "*" for any; loopback and `origin` always are."""

    def __init__(self, app: ASGIApp, authorize: Authorize, hosts: Collection[str], origin: str | None) -> None:
        self._app = app
        self._authorize = authorize
        self._hosts = {_name(host) for host in hosts}
        self._origin = origin.rstrip("/").lower() if origin else None
        if self._origin:
            self._hosts.add(_name(urlsplit(self._origin).netloc))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is None and not request.url.path.startswith(f"{scope.get('root_path', '')}/static/"):
            found = self._authorize(request)
            user = await found if inspect.isawaitable(found) else found
            if user is None or "read" not in user.can:
                refusal = PlainTextResponse(
                    "who are you?\n", 401, {"www-authenticate": 'Basic realm="pgqueue", charset="UTF-8"'}
                )
            else:
                scope["pgqueue.user"] = user
        prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
        if prefix and _PREFIX.fullmatch(prefix):
            scope["pgqueue.prefix"] = prefix

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        host = request.headers.get("host", "")
        if not self._is_known(_name(host)):
            return PlainTextResponse("this host is not known here; name it with --allowed-host (allowed_hosts)\n", 421)
        if request.method not in _SAFE and not self._is_same_origin(request.headers, host):
            return PlainTextResponse(
                "this request comes from another site; if a proxy changes Host, give --origin\n", 403
            )
        return None

    def _is_known(self, name: str) -> bool:
        if "*" in self._hosts or name in self._hosts or name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_same_origin(self, headers: Headers, host: str) -> bool:
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none") and (site == "same-origin" or "origin" not in headers)
        origin = headers.get("origin", "").lower()
        if not origin:
            return False
        return origin == self._origin or urlsplit(origin).netloc == host.lower()


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()

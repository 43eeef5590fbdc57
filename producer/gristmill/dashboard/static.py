"""The style sheet and scripts, from memory: their URL has their digest, so they never grow old."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"


class StaticFiles:
    """All files of the folder `static` that browsers are given."""

    def __init__(self) -> None:
        folder = files("gristmill.dashboard") / "static"
        self._files: dict[str, tuple[str, bytes, bytes]] = {}
        digest = hashlib.sha256()
        for file in sorted(folder.iterdir(), key=lambda found: found.name):
            kind = _KINDS.get(file.name[file.name.rfind(".") :])
            if kind is not None:
                body = file.read_bytes()
                digest.update(file.name.encode() + b"\0" + body)
                self._files[file.name] = (kind, body, gzip.compress(body, 6, mtime=0))
        self.digest = digest.hexdigest()[:12]

    async def respond(self, request: Request) -> Response:
        """Without a session: nothing in them is anybody's."""
        found = self._files.get(request.path_params["name"])
        if found is None or request.path_params["digest"] != self.digest:
            return PlainTextResponse("There is no such file.", 404)
        kind, body, packed = found
        headers = {
            "cache-control": _FOREVER,
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-origin",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            body = packed
        return Response(body, headers=headers, media_type=kind)

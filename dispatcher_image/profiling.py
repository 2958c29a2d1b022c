"""What the loop spends its time with, asked for while it works: `GET /debug/profile?seconds=10` on PROFILING_PORT.

Off unless PROFILING_PORT is set. While a profile is taken deliveries are slower, by about a third; it ends by itself.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import pstats
from typing import Final
from urllib.parse import parse_qs

from dispatcher_image.receiver_http import Exchange, HttpServer, Limits, Response, refusal

DEFAULT_SECONDS: Final = 10.0
MAX_SECONDS: Final = 60.0
SHOWN_FUNCTIONS: Final = 60

_PATH: Final = b"/debug/profile"


class ProfilePage:
    """One profile at a time of the thread that serves it, which is the loop's."""

    def __init__(self) -> None:
        self._is_busy = False

    def on_head(self, exchange: Exchange) -> Response | None:
        """Refuse what cannot be answered; None: go on."""
        if exchange.target.partition(b"?")[0] != _PATH:
            return refusal(404, "there is /debug/profile?seconds=10")
        if exchange.method != b"GET":
            return refusal(405, "only GET", b"Allow: GET\r\n")
        return None

    def on_request(self, exchange: Exchange) -> None:
        """Answer once the asked time has passed."""
        query = parse_qs(exchange.target.partition(b"?")[2].decode("latin-1"))
        try:
            seconds = float(query.get("seconds", [str(DEFAULT_SECONDS)])[0])
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= MAX_SECONDS:
            exchange.respond(refusal(400, f"seconds must be above 0 and at most {MAX_SECONDS:g}"))
        elif self._is_busy:
            exchange.respond(refusal(503, "a profile is being taken; ask again when it has ended"))
        else:
            self._is_busy = True
            profile = cProfile.Profile()
            profile.enable()
            asyncio.get_running_loop().call_later(seconds, self._answer, exchange, profile)

    def _answer(self, exchange: Exchange, profile: cProfile.Profile) -> None:
        profile.disable()
        self._is_busy = False
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(SHOWN_FUNCTIONS)
        exchange.respond(Response(200, text.getvalue().encode(), b"Content-Type: text/plain; charset=utf-8\r\n"))


async def serve_profiles(port: int) -> HttpServer:
    """Listen. Raises OSError when the port is taken."""
    server = HttpServer(ProfilePage(), Limits(max_body_bytes=1024, max_connections=16))
    await server.start(port)
    return server

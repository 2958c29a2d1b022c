"""Bearer tokens for OAUTHBEARER by the client credentials grant (RFC 6749 §4.4), one source for all connections.

The same token serves librdkafka's clients and the connection check; it is asked for anew when a fifth of its life is
left.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from eventing.kafka_security import Secret

REQUEST_LIMIT_S = 10.0
MAX_RESPONSE_BYTES = 1_048_576
DEFAULT_LIFE_S = 300.0
"""For servers that do not say how long a token lives (RFC 6749 §5.1 only recommends it)."""


class TokenError(Exception):
    """The token server gave no token; the text holds no secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """`expires_at` is Unix time in seconds."""

    value: Secret
    expires_at: float


class TokenClient:
    """Thread-safe. Raises TokenError from `get`."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str,
        client_secret: Secret,
        scope: str | None = None,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._context = context
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0

    def get(self) -> Token:
        """A token that is still good for a while."""
        with self._lock:
            now = self._clock()
            if self._token is None or now >= self._renew_at:
                self._token = self._fetch(now)
                self._renew_at = now + 0.8 * (self._token.expires_at - now)
            return self._token

    def _fetch(self, now: float) -> Token:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        # RFC 6749 §2.3.1: both are form-encoded before they become a Basic header.
        pair = f"{urllib.parse.quote_plus(self._client_id)}:{urllib.parse.quote_plus(self._client_secret.reveal())}"
        request = urllib.request.Request(  # noqa: S310  (the scheme was checked with the configuration)
            self._url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
                "Accept": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S, context=self._context) as response:  # noqa: S310
                document = json.loads(response.read(MAX_RESPONSE_BYTES))
            value, life = document["access_token"], float(document.get("expires_in", DEFAULT_LIFE_S))
        except urllib.error.HTTPError as exc:
            exc.close()  # it holds the connection
            raise TokenError(f"{self._url} answered {exc.code}") from exc
        except OSError as exc:
            raise TokenError(f"{self._url} cannot be reached: {getattr(exc, 'reason', exc)}") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise TokenError(f"{self._url} answered no token") from exc
        if not isinstance(value, str) or not value:
            raise TokenError(f"{self._url} answered no token")
        return Token(Secret(value), now + life)

"""One API server, spoken to in JSON documents, with errors that are ours.

The official client brings what is hard to get right: kubeconfig with its credential plugins, service account tokens,
TLS, proxies. Its 700 model classes are not used: what the ports return are documents as the API server sends them, and
a model would drop each field that it does not know.

Credentials expire. The client re-reads a service account's token every minute; an answer 401 makes us load the whole
configuration anew and ask once more, so that a rotated kubeconfig or token never needs a restart.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config

from eventing.errors import ConfigError, Conflict, Forbidden, NotFound, Refused, SluiceError, Unavailable

JsonObject = dict[str, Any]

SYSTEM = "Kubernetes"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
"""For one request; below the limit of one observation (`observe.CALL_LIMIT_S`)."""
PAGE = 500
"""Objects a page of a list: kubectl's own number; a page is some megabytes."""
MESSAGE_LIMIT = 1000
"""Characters of a server's message that are passed on: an invalid object can be told off in megabytes."""
APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"


_ONCE = urllib3.Retry(total=0, raise_on_redirect=False, raise_on_status=False)
"""What is asked again is decided here: the library's own would repeat a timeout thrice and sleep out `Retry-After`."""


class Expired(Conflict):
    """410: the resourceVersion or page is too old; list again."""


class FieldConflict(Conflict):
    """A server-side apply would change fields of other managers.

    `owners` are those managers' names with the fields, in the order in which the server named them.
    """

    def __init__(self, system: str, reason: str, owners: tuple[tuple[str, str], ...]) -> None:
        super().__init__(system, reason)
        self.owners = owners


class KubernetesApi:
    """Requests to one API server. Safe to use from several threads.

    Args:
        configuration: Loads the client's configuration; called again when the credentials are refused.
    """

    def __init__(self, configuration: Callable[[], client.Configuration]) -> None:
        self._load = configuration
        self._lock = threading.Lock()
        self._client = client.ApiClient(configuration())

    @classmethod
    def connect(cls, kubeconfig: Path | str | None = None, context: str | None = None) -> KubernetesApi:
        """By the given kubeconfig; else as the pod's service account; else by `KUBECONFIG` or `~/.kube/config`.

        Raises:
            ConfigError: none of them says where a cluster is.
        """

        def load() -> client.Configuration:
            loaded = client.Configuration()
            try:
                if kubeconfig is None and context is None:
                    try:
                        config.load_incluster_config(client_configuration=loaded)
                    except config.ConfigException:
                        # Named, because the client looked at the variable when it was imported and never again.
                        config.load_kube_config(config_file=os.environ.get("KUBECONFIG"), client_configuration=loaded)
                else:
                    config.load_kube_config(
                        config_file=None if kubeconfig is None else str(kubeconfig),
                        context=context,
                        client_configuration=loaded,
                    )
            except (config.ConfigException, OSError, ValueError) as exc:
                raise ConfigError([f"no cluster is configured: {exc}"], subject="Kubernetes access") from exc
            return loaded

        return cls(load)

    @property
    def host(self) -> str:
        """The API server's address, for people."""
        return str(self._client.configuration.host)

    # -- requests ----------------------------------------------------------------------------------------------------

    def get(self, path: str, query: Mapping[str, str] | None = None, *, doing: str) -> JsonObject:
        return self.request("GET", path, query, doing=doing)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        *,
        content_type: str = "application/json",
        doing: str,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> JsonObject:
        """The answer's document. `doing` completes "while …" for people.

        Raises:
            Unavailable: no answer, 429 or 5xx; `Conflict` 409, `Expired` 410, `NotFound` 404, `Forbidden` 401 and 403,
            `FieldConflict` where a server-side apply would take fields from somebody; `Refused` everything else.
        """
        response = self._send(method, path, query, body, content_type, timeout_s, doing, stream=False)
        try:
            document = json.loads(response.data)
        except (ValueError, urllib3.exceptions.HTTPError) as exc:
            raise Unavailable(SYSTEM, f"{doing}: the answer is no JSON: {exc}") from exc
        if not isinstance(document, dict):
            raise Unavailable(SYSTEM, f"{doing}: the answer is no object")
        return document

    def pages(self, path: str, query: Mapping[str, str] | None = None, *, doing: str) -> tuple[list[JsonObject], str]:
        """All objects of a collection and the resourceVersion at which they were so, page by page."""
        parameters = {**(query or {}), "limit": str(PAGE)}
        items: list[JsonObject] = []
        while True:
            try:
                page = self.get(path, parameters, doing=doing)
            except Expired:
                # etcd has compacted the version that the pages are of. Once more in one piece, which cannot expire.
                whole = self.get(path, query, doing=doing)
                return _typed(whole), str(whole["metadata"]["resourceVersion"])
            items += _typed(page)
            following = page["metadata"].get("continue")
            if not following:
                return items, str(page["metadata"]["resourceVersion"])
            parameters["continue"] = following

    def watch(self, path: str, query: Mapping[str, str], resource_version: str, seconds: int) -> Iterator[JsonObject]:
        """Events of a collection after `resource_version`, bookmarks included; ends after at most `seconds`.

        Raises:
            Expired: the version is too old. Unavailable: the connection broke.
        """
        doing = f"watching {path}"
        parameters = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        # Nothing for so long means a connection that died silently: the server ends a watch in time.
        response = self._send(
            "GET", path, parameters, None, "application/json", seconds + CONNECT_TIMEOUT_S, doing, stream=True
        )
        buffered = b""
        try:
            for chunk in response.stream(65536):
                *lines, buffered = (buffered + chunk).split(b"\n")
                for line in lines:
                    event: JsonObject = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(int(event["object"].get("code") or 500), event["object"], doing, None)
                    yield event
        except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError) as exc:
            raise Unavailable(SYSTEM, f"{doing}: {exc}") from exc
        finally:
            # Half read, so of no use to anybody else.
            response.close()

    def _send(  # noqa: PLR0917 - all of them make the one request
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str,
        timeout_s: float,
        doing: str,
        *,
        stream: bool,
    ) -> urllib3.BaseHTTPResponse:
        url = path + (f"?{urlencode(query)}" if query else "")
        encoded = None if body is None else json.dumps(body).encode()
        reloaded = reconnected = False
        while True:
            api = self._client
            headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "sluice"}
            try:
                api.update_params_for_auth(headers, [], ["BearerToken"])
                response: urllib3.BaseHTTPResponse = api.rest_client.pool_manager.request(
                    method,
                    api.configuration.host + url,
                    body=encoded,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=timeout_s),
                    preload_content=not stream,
                    retries=_ONCE,
                )
            except urllib3.exceptions.MaxRetryError as exc:
                # A kept connection that the server closed meanwhile: one new connection, at once. A server that
                # restarts closes all of them. Everything asked for here may be asked for twice.
                if isinstance(exc.reason, urllib3.exceptions.ProtocolError) and not reconnected:
                    reconnected = True
                    continue
                raise Unavailable(SYSTEM, f"{doing}: {exc.reason or exc}") from exc
            except (urllib3.exceptions.HTTPError, OSError, config.ConfigException) as exc:
                raise Unavailable(SYSTEM, f"{doing}: {exc}") from exc
            if response.status < 300:
                return response
            status = _status(response)
            if response.status == 401 and not reloaded:
                reloaded = True
                self._reload(api)
                continue
            raise _error(response.status, status, doing, response.headers.get("Retry-After"))

    def _reload(self, refused: client.ApiClient) -> None:
        with self._lock:
            if self._client is refused:
                self._client = client.ApiClient(self._load())


def _typed(page: JsonObject) -> list[JsonObject]:
    """Items with the kind that a list leaves out of them."""
    kind = str(page["kind"]).removesuffix("List")
    return [{"apiVersion": page["apiVersion"], "kind": kind, **item} for item in page.get("items") or []]


def _status(response: urllib3.BaseHTTPResponse) -> JsonObject:
    try:
        document = json.loads(response.data)
    except (ValueError, urllib3.exceptions.HTTPError):
        document = None
    return document if isinstance(document, dict) else {"message": f"HTTP {response.status}"}


def _error(code: int, status: JsonObject, doing: str, retry_after: str | None) -> SluiceError:
    """https://kubernetes.io/docs/reference/using-api/api-concepts/ and the Status kind of apimachinery."""
    message = str(status.get("message") or f"HTTP {code}")
    if len(message) > MESSAGE_LIMIT:
        message = message[:MESSAGE_LIMIT] + "…"
    reason = f"{doing}: {message}"
    details = status.get("details") or {}
    if code == 401:
        return Forbidden(SYSTEM, f"{doing}: the credentials are not accepted ({message})")
    if code == 403:
        return Forbidden(SYSTEM, reason)
    if code == 404:
        return NotFound(SYSTEM, reason)
    if code == 409:
        owners = tuple(
            (_quoted(str(cause.get("message") or "")), str(cause.get("field") or ""))
            for cause in details.get("causes") or []
            if cause.get("reason") == "FieldManagerConflict"
        )
        return FieldConflict(SYSTEM, reason, owners) if owners else Conflict(SYSTEM, reason)
    if code == 410:
        return Expired(SYSTEM, reason)
    if code == 500 and "failed to create typed patch object" in message:
        # What a server-side apply calls a document that does not fit the schema; asking again would not help.
        return Refused(SYSTEM, reason)
    if code == 429 or code >= 500:
        told = details.get("retryAfterSeconds")
        wait = float(told) if isinstance(told, int) and told > 0 else _seconds(retry_after)
        return Unavailable(SYSTEM, reason, retry_after_s=wait)
    return Refused(SYSTEM, reason)


def _quoted(message: str) -> str:
    """The manager in `conflict with "kubectl-edit" using apps/v1`."""
    return message.partition('"')[2].partition('"')[0]


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def namespaced(root: str, namespace: str, plural: str, name: str | None = None) -> str:
    """The path of a collection or object. Names are quoted: they come from whoever may declare channels."""
    path = f"{root}/namespaces/{quote(namespace, safe='')}/{plural}"
    return path if name is None else f"{path}/{quote(name, safe='')}"

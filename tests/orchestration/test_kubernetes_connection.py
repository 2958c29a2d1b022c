"""What an API server's refusals mean to us, and what is asked again: against a server that plays one."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
from kubernetes import client

from eventing.errors import Conflict, Forbidden, NotFound, Refused, Unavailable
from orchestration.adapters.kubernetes_clients import connection
from orchestration.adapters.kubernetes_clients.changes import Collection, Followed
from orchestration.adapters.kubernetes_clients.connection import Expired, FieldConflict, KubernetesApi
from orchestration.adapters.kubernetes_registry import KubernetesRegistry, merged


class Server:
    """Answers from a list of (status, headers, document), one request each; the last answer is repeated."""

    def __init__(self):
        self.answers, self.asked = [], []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.asked.append((self.path, self.headers.get("Authorization")))
                status, headers, document = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def api(server):
    tokens = iter(["first", "second", "third"])

    def configuration():
        configured = client.Configuration(host=server.url)
        configured.api_key = {"BearerToken": f"Bearer {next(tokens)}"}
        return configured

    return KubernetesApi(configuration)


def status(message="said no", **details):
    return {"kind": "Status", "message": message, "details": details}


@pytest.mark.parametrize(
    ("code", "document", "kind"),
    [
        pytest.param(400, status(), Refused, id="400"),
        pytest.param(401, status(), Forbidden, id="401"),
        pytest.param(403, status(), Forbidden, id="403"),
        pytest.param(404, status(), NotFound, id="404"),
        pytest.param(409, status(), Conflict, id="409"),
        pytest.param(410, status(), Expired, id="410"),
        pytest.param(422, status(), Refused, id="422"),
        pytest.param(429, status(), Unavailable, id="429"),
        pytest.param(500, status(), Unavailable, id="500"),
        pytest.param(500, status("failed to create typed patch object: no field x"), Refused, id="500, no such field"),
        pytest.param(503, b"not even JSON", Unavailable, id="503 of a proxy"),
        pytest.param(200, b"<html>", Unavailable, id="200 of something else"),
    ],
)
def test_each_refusal_says_whose_fault_and_whether_a_retry_helps(server, api, code, document, kind):
    server.answers = [(code, {}, document)]
    with pytest.raises(kind, match="reading it") as raised:
        api.get("/api", doing="reading it")
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        pytest.param({"Retry-After": "7"}, {}, 7.0, id="header"),
        pytest.param({"Retry-After": "7"}, {"retryAfterSeconds": 3}, 3.0, id="the status is more exact"),
        pytest.param({"Retry-After": "soon"}, {}, None, id="no number"),
        pytest.param({}, {}, None, id="none"),
    ],
)
def test_the_wait_that_a_server_asks_for_is_handed_on(server, api, headers, details, seconds):
    server.answers = [(429, headers, status(**details))]
    with pytest.raises(Unavailable) as raised:
        api.get("/api", doing="reading")
    assert raised.value.retry_after_s == seconds


def test_refused_credentials_are_loaded_anew_once(server, api):
    server.answers = [(401, {}, status()), (200, {}, {"kind": "X"})]
    assert api.get("/api", doing="reading") == {"kind": "X"}
    assert [token for _, token in server.asked] == ["Bearer first", "Bearer second"]


def test_who_holds_a_field_is_named(server, api):
    cause = {
        "reason": "FieldManagerConflict",
        "message": 'conflict with "hpa" using apps/v1',
        "field": ".spec.replicas",
    }
    server.answers = [(409, {}, status(causes=[cause]))]
    with pytest.raises(FieldConflict) as raised:
        api.get("/api", doing="applying")
    assert raised.value.owners == (("hpa", ".spec.replicas"),)


def test_a_very_long_message_is_cut(server, api):
    server.answers = [(422, {}, status("x" * 100_000))]
    with pytest.raises(Refused) as raised:
        api.get("/api", doing="applying")
    assert len(str(raised.value)) < 2 * connection.MESSAGE_LIMIT


def test_pages_that_expired_are_read_again_in_one_piece(server, api):
    page = {"kind": "XList", "apiVersion": "v1", "metadata": {"resourceVersion": "5", "continue": "more"}}
    whole = {"kind": "XList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [{"a": 1}, {"a": 2}]}
    server.answers = [(200, {}, {**page, "items": [{"a": 1}]}), (410, {}, status()), (200, {}, whole)]
    items, version = api.pages("/api", doing="listing")
    assert (items, version) == ([{"apiVersion": "v1", "kind": "X", "a": n} for n in (1, 2)], "9")
    assert "limit" not in server.asked[-1][0]


def test_a_cluster_without_the_definition_has_no_registry_rather_than_an_empty_one(server, api):
    server.answers = [(404, {}, b"404 page not found")]
    with pytest.raises(Unavailable, match="deploy/crd"):
        KubernetesRegistry(api).list_channels()


def test_a_version_that_is_too_old_for_a_watch_is_listed_again(server, api):
    def listing(version, *names):
        items = [{"metadata": {"namespace": "n", "name": name}} for name in names]
        return 200, {}, {"kind": "XList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}

    gone = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode() + b"\n"
    server.answers = [listing("1", "a"), (200, {}, gone), listing("9", "a", "b"), (200, {}, b"")]
    followed = Followed(api, Collection("/api", {}, lambda item: 1))
    first = followed.wait(None, 0.0)
    assert followed.wait(first, 10.0) != first
    followed.close()
    assert [path.partition("?")[0] for path, _ in server.asked[:3]] == ["/api"] * 3
    assert "watch=true" in server.asked[1][0]
    assert "watch" not in server.asked[2][0]


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        pytest.param({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"c": 1, "d": 2}}, id="maps merge"),
        pytest.param({"a": 1}, {"a": None}, {}, id="null removes"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="lists are replaced"),
        pytest.param({"a": 1}, {"a": {"b": None}}, {"a": {}}, id="a value becomes a map"),
    ],
)
def test_a_merge_patch_is_that_of_rfc_7386(document, patch, result):
    assert merged(document, patch) == result

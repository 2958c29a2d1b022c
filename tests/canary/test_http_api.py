"""Four paths and nothing else."""

from __future__ import annotations

import errno
import http.client
import socket

import pytest

from canary_image.http_api import Answers, HttpApi


class Canary:
    alive = True
    ready = False

    def answers(self) -> Answers:
        return Answers(
            metrics=lambda: b"# a metric\n",
            is_alive=lambda: self.alive,
            is_ready=lambda: self.ready,
            status=lambda: {"Consuming": {"TimeWindow": 0, "Percentage": -1}},
        )


@pytest.fixture
def canary():
    return Canary()


@pytest.fixture
def get(canary):
    api = HttpApi(0, canary.answers())

    def get(path: str, method: str = "GET"):
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=5)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, response.getheader("Content-Type"), body

    yield get
    api.close()


def test_liveness_is_ok_while_the_process_works(get, canary):
    assert get("/liveness")[::2] == (200, b"OK")

    canary.alive = False

    assert get("/liveness")[0] == 503


def test_readiness_follows_the_records(get, canary):
    assert get("/readiness")[0] == 503

    canary.ready = True

    assert get("/readiness")[::2] == (200, b"OK")


def test_status_is_json_without_blanks(get):
    assert get("/status") == (200, "application/json", b'{"Consuming":{"TimeWindow":0,"Percentage":-1}}')


def test_metrics_are_plain_text(get):
    assert get("/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", b"# a metric\n")


def test_a_query_does_not_matter(get):
    assert get("/liveness?verbose=1")[0] == 200


@pytest.mark.parametrize("path", ["/", "/invalid", "/metrics/", "/Status"])
def test_every_other_path_is_not_found(get, path):
    assert get(path)[0] == 404


def test_other_methods_are_refused(get):
    assert get("/metrics", "POST")[0] == 501


def test_a_peer_that_sends_nonsense_harms_nobody(get, canary):
    with socket.socket() as peer:
        peer.settimeout(5)
        peer.connect(("127.0.0.1", _port_of(get)))
        peer.sendall(b"\x00\x01\x02\r\n\r\n")
        peer.recv(100)

    assert get("/liveness")[0] == 200


def test_a_port_that_is_taken_is_an_error_at_once():
    with socket.create_server(("0.0.0.0", 0)) as taken, pytest.raises(OSError) as caught:
        HttpApi(taken.getsockname()[1], Canary().answers())

    assert caught.value.errno == errno.EADDRINUSE


def _port_of(get) -> int:
    return next(cell.cell_contents.port for cell in get.__closure__ if isinstance(cell.cell_contents, HttpApi))

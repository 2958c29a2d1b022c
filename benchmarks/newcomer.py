"""How long a person waits: starts, a new channel, a changed subscriber. Run: `python -m benchmarks.newcomer`.

Starts a platform of its own (random ports, temporary folder), measures what the README promises, stops it again and
looks for what was left behind. Limits stand beside the figures; the exit code says if they were kept.
"""

from __future__ import annotations

import argparse
import http.server
import statistics
import tempfile
import threading
import time
import uuid

from tests.e2e.platform import Platform, eventually, processes_of


class Sink(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), SinkHandler)
        self.arrived: dict[tuple[str, str], float] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class SinkHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.arrived.setdefault((self.path.strip("/"), self.headers["ce-id"]), time.monotonic())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def send_until_arrived(platform, sink, channel, path, *, limit_s):
    """Send a new event each 100 ms until one arrives at `path`; returns when the first did (monotonic)."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        # While the topic is not there yet the receiver holds a request for it, up to its delivery timeout of 10 s.
        platform.send(channel, uuid.uuid4().hex, timeout_s=20)
        time.sleep(0.1)
        arrived = [at for (p, _), at in list(sink.arrived.items()) if p == path]
        if arrived:
            return min(arrived)
    raise AssertionError(f"nothing arrived at {path} within {limit_s} s")


def measure_starts(platform):
    started = time.monotonic()
    platform.up()
    first = time.monotonic() - started
    platform.down()
    left = processes_of(platform.home)
    started = time.monotonic()
    platform.up()
    return first, time.monotonic() - started, left


def measure_channels(platform, sink, rounds):
    new, changed = [], []
    for number in range(rounds):
        name = f"bench{number}"
        started = time.monotonic()
        platform.declare(f"{name}.yaml", name, subscribers={"a": sink.url(f"{name}-a")})
        new.append(send_until_arrived(platform, sink, name, f"{name}-a", limit_s=60) - started)
        eventually(lambda name=name: platform.channel(name)["ready"], within_s=30)
        started = time.monotonic()
        platform.declare(f"{name}.yaml", name, subscribers={"a": sink.url(f"{name}-b")})
        changed.append(send_until_arrived(platform, sink, name, f"{name}-b", limit_s=60) - started)
        (platform.registry / f"{name}.yaml").unlink()
        print(
            f"round {number + 1:2d}: new channel {new[-1]:5.2f} s, changed subscriber {changed[-1]:5.2f} s", flush=True
        )
    return new, changed


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    sink = Sink()
    with tempfile.TemporaryDirectory() as home:
        platform = Platform(home)
        try:
            first, later, left = measure_starts(platform)
            print(f"first start {first:.1f} s, later start {later:.1f} s", flush=True)
            new, changed = measure_channels(platform, sink, rounds)
        finally:
            platform.down()
        left += processes_of(home)
    rows = [
        ("later start", later, 30),
        ("new channel → first event, median", statistics.median(new), 8),
        ("new channel → first event, worst", max(new), 15),
        ("changed subscriber → used, median", statistics.median(changed), 2),
        ("changed subscriber → used, worst", max(changed), 2),
        ("processes left behind", len(left), 0),
    ]
    print(f"\n| what | measured | limit |\n|---|---|---|\n| first start (jars cached or not) | {first:.1f} s | |")
    for what, value, limit in rows:
        print(f"| {what} | {value:.2f} | {limit} |{'' if value <= limit else ' **missed**'}")
    return int(any(value > limit for _, value, limit in rows))


if __name__ == "__main__":
    raise SystemExit(main())

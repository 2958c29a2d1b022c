"""The picture of leaders says what the table says, and is a well-formed, small image."""

from __future__ import annotations

import base64
from xml.etree import ElementTree as ET

from orchestration.pictures import MAX_BROKERS, Share, leaders_picture, shares


def broker(number, rack=None, *, fenced=False):
    return {"id": number, "rack": rack, "fenced": fenced}


def partition(replicas, leader):
    return {"replicas": replicas, "leader": leader}


TOPICS = {"a": {"partitions": [partition([0, 1], 0), partition([1, 2], 2), partition([2, 0], -1)]}}


def test_what_a_broker_leads_is_told_apart_from_what_it_should_lead():
    assert shares(TOPICS, [broker(0, "b"), broker(1, "a"), broker(2, "a", fenced=True)]) == [
        Share(1, "a", True, preferred=0, borrowed=0, missing=1, replicas=2),
        Share(2, "a", False, preferred=0, borrowed=1, missing=1, replicas=2),
        Share(0, "b", True, preferred=1, borrowed=0, missing=0, replicas=2),
    ]


def test_the_picture_is_an_inline_image_that_parses():
    text = leaders_picture(TOPICS, [broker(0, "<rack & co>"), broker(1), broker(2, fenced=True)])
    start = "![leaders by broker](data:image/svg+xml;base64,"
    assert text.startswith(start)
    image = base64.b64decode(text.removeprefix(start).removesuffix(")"))
    words = "".join(ET.fromstring(image).itertext())
    assert "<rack & co>" in words
    assert "2 away" in words


def test_many_brokers_stay_a_small_picture():
    topics = {"a": {"partitions": [partition([n], n) for n in range(1000)]}}
    text = leaders_picture(topics, [broker(n) for n in range(1000)])
    assert len(text) < 40_000
    assert text.endswith(f"{1000 - MAX_BROKERS} more brokers are not shown.")


def test_no_brokers_are_no_picture():
    assert leaders_picture({}, []) == "no brokers"

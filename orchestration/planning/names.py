"""Names and marks of what the planner creates, so that it finds them again and leaves everything else alone."""

from __future__ import annotations

import hashlib
import re

FINALIZER = "sluice.dev/kafkachannel"
"""Keeps a KafkaChannel until its dispatcher, groups and topics are gone."""
OUR_DOMAIN = "sluice.dev/"

ANNOTATION_CHANNEL_KEY = "sluice.dev/channel-key"
"""`namespace/name` in full: labels end at 63 characters, names of channels do not."""
ANNOTATION_CONFIG_HASH = "sluice.dev/config-hash"
"""Fingerprint of the manifest as we rendered it; decides whether it must be applied again."""
ANNOTATION_INVALID_DOCUMENT = "sluice.dev/invalid-document"
"""On a channel, by a registry of files: where and why its document is refused. The rest is the last good one."""
ANNOTATION_LAST_RESIZE = "sluice.dev/last-resize"
"""When the number of replicas was last changed, RFC 3339; the memory of the cooldown."""
CONDITION_PODS_FAILING = "PodsFailing"
"""On an observed Deployment whose pods do not come up: True, with the kubelet's reason. Adapters add it."""

MAX_NAME = 63
"""DNS labels and label values."""


def deployment_name(namespace: str, name: str) -> str:
    """`<name>-<namespace>-<hash>-dispatcher`, readable as far as there is room.

    All dispatchers share one namespace, and `a-b` in `c` must not meet `a` in `b-c`: the hash is of both, apart.
    """
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:8]
    readable = _slug(f"{_slug(name)[:26]}-{_slug(namespace)[:16]}")
    # A Deployment's name becomes that of its pods' and may not start with anything but a letter everywhere.
    readable = readable if readable[:1].isalpha() else f"c-{readable}"[:42]
    return f"{readable}-{digest}-dispatcher"


def label_value(text: str) -> str:
    """`text` as a label's value: itself, or cut and made unique by a hash."""
    if len(text) <= MAX_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: MAX_NAME - 9].rstrip('-._')}-{digest}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")

"""What goes, and in which order: what a deleted channel leaves, and what has lost its channel.

The dispatcher goes first and is gone before anything is taken from under it, then the Service, the groups and the
topics, and last our finalizer, with which the channel itself goes. Where something could not be read, nothing that
depends on it is deleted, and the finalizer stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from eventing.channels import ANNOTATION_DELETION_POLICY, dead_letter_topic, group_prefix, service_name
from orchestration.planning.actions import DeleteDeployment, DeleteGroup, DeleteService, DeleteTopic, UpdateStatus
from orchestration.planning.findings import Findings
from orchestration.planning.identities import Claims, Identity
from orchestration.planning.names import OUR_DOMAIN, label_value
from orchestration.planning.observed import Observed, ObservedObject


def plan_deletion(identity: Identity, *, observed: Observed, claims: Claims) -> Findings:
    """Take away all that belongs to a channel that is being deleted."""
    findings = Findings(identity.key)
    snapshot = observed.snapshot
    why = "the channel is being deleted"
    if snapshot.deployments is None:
        findings.wait("it is being deleted, and Deployments could not be read: its dispatcher must go first")
        return findings
    dispatchers = observed.dispatchers_of(*identity.pair)
    findings.actions += [
        DeleteDeployment(cause=identity.key, why=why, namespace=d.namespace, name=d.name) for d in dispatchers
    ]
    unread = [
        word
        for word, part in (("Services", snapshot.services), ("groups", snapshot.lag), ("topics", snapshot.topics))
        if part is None
    ]
    service = observed.services.get((identity.namespace, service_name(identity.name)))
    if service is not None and service.is_managed and claims.conflict(identity) is None:
        findings.actions.append(
            DeleteService(cause=identity.key, why=why, namespace=service.namespace, name=service.name)
        )
    findings.actions += [
        DeleteGroup(cause=identity.key, why=why, group=group_prefix(identity.namespace, identity.name) + uid)
        for uid, group in sorted(observed.groups.get(identity.pair, {}).items())
        if group.topic in {identity.topic, None}
    ]
    _topics(findings, identity, observed, claims, has_dispatcher=bool(dispatchers))
    if unread:
        findings.wait(f"it is being deleted, and {' and '.join(unread)} could not be read; it stays until they can be")
        return findings
    kept = tuple(f for f in identity.finalizers if not f.startswith(OUR_DOMAIN))
    if kept != identity.finalizers:
        findings.actions.append(
            UpdateStatus(
                cause=identity.key,
                why="nothing of the channel is left, so it may go",
                namespace=identity.namespace,
                name=identity.name,
                status={},
                finalizers=kept,
            )
        )
    return findings


def _topics(
    findings: Findings, identity: Identity, observed: Observed, claims: Claims, *, has_dispatcher: bool
) -> None:
    topics = observed.snapshot.topics or {}
    found = [t for t in (identity.topic, dead_letter_topic(identity.topic)) if t in topics]
    found = [t for t in found if claims.owner_of_topic(t) in {identity.key, None}]
    if not found:
        return
    if identity.deletion_policy == "retain":
        return
    if identity.deletion_policy != "delete":
        findings.reject(
            f"{ANNOTATION_DELETION_POLICY}={identity.deletion_policy!r} is neither delete nor retain; "
            f"topic {found[0]} is kept"
        )
        return
    # A channel that we never took up (its topic was somebody else's, say) has left none of our marks.
    is_ours = (
        identity.persisted_topic is not None
        or any(f.startswith(OUR_DOMAIN) for f in identity.finalizers)
        or has_dispatcher
        or identity.pair in observed.groups
    )
    if not is_ours:
        findings.wait(f"topic {found[0]} is kept: nothing says that this channel created it")
        return
    findings.actions += [
        DeleteTopic(cause=identity.key, why="the channel is being deleted, and its deletion policy is delete", topic=t)
        for t in found
    ]


def plan_orphans(observed: Observed, declared: Iterable[Identity]) -> list[Findings]:
    """Dispatchers and Services of channels that are not there; their topics stay, for the policy went with them."""
    known = {identity.pair for identity in declared}
    # Labels hold names cut at 63 characters; whatever might be a known channel's is left alone.
    known |= {(label_value(namespace), label_value(name)) for namespace, name in known}
    parts: dict[str, Findings] = {}

    def orphans(objects: Iterable[ObservedObject]) -> Iterable[tuple[Findings, ObservedObject]]:
        for found in sorted(objects, key=lambda o: o.key):
            if found.is_managed and found.channel is not None and found.channel not in known:
                key = "/".join(found.channel)
                yield parts.setdefault(key, Findings(key)), found

    why = "its channel is not declared any more"
    for part, found in orphans(d for group in observed.dispatchers.values() for d in group):
        part.actions.append(DeleteDeployment(cause=part.object, why=why, namespace=found.namespace, name=found.name))
    for part, found in orphans(observed.services.values()):
        part.actions.append(DeleteService(cause=part.object, why=why, namespace=found.namespace, name=found.name))
    return [parts[key] for key in sorted(parts)]

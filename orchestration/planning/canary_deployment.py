"""The Deployment of the canary itself, where the policy asks for one."""

from __future__ import annotations

from orchestration.planning.actions import CANARY, ApplyDeployment, ScaleDeployment
from orchestration.planning.dispatchers import kept_annotations, why_apply
from orchestration.planning.findings import Findings
from orchestration.planning.manifests import canary_manifest, with_replicas
from orchestration.planning.observed import Observed
from orchestration.planning.policy import Policy

REPLICAS = 1
"""One is enough to prove a cluster; two would take each other's records for foreign ones."""


def plan_canary_deployment(observed: Observed, policy: Policy) -> Findings:
    """Apply the canary's Deployment. It waits for its topic by itself, so it need not be waited for here."""
    findings = Findings(CANARY)
    wanted = policy.canary.deployment
    if wanted is None:
        return findings
    if observed.snapshot.deployments is None:
        findings.wait("Deployments could not be read")
        return findings
    manifest = canary_manifest(wanted, policy)
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    existing = observed.deployments.get((namespace, name))
    if existing is not None and not existing.is_managed:
        findings.reject(f"Deployment {namespace}/{name} exists and is not managed by sluice; it is left alone")
        return findings
    if existing is not None and existing.is_terminating:
        findings.wait(f"Deployment {name} is being deleted; a new one is applied when it is gone")
        return findings
    why = "the canary is not deployed" if existing is None else why_apply(manifest, existing)
    if why is not None:
        findings.actions.append(
            ApplyDeployment(
                cause=CANARY,
                why=why,
                namespace=namespace,
                name=name,
                replicas=REPLICAS,
                manifest=with_replicas(manifest, REPLICAS, {} if existing is None else kept_annotations(existing)),
            )
        )
    elif existing is not None and existing.replicas != REPLICAS:
        findings.actions.append(
            ScaleDeployment(
                cause=CANARY,
                why=f"from {existing.replicas} to {REPLICAS}: a cluster has one canary",
                namespace=namespace,
                name=name,
                replicas=REPLICAS,
            )
        )
    return findings

"""Objects as a real API server returns them: with its defaults, its bookkeeping and other people's fields."""

from __future__ import annotations

import copy


def deployment_as_returned(manifest, *, ready=None):
    """What `kubectl get -o json` shows of an applied Deployment manifest (Kubernetes 1.34)."""
    obj = copy.deepcopy(dict(manifest))
    obj["metadata"] |= {
        "uid": "0e9a5c8e-6a3e-4f0e-9a51-0d5cbe3f2f7e",
        "resourceVersion": "48213",
        "generation": 3,
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "managedFields": [
            {
                "manager": "sluice",
                "operation": "Apply",
                "apiVersion": "apps/v1",
                "time": "2026-11-20T02:59:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            }
        ],
    }
    obj["metadata"]["annotations"] = {
        **obj["metadata"]["annotations"],
        "deployment.kubernetes.io/revision": "3",
        "kubectl.kubernetes.io/restartedAt": "2026-11-10T00:00:00Z",
    }
    spec = obj["spec"]
    spec["progressDeadlineSeconds"] = 600
    template = spec["template"]
    template["metadata"]["creationTimestamp"] = None
    pod = template["spec"]
    pod |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler"}
    if "serviceAccountName" in pod:
        pod["serviceAccount"] = pod["serviceAccountName"]
    for container in pod["containers"]:
        container |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container[probe] = {
                "timeoutSeconds": 1,
                "periodSeconds": 10,
                "successThreshold": 1,
                "failureThreshold": 3,
                **container[probe],
            }
            container[probe]["httpGet"] = {"scheme": "HTTP", **container[probe]["httpGet"]}
        container["resources"]["requests"]["memory"] = container["resources"]["requests"]["memory"]
    for volume in pod["volumes"]:
        if "secret" in volume:
            volume["secret"]["defaultMode"] = 420
    replicas = spec["replicas"]
    count = replicas if ready is None else ready
    obj["status"] = {
        "observedGeneration": 3,
        "conditions": [
            {"type": "Available", "status": "True", "lastTransitionTime": "2026-11-20T02:59:30Z"},
            {"type": "Progressing", "status": "True", "lastTransitionTime": "2026-11-20T02:59:30Z"},
        ],
        # Kubernetes leaves out counts that are zero.
        **({"replicas": replicas, "updatedReplicas": replicas} if replicas else {}),
        **({"readyReplicas": count, "availableReplicas": count} if count else {}),
    }
    return obj


def service_as_returned(manifest):
    obj = copy.deepcopy(dict(manifest))
    obj["metadata"] |= {"uid": "f", "resourceVersion": "7", "creationTimestamp": "2026-11-01T00:00:00Z"}
    obj["spec"] |= {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}
    obj["status"] = {"loadBalancer": {}}
    for port in obj["spec"]["ports"]:
        port["targetPort"] = port["port"]
    return obj


def as_returned(doc):
    """A snapshot document with its Deployments and Services as an API server would return them."""
    doc = copy.deepcopy(doc)
    doc["deployments"] = [deployment_as_returned(d) for d in doc["deployments"]]
    doc["services"] = [service_as_returned(s) for s in doc["services"]]
    for channel in doc["channels"]:
        channel["metadata"] |= {
            "uid": "9c5d",
            "resourceVersion": "99",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {
                **channel["metadata"].get("annotations", {}),
                "messaging.knative.dev/subscribable": "v1",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        }
        channel["spec"].setdefault("retentionDuration", "PT168H")
    return doc

"""deploy/ on a real API server: what it accepts, who may do what, and what Pod Security lets run."""

from __future__ import annotations

import time

import pytest
import yaml

from eventing.program_config import CanaryConfig, ReceiveConfig
from orchestration.planning import CanaryDeployment, CanaryPolicy, DispatcherPolicy, Policy
from orchestration.planning.manifests import canary_manifest, dispatcher_manifest
from tests.cluster.conftest import channel
from tests.cluster.control_plane import Answered
from tests.cluster.manifests import DEPLOY, documents, kustomized

pytestmark = pytest.mark.cluster

CHANNELS = "/apis/messaging.knative.dev/v1beta1"
SUBSCRIBER = {"uid": "a1", "subscriberUri": "http://orders.team-a.svc.cluster.local"}


class TestDefinition:
    def test_the_examples_are_accepted(self, registry_cluster, namespace):
        for file in sorted((DEPLOY.parent / "examples" / "channels").glob("*.yaml")):
            for document in documents(file):
                document["metadata"]["namespace"] = namespace
                registry_cluster.apply(document, dry_run=True)

    def test_an_empty_spec_gets_the_defaults(self, registry_cluster, namespace):
        made = registry_cluster.apply(channel(namespace), dry_run=True)
        assert made["spec"] == {"numPartitions": 1, "replicationFactor": 1, "retentionDuration": "PT168H"}

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            pytest.param({"numPartitions": 0}, "greater than or equal to 1", id="no partitions"),
            pytest.param({"numPartitions": "3"}, "integer", id="partitions as text"),
            pytest.param({"numPartitions": 1_000_000}, "less than or equal to 10000", id="too many partitions"),
            pytest.param({"replicationFactor": -1}, "greater than or equal to 1", id="negative replication"),
            pytest.param({"replicationFactor": 40_000}, "32767", id="replication beyond int16"),
            pytest.param({"retentionDuration": "a week"}, "retentionDuration", id="no duration"),
            pytest.param({"retentionDuration": "P1M"}, "retentionDuration", id="a month has no length"),
            pytest.param({"numPartition": 3}, "unknown field", id="misspelt field"),
            pytest.param({"subscribers": [{"uid": "a"}]}, "needs a subscriberUri or a replyUri", id="no URI"),
            pytest.param({"subscribers": [{"subscriberUri": "http://a"}]}, "uid", id="no uid"),
            pytest.param({"subscribers": [SUBSCRIBER, SUBSCRIBER]}, "duplicate", id="the same uid twice"),
            pytest.param(
                {"subscribers": [SUBSCRIBER | {"uid": "a}.evil{"}]}, "uid", id="a uid that would leave its group's name"
            ),
            pytest.param(
                {"subscribers": [SUBSCRIBER | {"subscriberUri": "file:///etc/passwd"}]}, "subscriberUri", id="no http"
            ),
            pytest.param(
                {"subscribers": [SUBSCRIBER | {"subscriberUri": "http://a/\r\nX: y"}]}, "subscriberUri", id="line break"
            ),
            pytest.param({"delivery": {"retry": -1}}, "greater than or equal to 0", id="negative retry"),
            pytest.param({"delivery": {"backoffPolicy": "random"}}, "backoffPolicy", id="unknown policy"),
            pytest.param({"delivery": {"deadLetterSink": {"uri": "ftp://a"}}}, "uri", id="dead letters by ftp"),
        ],
    )
    def test_what_a_schema_can_refuse_is_refused(self, registry_cluster, namespace, spec, words):
        path = f"{CHANNELS}/namespaces/{namespace}/kafkachannels?dryRun=All&fieldValidation=Strict"  # as kubectl asks
        with pytest.raises(Answered) as refused:
            registry_cluster.request("POST", path, channel(namespace, **spec))
        assert words.lower() in refused.value.message.lower()

    def test_partitions_grow_and_never_shrink(self, registry_cluster, namespace):
        registry_cluster.apply(channel(namespace, numPartitions=4))
        registry_cluster.apply(channel(namespace, numPartitions=6))
        with pytest.raises(Answered) as refused:
            registry_cluster.apply(channel(namespace, numPartitions=5))
        assert "cannot shrink" in refused.value.message

    def test_options_that_only_knative_knows_are_kept(self, registry_cluster, namespace):
        made = registry_cluster.apply(channel(namespace, delivery={"format": "json"}), dry_run=True)
        assert made["spec"]["delivery"] == {"format": "json"}

    def test_kubectl_get_shows_what_matters(self, registry_cluster, namespace):
        registry_cluster.apply(channel(namespace))
        status = {
            "address": {"url": "http://orders-kn-channel"},
            "conditions": [{"type": "Ready", "status": "False", "reason": "TopicMissing"}],
        }
        path = f"{CHANNELS}/namespaces/{namespace}/kafkachannels"
        registry_cluster.request(
            "PATCH", f"{path}/orders/status", {"status": status}, content_type="application/merge-patch+json"
        )
        table = registry_cluster.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
        shown = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
        assert shown == ["Name", "URL", "Ready", "Reason", "Age"]
        assert table["rows"][0]["cells"][:4] == ["orders", "http://orders-kn-channel", "False", "TopicMissing"]

    def test_knative_finds_its_ducks_and_kubectl_its_names(self, registry_cluster):
        found = registry_cluster.request(
            "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kafkachannels.messaging.knative.dev"
        )
        labels = found["metadata"]["labels"]
        assert labels["duck.knative.dev/channelable"] == labels["duck.knative.dev/addressable"] == "true"
        assert found["status"]["acceptedNames"]["shortNames"] == ["kc"]
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert "NonStructuralSchema" not in conditions


ORCHESTRATION, DISPATCHER, RECEIVER, CANARY = (
    f"system:serviceaccount:sluice-system:sluice-{name}"
    for name in ("orchestration", "dispatcher", "receiver", "canary")
)
CHANNEL = ("messaging.knative.dev", "kafkachannels")
MAY = [
    *[(ORCHESTRATION, verb, *CHANNEL, "team-a") for verb in ("get", "list", "watch", "patch")],
    (ORCHESTRATION, "patch", "messaging.knative.dev", "kafkachannels/status", "team-a"),
    *[(ORCHESTRATION, verb, "", "services", "team-a") for verb in ("list", "create", "patch", "delete")],
    *[(ORCHESTRATION, verb, "apps", "deployments", "sluice-system") for verb in ("list", "create", "patch", "delete")],
    (ORCHESTRATION, "list", "", "pods", "sluice-system"),
    (ORCHESTRATION, "create", "events.k8s.io", "events", "team-a"),
    *[(account, "watch", *CHANNEL, "") for account in (DISPATCHER, RECEIVER)],
]
MAY_NOT = [
    *[(ORCHESTRATION, verb, *CHANNEL, "team-a") for verb in ("create", "delete", "deletecollection")],
    *[(ORCHESTRATION, verb, "apps", "deployments", "team-a") for verb in ("list", "create", "patch", "delete")],
    *[(ORCHESTRATION, verb, "", "secrets", "sluice-system") for verb in ("get", "list", "create")],
    (ORCHESTRATION, "create", "", "pods", "sluice-system"),
    (ORCHESTRATION, "create", "", "pods/exec", "sluice-system"),
    (ORCHESTRATION, "delete", "", "namespaces", ""),
    (ORCHESTRATION, "create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    *[(account, "patch", *CHANNEL, "team-a") for account in (DISPATCHER, RECEIVER, CANARY)],
    *[
        (account, "patch", "messaging.knative.dev", "kafkachannels/status", "team-a")
        for account in (DISPATCHER, RECEIVER, CANARY)
    ],
    *[(account, "list", "", "secrets", "sluice-system") for account in (DISPATCHER, RECEIVER, CANARY)],
    *[(account, "list", "apps", "deployments", "sluice-system") for account in (DISPATCHER, RECEIVER, CANARY)],
    (CANARY, "list", *CHANNEL, ""),
]


def _words(right):
    account, verb, group, resource, where = right
    return f"{account.rpartition(':')[2]} {verb} {resource}.{group} in {where or 'all'}"


class TestRights:
    """`kubectl auth can-i`, as a SubjectAccessReview."""

    def may(self, cluster, right):
        account, verb, group, resource, namespace = right
        resource, _, part = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": ["system:serviceaccounts", "system:serviceaccounts:sluice-system", "system:authenticated"],
                "resourceAttributes": attributes,
            },
        }
        answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return answer["status"]["allowed"]

    @pytest.mark.parametrize("right", MAY, ids=_words)
    def test_each_program_may_do_its_work(self, deployed, right):
        assert self.may(deployed, right)

    @pytest.mark.parametrize("right", MAY_NOT, ids=_words)
    def test_no_program_may_do_more(self, deployed, right):
        assert not self.may(deployed, right)


class TestAdmission:
    """What RBAC cannot say, the API server refuses all the same."""

    def service(self, namespace, labels):
        metadata = {"namespace": namespace, "name": "orders", "labels": labels}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}

    def refusal(self, call):
        """The policies take effect some seconds after they were applied."""
        deadline = time.monotonic() + 30
        while True:
            try:
                call()
            except Answered as refused:
                return refused.message
            assert time.monotonic() < deadline, "it was allowed"
            time.sleep(0.5)

    def test_orchestration_cannot_delete_what_is_not_labelled_ours(self, deployed, namespace):
        token = deployed.token_of("sluice-system", "sluice-orchestration")
        deployed.apply(self.service(namespace, {"app": "a-teams-own"}))
        path = f"/api/v1/namespaces/{namespace}/services/orders"
        assert "managed-by=sluice" in self.refusal(
            lambda: deployed.request("DELETE", path + "?dryRun=All", token=token)
        )

    def test_orchestration_cannot_make_what_is_not_labelled_ours(self, deployed, namespace):
        token = deployed.token_of("sluice-system", "sluice-orchestration")
        service = self.service(namespace, {})
        assert "managed-by=sluice" in self.refusal(lambda: deployed.apply(service, dry_run=True, token=token))

    def test_orchestration_makes_and_deletes_what_is(self, deployed, namespace):
        token = deployed.token_of("sluice-system", "sluice-orchestration")
        deployed.apply(self.service(namespace, {"app.kubernetes.io/managed-by": "sluice"}), token=token)
        deployed.request("DELETE", f"/api/v1/namespaces/{namespace}/services/orders", token=token)

    def test_orchestration_cannot_change_what_a_team_has_declared(self, deployed, namespace):
        token = deployed.token_of("sluice-system", "sluice-orchestration")
        deployed.apply(channel(namespace))
        path = f"{CHANNELS}/namespaces/{namespace}/kafkachannels/orders"

        def patch(body):
            deployed.request("PATCH", path, body, content_type="application/merge-patch+json", token=token)

        partitions = iter(range(2, 1000))
        assert "never its spec" in self.refusal(lambda: patch({"spec": {"numPartitions": next(partitions)}}))
        patch({"metadata": {"finalizers": ["sluice.dev/kafkachannel"]}})
        patch({"metadata": {"finalizers": None}})


def _templates():
    channel_of = dispatch_channel()
    for secret in (None, "sluice-kafka"):
        policy = Policy(
            bootstrap_servers="kafka:9092",
            kafka_secret=secret,
            dispatcher=DispatcherPolicy(),
            canary=CanaryPolicy(deployment=CanaryDeployment(image="sluice/canary", env=CanaryConfig().to_env())),
        )
        kind = "with a Secret" if secret else "without a Secret"
        dispatcher = dispatcher_manifest(
            channel_of, name="d", namespace="sluice-system", topic="t", partitions=4, policy=policy
        )
        yield pytest.param(dispatcher, id=f"dispatcher {kind}")
        yield pytest.param(canary_manifest(policy.canary.deployment, policy), id=f"canary {kind}")
    for document in kustomized("base"):
        if document["kind"] == "Deployment":
            yield pytest.param(document, id=document["metadata"]["name"])


def dispatch_channel():
    from eventing.channels import parse_channel

    return parse_channel(channel("team-a", subscribers=[SUBSCRIBER]))


class TestPodSecurity:
    def pod(self, deployment):
        template = deployment["spec"]["template"]
        metadata = {**template["metadata"], "name": "try", "namespace": "sluice-system"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}

    @pytest.mark.parametrize("deployment", list(_templates()))
    def test_every_pod_of_ours_is_admitted_by_restricted(self, deployed, deployment):
        deployed.apply(self.pod(deployment), dry_run=True)

    @pytest.mark.parametrize("deployment", list(_templates()))
    def test_every_deployment_of_ours_is_valid(self, deployed, deployment):
        deployed.apply(deployment, dry_run=True)

    def test_a_pod_that_is_not_hardened_is_refused(self, deployed):
        bare = {"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        with pytest.raises(Answered) as refused:
            deployed.apply(self.pod({"spec": {"template": bare}}), dry_run=True)
        assert "restricted" in refused.value.message


class TestManifests:
    def test_all_are_accepted_without_a_field_that_nobody_knows(self, deployed):
        for folder in ("crd", "base"):
            for document in kustomized(folder):
                deployed.apply(document, dry_run=True)  # fieldValidation=Strict

    def test_the_receivers_environment_is_one_that_it_reads(self):
        receiver = next(d for d in kustomized("base") if d["kind"] == "Deployment")
        (container,) = receiver["spec"]["template"]["spec"]["containers"]
        environment = {entry["name"]: entry.get("value", "kafka:9092") for entry in container["env"]}
        config = ReceiveConfig.from_env(environment)
        assert environment.keys() <= config.to_env().keys()
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert (ports["http"], ports["metrics"], ports["health"]) == (
            config.port,
            config.metrics_port,
            config.health_port,
        )
        grace = receiver["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace > config.drain_timeout_seconds + 5

    def test_yaml_files_of_deploy_parse(self):
        for file in DEPLOY.rglob("*.yaml"):
            list(yaml.safe_load_all(file.read_text()))

    def test_dagsters_values_configure_our_run_launcher_as_it_wants_to_be(self):
        from dagster._config import process_config, resolve_to_config_type

        from orchestration.adapters.kubernetes_run_launcher import LocationRunLauncher

        (values,) = documents(DEPLOY / "dagster" / "values.yaml")
        launcher = values["runLauncher"]["config"]["customRunLauncher"]
        assert launcher["module"] == LocationRunLauncher.__module__
        result = process_config(resolve_to_config_type(LocationRunLauncher.config_type()), launcher["config"])
        assert result.success, result.errors
        locations = [deployment["name"] for deployment in values["dagster-user-deployments"]["deployments"]]
        assert set(launcher["config"]["in_location"]) <= set(locations)

    def test_dagsters_locations_read_their_environment(self):
        from orchestration.settings import Settings

        (values,) = documents(DEPLOY / "dagster" / "values.yaml")
        location = values["dagster-user-deployments"]["deployments"][0]
        environment = {entry["name"]: entry["value"] for entry in location["env"]}
        settings = Settings.from_env({**environment, "KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"})
        assert (settings.registry, settings.workloads.value) == ("kubernetes", "kubernetes")

"""What every Registry port promises: the same claims for the fake, for a folder of files and for Kubernetes."""

from __future__ import annotations

import threading
import time

import pytest
import yaml

from eventing.errors import NotFound
from orchestration.adapters.registry_folder import FolderRegistry
from tests.fakes.registry import FakeRegistry

FINALIZER = "sluice.dev/kafkachannel"
CHANNELS = "/apis/messaging.knative.dev/v1beta1/namespaces/shop/kafkachannels"
OTHER = "example.com/other"
SPEC = {"numPartitions": 3, "replicationFactor": 1, "retentionDuration": "PT168H"}
"""Complete, because an API server fills in what is missing."""
READY = [{"type": "Ready", "status": "True"}]


def channel(name="orders", namespace="shop", **spec):
    return {
        "apiVersion": "messaging.knative.dev/v1beta1",
        "kind": "KafkaChannel",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {**SPEC, **spec},
    }


class RegistryContract:
    """A subclass gives `registry`, and `declare` and `remove` for what teams do."""

    def test_an_empty_registry_has_no_channels(self, registry):
        assert registry.list_channels().channels == []

    def test_declared_channels_are_listed_in_order_with_what_the_registry_knows(self, registry, declare):
        declare(channel("b"))
        declare(channel("a"))
        found = registry.list_channels().channels
        assert [c["metadata"]["name"] for c in found] == ["a", "b"]
        assert found[0]["spec"] == SPEC
        assert (found[0]["metadata"]["generation"], found[0]["metadata"]["finalizers"]) == (1, [])
        assert found[0]["status"] == {}

    def test_a_status_is_merged_as_a_merge_patch(self, registry, declare):
        declare(channel())
        registry.list_channels()
        registry.update_status("shop", "orders", {"annotations": {"a": "1"}, "observedGeneration": 1}, None)
        registry.update_status("shop", "orders", {"annotations": {"a": None, "b": "2"}, "conditions": READY}, None)
        (found,) = registry.list_channels().channels
        assert found["status"] == {"annotations": {"b": "2"}, "observedGeneration": 1, "conditions": READY}

    def test_a_generation_grows_with_the_spec_and_with_nothing_else(self, registry, declare):
        declare(channel())
        registry.list_channels()
        registry.update_status("shop", "orders", {"observedGeneration": 1}, [FINALIZER])
        assert generation(registry) == 1
        declare(channel(numPartitions=4))
        assert generation(registry) == 2
        registry.update_status("shop", "orders", {"observedGeneration": 2}, None)
        assert generation(registry) == 2
        declare(channel(numPartitions=5))
        assert generation(registry) == 3

    def test_a_removed_channel_stays_until_its_finalizers_are_gone(self, registry, declare, remove):
        declare(channel())
        registry.list_channels()
        registry.update_status("shop", "orders", {"annotations": {"default.topic": "t"}}, [FINALIZER, OTHER])
        remove("shop", "orders")
        (found,) = registry.list_channels().channels
        assert found["metadata"]["deletionTimestamp"].endswith("Z")
        assert found["metadata"]["finalizers"] == [FINALIZER, OTHER]
        assert found["spec"] == SPEC
        assert found["status"]["annotations"] == {"default.topic": "t"}
        registry.update_status("shop", "orders", {}, [OTHER])
        assert len(registry.list_channels().channels) == 1
        registry.update_status("shop", "orders", {}, [])
        assert registry.list_channels().channels == []

    def test_removing_the_last_finalizer_twice_is_success(self, registry, declare, remove):
        declare(channel())
        registry.list_channels()
        registry.update_status("shop", "orders", {}, [FINALIZER])
        remove("shop", "orders")
        registry.list_channels()
        registry.update_status("shop", "orders", {}, [])
        registry.update_status("shop", "orders", {}, [])

    def test_a_removed_channel_without_finalizers_is_gone_at_once(self, registry, declare, remove):
        declare(channel())
        registry.list_channels()
        registry.update_status("shop", "orders", {"observedGeneration": 1}, None)
        remove("shop", "orders")
        assert registry.list_channels().channels == []

    def test_the_status_of_a_channel_that_is_not_there_is_not_found(self, registry):
        with pytest.raises(NotFound):
            registry.update_status("shop", "nothing", {"observedGeneration": 1}, None)

    def test_a_status_write_is_no_change_to_wait_for(self, registry, declare):
        declare(channel())
        registry.list_channels()
        cursor = registry.wait_for_change(None, 0.0)
        registry.update_status("shop", "orders", {"observedGeneration": 1}, [FINALIZER])
        assert registry.wait_for_change(cursor, 0.2) == cursor

    def test_a_declaration_ends_the_waiting(self, registry, declare):
        cursor = registry.wait_for_change(None, 0.0)
        seen = []
        started = time.monotonic()
        waiting = threading.Thread(target=lambda: seen.append(registry.wait_for_change(cursor, 10.0)))
        waiting.start()
        declare(channel())
        waiting.join(10.0)
        assert seen[0] != cursor
        assert time.monotonic() - started < 5.0

    def test_what_is_listed_is_a_copy(self, registry, declare):
        declare(channel())
        registry.list_channels().channels[0]["metadata"]["generation"] = 99
        assert generation(registry) == 1


def generation(registry):
    (found,) = registry.list_channels().channels
    return found["metadata"]["generation"]


class TestFakeRegistry(RegistryContract):
    @pytest.fixture
    def registry(self):
        return FakeRegistry()

    @pytest.fixture
    def declare(self, registry):
        return registry.declare

    @pytest.fixture
    def remove(self, registry):
        return registry.remove


class TestFolderRegistry(RegistryContract):
    @pytest.fixture
    def registry(self, tmp_path):
        return FolderRegistry(tmp_path)

    @pytest.fixture
    def declare(self, tmp_path):
        def declare(obj):
            file = tmp_path / f"{obj['metadata']['namespace']}.{obj['metadata']['name']}.yaml"
            file.write_text(yaml.safe_dump(obj))

        return declare

    @pytest.fixture
    def remove(self, tmp_path):
        return lambda namespace, name: (tmp_path / f"{namespace}.{name}.yaml").unlink()


@pytest.mark.cluster
class TestKubernetesRegistry(RegistryContract):
    """Against a real API server with our definition; what is more than the contract is in tests/cluster."""

    @pytest.fixture
    def registry(self, registry_cluster):
        from orchestration.adapters.kubernetes_clients.connection import KubernetesApi
        from orchestration.adapters.kubernetes_registry import KubernetesRegistry

        registry_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        registry = KubernetesRegistry(KubernetesApi.connect(registry_cluster.kubeconfig()), namespace="shop")
        yield registry
        registry.close()
        for left in registry.list_channels().channels:
            registry.update_status("shop", left["metadata"]["name"], {}, [])
            registry_cluster.request("DELETE", f"{CHANNELS}/{left['metadata']['name']}")

    @pytest.fixture
    def declare(self, registry_cluster):
        return registry_cluster.apply

    @pytest.fixture
    def remove(self, registry_cluster):
        return lambda namespace, name: registry_cluster.request("DELETE", f"{CHANNELS}/{name}")

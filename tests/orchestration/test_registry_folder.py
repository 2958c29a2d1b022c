"""A folder as registry: what authors and editors do to files, and what must not come of it."""

from __future__ import annotations

import os
import threading
import time

import pytest
import yaml

from eventing.errors import Unavailable
from orchestration.adapters import registry_folder
from orchestration.adapters.registry_folder import ANNOTATION_INVALID_DOCUMENT, FolderRegistry

GOOD = """\
apiVersion: messaging.knative.dev/v1beta1
kind: KafkaChannel
metadata:
  namespace: shop
  name: {name}
spec:
  numPartitions: {partitions}
"""
FINALIZER = "sluice.dev/kafkachannel"
NO_URI = "every subscriber needs a subscriberUri or a replyUri"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "registry"


@pytest.fixture(autouse=True)
def made(folder):
    folder.mkdir()


@pytest.fixture
def registry(folder):
    return FolderRegistry(folder)


def write(folder, name, text, *, age_s=10.0):
    """A file whose writer finished some time ago."""
    path = folder / name
    path.write_text(text)
    past = time.time() - age_s
    os.utime(path, (past, past))
    return path


def good(name="orders", partitions=3):
    return GOOD.format(name=name, partitions=partitions)


def names(registry):
    return [c["metadata"]["name"] for c in registry.list_channels().channels]


def problems(registry):
    return [str(problem) for problem in registry.list_channels().invalid]


def refused(registry, name):
    (found,) = [c for c in registry.list_channels().channels if c["metadata"]["name"] == name]
    return found["metadata"]["annotations"].get(ANNOTATION_INVALID_DOCUMENT)


def accept(registry, *channel_names):
    """What a reconciliation does first: our finalizer, and a status."""
    registry.list_channels()
    for name in channel_names:
        registry.update_status("shop", name, {"observedGeneration": 1}, [FINALIZER])


def test_a_file_may_hold_several_documents_and_empty_ones(folder, registry):
    write(folder, "all.yaml", "# a comment\n---\n" + good("a") + "---\n\n---\n" + good("b") + "...\n")
    assert names(registry) == ["a", "b"]
    assert problems(registry) == []


@pytest.mark.parametrize("name", [".orders.yaml", "orders.yaml~", "#orders.yaml#", "orders.yaml.swp", "4913", "a.txt"])
def test_hidden_files_and_what_editors_leave_are_not_read(folder, registry, name):
    write(folder, name, good())
    assert names(registry) == []


def test_a_file_that_is_no_yaml_is_reported_with_its_line(folder, registry):
    write(folder, "a.yaml", "apiVersion: x\nkind: [\nname: b\n")
    (problem,) = registry.list_channels().invalid
    assert (problem.object, problem.file, problem.line, problem.field) == ("a.yaml", "a.yaml", 3, "")
    assert problem.reason.startswith("is no valid YAML: ")


def test_a_broken_document_harms_no_neighbour(folder, registry):
    write(folder, "a.yaml", good("a") + "---\nfoo: [\n---\n" + good("b"))
    assert names(registry) == ["a", "b"]
    assert problems(registry) == ["a.yaml:9: is no valid YAML: did not find expected node content"]


def test_unknown_fields_are_reported_with_line_and_path(folder, registry):
    write(folder, "a.yaml", good() + "  numPartitons: 4\n  subscribers:\n  - uid: a\n    subscriberUrl: http://x/\n")
    assert problems(registry) == [
        "a.yaml:8: spec.numPartitons: is not a field of KafkaChannel",
        f"a.yaml:10: spec.subscribers[0].subscriberUri: is missing: {NO_URI}",
        "a.yaml:11: spec.subscribers[0].subscriberUrl: is not a field of KafkaChannel",
    ]
    assert "numPartitons" in refused(registry, "orders")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(good(partitions=0), "a.yaml:7: spec.numPartitions: must be from 1", id="partitions ≤ 0"),
        pytest.param(good(partitions="many"), "a.yaml:7: spec.numPartitions: must be a whole number", id="no number"),
        pytest.param("- a\n- b\n", "a.yaml:1: must be a KafkaChannel object", id="a list"),
        pytest.param("just words\n", "a.yaml:1: must be a KafkaChannel object", id="a word"),
        pytest.param(good().replace("KafkaChannel", "ConfigMap"), "a.yaml:2: kind: must be KafkaChannel", id="kind"),
        pytest.param(
            good().replace("  name: orders\n", ""), "a.yaml:3: metadata.name: must be a DNS name", id="no name"
        ),
        pytest.param(good("Orders"), "a.yaml:5: metadata.name: must be a DNS name", id="bad name"),
        pytest.param(
            good() + "  numPartitions: 4\n", "a.yaml:8: is no valid YAML: the key 'numPartitions'", id="twice"
        ),
        pytest.param("a: &a [*a]\n", "a.yaml:1: ", id="an alias of itself"),
        pytest.param(
            "a: !!python/object:os.system {}\n", "a.yaml:1: is no valid YAML: could not determine", id="a tag"
        ),
    ],
)
def test_bad_documents_are_reported_where_they_are(folder, registry, text, expected):
    write(folder, "a.yaml", text)
    assert problems(registry)[0].startswith(expected)
    assert FolderRegistry(folder).list_channels().invalid, "and by every other reader"


def test_bytes_that_are_no_text_are_reported(folder, registry):
    path = folder / "a.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert problems(registry) == ["a.yaml: is not UTF-8 text"]


def test_a_refused_change_leaves_the_last_good_declaration_in_force(folder, registry):
    write(folder, "a.yaml", good(partitions=3))
    accept(registry, "orders")
    write(folder, "a.yaml", good(partitions=-1))
    for reader in (registry, FolderRegistry(folder)):
        (found,) = reader.list_channels().channels
        assert found["spec"] == {"numPartitions": 3}
        assert found["metadata"]["generation"] == 1
        assert found["metadata"]["annotations"][ANNOTATION_INVALID_DOCUMENT].startswith("a.yaml:7: spec.numPartitions")


def test_the_last_good_declaration_survives_status_writes_meanwhile(folder, registry):
    write(folder, "a.yaml", good(partitions=3))
    accept(registry, "orders")
    write(folder, "a.yaml", good(partitions=-1))
    registry.list_channels()
    registry.update_status("shop", "orders", {"conditions": []}, None)
    (found,) = FolderRegistry(folder).list_channels().channels
    assert found["spec"] == {"numPartitions": 3}
    write(folder, "a.yaml", good(partitions=5))
    (found,) = registry.list_channels().channels
    assert (found["spec"], found["metadata"]["generation"]) == ({"numPartitions": 5}, 2)
    assert ANNOTATION_INVALID_DOCUMENT not in found["metadata"]["annotations"]


def test_a_file_that_cannot_be_understood_deletes_no_channel(folder, registry):
    write(folder, "a.yaml", good("a") + "---\n" + good("b"))
    write(folder, "c.yaml", good("c"))
    accept(registry, "a", "b", "c")
    write(folder, "a.yaml", good("a") + "---\nkind: [\n")
    found = {c["metadata"]["name"]: c["metadata"] for c in registry.list_channels().channels}
    assert set(found) == {"a", "b", "c"}
    assert not any("deletionTimestamp" in metadata for metadata in found.values())
    assert ANNOTATION_INVALID_DOCUMENT in found["b"]["annotations"]
    assert ANNOTATION_INVALID_DOCUMENT not in found["a"]["annotations"]
    assert "shop/b" in [problem.object for problem in registry.list_channels().invalid]


def test_a_channel_that_is_declared_twice_keeps_its_first_declaration(folder, registry):
    write(folder, "b.yaml", good(partitions=3))
    accept(registry, "orders")
    write(folder, "a.yaml", good(partitions=7))
    (found,) = registry.list_channels().channels
    assert found["spec"] == {"numPartitions": 3}
    (problem,) = registry.list_channels().invalid
    assert str(problem) == "a.yaml:1: metadata.name: this channel is already declared in b.yaml:1, which stays in force"
    assert problem.object == "shop/orders"


def test_a_duplicate_takes_over_when_the_first_is_removed(folder, registry):
    write(folder, "a.yaml", good(partitions=3))
    accept(registry, "orders")
    write(folder, "b.yaml", good(partitions=7))
    registry.list_channels()
    (folder / "a.yaml").unlink()
    (found,) = registry.list_channels().channels
    assert found["spec"] == {"numPartitions": 7}
    assert "deletionTimestamp" not in found["metadata"]


def test_a_folder_that_vanished_is_unavailable_and_has_not_no_channels(folder, registry):
    write(folder, "a.yaml", good())
    accept(registry, "orders")
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(Unavailable, match="cannot be read"):
        registry.list_channels()
    with pytest.raises(Unavailable):
        registry.update_status("shop", "orders", {"conditions": []}, None)


def test_a_vanished_folder_is_a_change_and_so_is_its_return(folder, registry):
    cursor = registry.wait_for_change(None, 0.0)
    folder.rename(folder.with_name("elsewhere"))
    gone = registry.wait_for_change(cursor, 5.0)
    assert gone != cursor
    folder.with_name("elsewhere").rename(folder)
    assert registry.wait_for_change(gone, 5.0) == cursor


def test_an_editor_that_replaces_a_file_deletes_nothing(folder, registry):
    """vim moves the file away and writes a new one; for a moment there is none."""
    write(folder, "a.yaml", good())
    accept(registry, "orders")
    (folder / "a.yaml").unlink()
    looking = FolderRegistry(folder, sleep=lambda _: write(folder, "a.yaml", good()))
    (found,) = looking.list_channels().channels
    assert "deletionTimestamp" not in found["metadata"]


def test_a_file_that_is_being_written_is_read_when_it_is_whole(folder, registry):
    whole = good(partitions=4)
    write(folder, "a.yaml", good(partitions=3))
    accept(registry, "orders")
    write(folder, "a.yaml", whole[:-2], age_s=0.0)
    # The writer goes on while the registry waits for the file to settle.
    waiting = FolderRegistry(folder, sleep=lambda _: write(folder, "a.yaml", whole))
    (found,) = waiting.list_channels().channels
    assert found["spec"] == {"numPartitions": 4}


def test_a_file_that_never_settles_is_read_in_the_end(folder):
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds
        write(folder, "a.yaml", good(partitions=3) + f"# {clock[0]}\n", age_s=0.0)

    write(folder, "a.yaml", good(partitions=3), age_s=0.0)
    registry = FolderRegistry(folder, monotonic=lambda: clock[0], sleep=sleep)
    assert names(registry) == ["orders"]
    assert clock[0] <= registry_folder.SETTLE_LIMIT_S + registry_folder.SETTLE_S


def test_a_channel_declared_anew_while_it_is_deleted_starts_afresh(folder, registry):
    write(folder, "a.yaml", good(partitions=3))
    accept(registry, "orders")
    (folder / "a.yaml").unlink()
    registry.list_channels()
    registry.update_status("shop", "orders", {"conditions": ["deleting"]}, None)
    write(folder, "a.yaml", good(partitions=5))
    (found,) = registry.list_channels().channels
    assert "deletionTimestamp" in found["metadata"]
    assert found["spec"] == {"numPartitions": 3}
    registry.update_status("shop", "orders", {}, [])
    (found,) = registry.list_channels().channels
    assert (found["spec"], found["metadata"]["generation"], found["status"]) == ({"numPartitions": 5}, 1, {})
    assert "deletionTimestamp" not in found["metadata"]


def test_deletion_is_seen_by_a_process_that_never_saw_the_file(folder, registry):
    write(folder, "a.yaml", good())
    accept(registry, "orders")
    (folder / "a.yaml").unlink()
    (found,) = FolderRegistry(folder).list_channels().channels
    assert found["metadata"]["deletionTimestamp"]
    assert found["spec"] == {"numPartitions": 3}


def test_reading_changes_nothing(folder, registry):
    write(folder, "a.yaml", good())
    accept(registry, "orders")
    write(folder, "a.yaml", good(partitions=5))
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    registry.list_channels()
    (folder / "a.yaml").unlink()
    del before[folder / "a.yaml"]
    registry.list_channels()
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before


def test_a_status_file_is_shaped_as_in_a_cluster(folder, registry):
    write(folder, "a.yaml", good())
    accept(registry, "orders")
    document = yaml.safe_load((folder / ".status" / "shop.orders.yaml").read_text())
    assert list(document) == ["apiVersion", "kind", "metadata", "status"]
    metadata = document["metadata"]
    assert (metadata["namespace"], metadata["name"], metadata["generation"]) == ("shop", "orders", 1)
    assert document["status"] == {"observedGeneration": 1}


def test_writing_the_same_status_again_does_not_touch_the_file(folder, registry):
    write(folder, "a.yaml", good())
    accept(registry, "orders")
    path = folder / ".status" / "shop.orders.yaml"
    before = path.stat().st_mtime_ns, path.stat().st_ino
    accept(registry, "orders")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_a_damaged_status_file_is_reported_and_harms_no_other(folder, registry):
    write(folder, "a.yaml", good("a") + "---\n" + good("b"))
    accept(registry, "a", "b")
    (folder / ".status" / "shop.a.yaml").write_text("status: [")
    found = {c["metadata"]["name"]: c for c in registry.list_channels().channels}
    assert found["a"]["status"] == {}
    assert found["b"]["status"] == {"observedGeneration": 1}
    (problem,) = registry.list_channels().invalid
    assert (problem.object, problem.file) == ("shop/a", ".status/shop.a.yaml")


def test_a_damaged_status_file_is_written_anew(folder, registry):
    write(folder, "a.yaml", good("a"))
    accept(registry, "a")
    (folder / ".status" / "shop.a.yaml").write_text("status: [")
    accept(registry, "a")
    assert problems(registry) == []


def test_many_writers_lose_no_status(folder):
    write(folder, "a.yaml", good())
    FolderRegistry(folder).list_channels()

    def work(key):
        own = FolderRegistry(folder)
        for number in range(10):
            own.update_status("shop", "orders", {key: number}, None)

    threads = [threading.Thread(target=work, args=(f"k{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (found,) = FolderRegistry(folder).list_channels().channels
    assert found["status"] == {f"k{n}": 9 for n in range(4)}


def test_users_cannot_set_what_belongs_to_the_registry(folder, registry):
    text = good().replace(
        "  name: orders\n",
        "  name: orders\n  generation: 7\n  finalizers: [x]\n  deletionTimestamp: 2026-01-01T00:00:00Z\n",
    )
    write(folder, "a.yaml", text + "status: {observedGeneration: 9}\n")
    (found,) = registry.list_channels().channels
    assert (found["metadata"]["generation"], found["metadata"]["finalizers"]) == (1, [])
    assert "deletionTimestamp" not in found["metadata"]
    assert found["status"] == {}
    assert problems(registry) == []


def test_only_changed_files_are_parsed_again(folder, registry, monkeypatch):
    for number in range(20):
        write(folder, f"{number}.yaml", good(f"c{number}"))
    registry.list_channels()
    parsed = []
    real = registry_folder.read_documents
    monkeypatch.setattr(registry_folder, "read_documents", lambda name, text: parsed.append(name) or real(name, text))
    write(folder, "3.yaml", good("c3", partitions=9))
    registry.list_channels()
    assert parsed == ["3.yaml"]

"""What a file of KafkaChannel YAML says, with the line of everything that is wrong with it.

Stricter than `eventing.channels.parse_channel`: a field that nobody knows is refused here, as `kubectl apply` refuses
it, because `numPartitons: 10` that is silently ignored costs its author an afternoon. Each document of a file stands
alone: one that cannot be parsed says nothing about its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from eventing.channels import KIND, parse_channel
from eventing.errors import InvalidResource
from orchestration.ports import InvalidDocument, JsonObject

MAX_PROBLEMS = 20
"""Problems reported of one document: the rest rarely adds anything."""

_DOCUMENT_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)
"""`---` at the start of a line starts a document, wherever it stands (YAML 1.2, c-directives-end)."""

_DESTINATION = {"ref", "uri", "CACerts", "audience"}
_DELIVERY: dict[str, Any] = {
    "retry": None,
    "backoffPolicy": None,
    "backoffDelay": None,
    "timeout": None,
    "retryAfterMax": None,
    "format": None,
    "deadLetterSink": dict.fromkeys(_DESTINATION),
}
_SUBSCRIBER: dict[str, Any] = {
    "uid": None,
    "name": None,
    "generation": None,
    "subscriberUri": None,
    "subscriberCACerts": None,
    "subscriberAudience": None,
    "replyUri": None,
    "replyCACerts": None,
    "replyAudience": None,
    "delivery": _DELIVERY,
    "auth": None,
}
_KNOWN: dict[str, Any] = {
    "apiVersion": None,
    "kind": None,
    "metadata": dict.fromkeys(
        [
            *["name", "namespace", "labels", "annotations"],
            # What an exported object carries besides: taken, and the registry's own values are used.
            *["generation", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "finalizers"],
            *["deletionGracePeriodSeconds", "ownerReferences", "managedFields", "generateName", "selfLink"],
        ]
    ),
    "spec": {
        "numPartitions": None,
        "replicationFactor": None,
        "retentionDuration": None,
        "delivery": _DELIVERY,
        "subscribers": [_SUBSCRIBER],
    },
    "status": None,
}
"""Fields of KafkaChannel v1beta1; None: everything below it is taken as it is."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C parser where it is built
    """YAML without timestamps: a time stays the text that it was, as in JSON. Keys given twice are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  # PyYAML's signature
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                reason = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, reason, key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `key` is None where it does not say which object it is about."""

    file: str
    line: int
    """Of its first content, counted from 1."""
    key: tuple[str, str] | None
    """Namespace and name."""
    object: JsonObject | None
    """As declared, with the namespace filled in; None where it is no mapping."""
    problems: tuple[InvalidDocument, ...]


def unreadable(file: str, line: int | None, reason: str) -> Document:
    """A document, or a whole file, of which nothing is known but why."""
    problem = InvalidDocument(object=file, file=file, line=line, field="", reason=reason)
    return Document(file=file, line=line or 1, key=None, object=None, problems=(problem,))


def read_documents(file: str, text: str) -> list[Document]:
    """All documents of one file, in order; those that hold nothing but comments are left out."""
    documents = []
    for first_line, part in _split(text):
        try:
            loader = Loader(part)
            try:
                node = loader.get_single_node()
                value = None if node is None else loader.construct_document(node)
            finally:
                loader.dispose()
        except yaml.YAMLError as exc:
            documents.append(_unparsable(file, first_line, part, exc))
            continue
        except (RecursionError, ValueError) as exc:  # nested a thousand deep; a number out of range
            documents.append(unreadable(file, first_line, f"is no usable YAML: {exc}"))
            continue
        if node is None or value is None:
            continue
        documents.append(_document(file, first_line, node, value))
    return documents


def _split(text: str) -> Iterator[tuple[int, str]]:
    """(line of its start, text) of each document."""
    starts = [0, *(match.start() for match in _DOCUMENT_START.finditer(text) if match.start() > 0)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text.count("\n", 0, start) + 1, text[start:end]


def _unparsable(file: str, first_line: int, text: str, exc: yaml.YAMLError) -> Document:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    reason = getattr(exc, "problem", None) or str(exc).splitlines()[0]
    # What is missing at the end is missed one line after it.
    line = min(mark.line, len(text.splitlines()) - 1) if mark is not None else 0
    return unreadable(file, first_line + max(0, line), f"is no valid YAML: {reason}")


def _document(file: str, first_line: int, node: yaml.Node, value: Any) -> Document:
    line = first_line + node.start_mark.line
    if not isinstance(value, dict):
        return unreadable(file, line, "must be a KafkaChannel object (a mapping with apiVersion, kind, metadata, spec)")
    metadata = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    name, namespace = metadata.get("name"), metadata.get("namespace") or "default"
    key = None
    if isinstance(name, str) and name and isinstance(namespace, str) and value.get("kind") == KIND:
        key = (namespace, name)
    declared: JsonObject = {field: part for field, part in value.items() if field != "status"}
    if isinstance(value.get("metadata"), dict):
        own = {"generation", "finalizers", "deletionTimestamp", "resourceVersion", "creationTimestamp", "managedFields"}
        declared["metadata"] = {field: part for field, part in metadata.items() if field not in own}
        declared["metadata"]["namespace"] = namespace

    found = [(path, "is not a field of KafkaChannel") for path in _unknown_fields(value, _KNOWN, "")]
    try:
        parse_channel(declared)
    except InvalidResource as exc:
        found += [(problem.path, problem.reason) for problem in exc.problems]
    problems = tuple(
        InvalidDocument(
            object="/".join(key) if key else file,
            file=file,
            line=first_line + _line_of(node, path),
            field=path,
            reason=reason,
        )
        for path, reason in found[:MAX_PROBLEMS]
    )
    return Document(file=file, line=line, key=key, object=declared, problems=problems)


def _unknown_fields(value: Any, known: Any, path: str) -> Iterator[str]:
    if isinstance(known, dict) and isinstance(value, dict):
        for key, part in value.items():
            below = f"{path}.{key}" if path else str(key)
            if key not in known:
                yield below
            else:
                yield from _unknown_fields(part, known[key], below)
    elif isinstance(known, list) and isinstance(value, list):
        for index, part in enumerate(value):
            yield from _unknown_fields(part, known[0], f"{path}[{index}]")


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]|\[([^\]]*)\]")
"""A step of a field path: a key, an index, or a key that holds dots: `metadata.annotations[sluice.dev/x]`."""


def _line_of(node: yaml.Node, path: str) -> int:
    """Line of the field (from 0, within the document), or of the deepest part of its path that exists."""
    line = int(node.start_mark.line)
    for key, index, bracketed in _STEP.findall(path):
        if isinstance(node, yaml.MappingNode):
            wanted = key or bracketed or index
            pair = next((pair for pair in node.value if pair[0].value == wanted), None)
            if pair is None:
                return line
            line, node = int(pair[0].start_mark.line), pair[1]
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = int(node.start_mark.line)
        else:
            return line
    return line

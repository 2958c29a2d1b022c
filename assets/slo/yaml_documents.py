"""YAML as the report needs it: numbers exact, times as text.

A target of 99.9 % must be 0.999 and not the nearest binary fraction; so every YAML float becomes a Decimal. Times stay
text, because each field has its own rule about zones.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import yaml

from assets.slo.errors import DamagedInput


class _ExactLoader(yaml.SafeLoader):
    """SafeLoader with Decimal for float, without timestamps, and which refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as in PyYAML
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Decimal | float:
    try:
        return Decimal(node.value.replace("_", ""))
    except InvalidOperation:
        return loader.construct_yaml_float(node)  # .inf, .nan and sexagesimals, which no field of ours accepts


_ExactLoader.add_constructor("tag:yaml.org,2002:float", _decimal)


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    del loader
    return str(node.value)


_ExactLoader.add_constructor("tag:yaml.org,2002:timestamp", _text)


def load_documents(text: str, source: str) -> list[Any]:
    """All documents of a file, empty ones left out. Raises DamagedInput with file, line and column."""
    try:
        # Not the C loader: it is not needed for files of this size and lacks the overridable constructor.
        documents = list(yaml.load_all(text, Loader=_ExactLoader))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise DamagedInput(f"{source}{place}: not readable as YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise DamagedInput(f"{source}: not readable as YAML: {exc}") from exc
    return [document for document in documents if document is not None]

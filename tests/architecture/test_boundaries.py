"""The house keeps its rooms: who may import whom, and what each image can do without."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OURS = ("eventing", "orchestration", "assets", "dispatcher_image", "canary_image")


def test_the_import_contracts_hold():
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stdout[-3000:]


def closure_of_extra(extra: str) -> set[str]:
    """Top-level modules of every distribution that `sluice[extra]` brings, its dependencies included."""
    wanted = [
        requirement
        for requirement in map(Requirement, metadata.requires("sluice") or [])
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    ]
    distributions: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in distributions:
            continue
        distributions.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        for need in map(Requirement, needs):
            extras = requirement.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                wanted.append(need)
    return {
        module
        for module, names in metadata.packages_distributions().items()
        if any(re.sub(r"[-_.]+", "-", n).lower() in distributions for n in names)
    }


PROGRAMS = [
    pytest.param("dispatcher", "dispatcher_image", ["dispatcher_image.__main__", "dispatcher_image.dispatch",
                                                     "dispatcher_image.receiver"], id="dispatcher"),
    pytest.param("canary", "canary_image", ["canary_image.__main__"], id="canary"),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "package", "modules"), PROGRAMS)
def test_an_image_starts_with_its_own_extra_and_two_folders(extra, package, modules):
    """What the Dockerfile leaves out must not be missed: every other module is refused at import."""
    allowed = closure_of_extra(extra) | set(sys.stdlib_module_names) | {"eventing", package}
    program = f"""
import importlib.abc, sys
allowed = {sorted(allowed)!r}
class OnlyItsOwn(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ImportError(f"{{name}} is not in this image")
sys.meta_path.insert(0, OnlyItsOwn())
for module in {modules!r}:
    __import__(module)
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True)

    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("package", OURS)
def test_our_package_names_clash_with_nobody(package):
    assert set(metadata.packages_distributions().get(package, ["sluice"])) == {"sluice"}


def test_the_reconciling_code_location_does_not_load_spark_or_clients():
    """A run imports its location anew; Spark would cost seconds and the clients some tenths of one."""
    program = (
        "import sys, orchestration.definitions;"
        "print([m for m in ('pyspark', 'pandas', 'kubernetes', 'kafka', 'circus') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert result.stdout.strip().splitlines()[-1] == "[]"


def test_nothing_unfinished_is_marked_in_the_code():
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]

    assert found == []

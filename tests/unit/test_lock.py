"""deploy/requirements*.txt hold what pyproject.toml asks for, hashed, and name no address."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def locked(name: str) -> dict[str, str]:
    """The version of each package in a lock."""
    lines = (ROOT / "deploy" / name).read_text("utf-8").splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if not line.startswith(" "))


@pytest.mark.parametrize(("lock", "extra"), [("requirements.txt", "fast"), ("requirements-dev.txt", "dev")])
def test_lock_satisfies_pyproject(lock: str, extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = locked(lock)
    for text in [*project["dependencies"], *project["optional-dependencies"][extra]]:
        wanted = Requirement(text)
        version = versions.get(canonicalize_name(wanted.name))
        assert version is not None, f"{lock} lacks {text}: run sh deploy/lock.sh"
        assert wanted.specifier.contains(version), f"{lock} has {version} for {text}: run sh deploy/lock.sh"


def test_deployed_versions_are_the_tested_ones() -> None:
    assert locked("requirements.txt").items() <= locked("requirements-dev.txt").items()


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-dev.txt"])
def test_every_package_has_hashes_and_no_address(lock: str) -> None:
    packages = re.split(r"\n(?! )", (ROOT / "deploy" / lock).read_text("utf-8").rstrip())
    for package in packages:
        assert re.fullmatch(r"[a-z0-9-]+==\S+( ; [^\\]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\\n)?)+", package), (
            package
        )

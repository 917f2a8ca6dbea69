"""Writes graphd/v1 from proto/: ``python -m tests.generate``, or with ``--check`` tells whether it is stale."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("graphd/v1")
PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(target: Path) -> None:
    """Runs protoc over every .proto file; the modules land in target/graphd/v1."""
    outputs = [f"--{plugin}_out={target}" for plugin in ("python", "grpc_python")]
    for plugin in ("mypy", "mypy_grpc"):
        executable = Path(sys.executable).with_name(f"protoc-gen-{plugin}")
        outputs += [f"--plugin={executable}", f"--{plugin}_out=quiet:{target}"]
    sources = sorted(path.relative_to(ROOT / "proto").as_posix() for path in (ROOT / "proto" / PACKAGE).glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *outputs, *sources]
    subprocess.run(command, cwd=ROOT / "proto", check=True)


def modules(folder: Path) -> dict[str, str]:
    """The text of each generated file in a folder, by file name."""
    return {path.name: path.read_text("utf-8") for pattern in PATTERNS for path in folder.glob(pattern)}


def stale(fresh: Path) -> list[str]:
    """The names of committed files that differ from those generated under ``fresh``, or that only one side has."""
    wanted, committed = modules(fresh / PACKAGE), modules(ROOT / PACKAGE)
    return sorted(name for name in wanted.keys() | committed.keys() if wanted.get(name) != committed.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when graphd/v1 is stale")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory(prefix="graphd-generate-") as folder:
        fresh = Path(folder)
        generate(fresh)
        names = stale(fresh)
        if check:
            if names:
                print(f"graphd/v1 is stale ({', '.join(names)}): run python -m tests.generate", file=sys.stderr)
            return 1 if names else 0
        for name in names:
            (ROOT / PACKAGE / name).unlink(missing_ok=True)
            if (fresh / PACKAGE / name).exists():
                shutil.copyfile(fresh / PACKAGE / name, ROOT / PACKAGE / name)
            print(f"{PACKAGE / name} brought up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build hook: generates the gRPC stubs, which are not kept in the repository, beside their .proto file."""

import os
import tempfile
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = Path("remuda/rpc/backend.proto")
STUBS = ("backend_pb2.py", "backend_pb2.pyi", "backend_pb2_grpc.py")


class GrpcStubs(BuildHookInterface[Any]):
    """Runs before a wheel and before an editable install alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root, "src"))


def generate(source: Path) -> None:
    """Write the stubs of `source`/PROTO next to it, each file whole or not at all."""
    target = source / PROTO.parent
    # Inside the target, so that the files move by rename: something may import the old ones meanwhile.
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        # Named from the source root: the generated import is then `from remuda.rpc import backend_pb2`.
        status = protoc.main(["protoc", f"--proto_path={source}", *outputs, PROTO.as_posix()])
        if status != 0:
            raise RuntimeError(f"protoc could not compile {PROTO} (status {status}); its output stands above")
        for stub in STUBS:
            os.replace(Path(scratch, PROTO.parent, stub), target / stub)

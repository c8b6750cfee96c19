"""Packages on an index of the tests' own."""

import hashlib
import io
import json
import zipfile

from tests.support.hub import HubServer

WHEEL = "tiny_model-1.0-py3-none-any.whl"


def wheel(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def serve_package(
    hub: HubServer, files: dict[str, bytes], *, as_html: bool = False, storage: HubServer | None = None
) -> int:
    """Puts tiny-model 1.0 on the index; returns the size of its wheel. `storage` is who has the wheel."""
    content = wheel(files)
    url = (storage or hub).add(f"/files/{WHEEL}", content)
    digest = hashlib.sha256(content).hexdigest()
    if as_html:
        page = f'<a href="../../files/{WHEEL}#sha256={digest}">{WHEEL}</a><a href="x-1.0.tar.gz">x</a>'
        hub.add("/simple/tiny-model/", page.encode(), content_type="text/html")
        return len(content)
    listed = [
        {"filename": "tiny_model-1.0.tar.gz", "url": "../../files/x.tar.gz", "hashes": {}},
        {
            "filename": WHEEL,
            "url": url if storage is not None else f"../../files/{WHEEL}",
            "hashes": {"sha256": digest},
        },
    ]
    body = json.dumps({"meta": {"api-version": "1.1"}, "files": listed}).encode()
    hub.add("/simple/tiny-model/", body, content_type="application/vnd.pypi.simple.v1+json")
    return len(content)

"""Models that are uploaded, by the tus protocol (1.0.0: creation, checksum, expiration, termination), from
commands and browsers alike. An upload becomes a model by an install from `upload:ID`.
"""

from collections.abc import Iterable
from email.utils import format_datetime
from itertools import groupby
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Request, Response

from remuda.core.errors import Invalid
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import Responses, answer, gives, refuses, takes_raw
from remuda.gateway.services import Svc
from remuda.model_installs import upload_rules as rules
from remuda.model_installs.upload_rules import UploadProgress
from remuda.models.files import SIZE_MAX
from remuda.wire.model_uploads import ModelUploadView, ModelUploadViews, UploadedFileView

PATH: Final = "/api/model-uploads"
_VERSION: Final = "1.0.0"
_TUS: Final = {"Tus-Resumable": _VERSION, "Cache-Control": "no-store"}
_ABILITIES: Final = {
    "Tus-Version": _VERSION,
    "Tus-Extension": "creation,checksum,expiration,termination",
    "Tus-Checksum-Algorithm": "sha256",
    "Tus-Max-Size": str(SIZE_MAX),
}
_PART: Final = "application/offset+octet-stream"
_NOTHING: Final[Responses] = {204: {"description": "Done; headers say how far it is."}}

routes = APIRouter(tags=["models"], dependencies=[Depends(require_admin)])
FileId = Annotated[str, Path(max_length=100, description="Of a file, or of all files of an upload.")]


class UnknownVersion(Invalid):
    http_status = 412


class WrongMediaType(Invalid):
    http_status = 415


def check_version(request: Request) -> None:
    version = request.headers.get("tus-resumable", "")
    if version != _VERSION:
        raise UnknownVersion(
            f"Tus-Resumable is {version[:20]!r}; this frontend speaks {_VERSION}",
            hint=f"send the header Tus-Resumable: {_VERSION}",
        )


@routes.options(PATH, status_code=204, responses=_NOTHING | refuses(401))
async def abilities() -> Response:
    """What this frontend can do of the tus protocol."""
    return Response(status_code=204, headers=_TUS | _ABILITIES)


@routes.post(
    PATH,
    status_code=201,
    responses=gives(UploadedFileView, 400, 401, 409, 412, status=201),
    dependencies=[Depends(check_version)],
)
async def begin_upload(request: Request, svc: Svc, admin: Admin) -> Response:
    """Announce a file: `Upload-Length`, and `Upload-Metadata` with its `filename` below the model's folder;
    `upload`, an id that all files of a model share; `sha256`; `model`, the name that it is to be installed
    under: 409 if that is taken. A file that was announced before under this id goes on: `Upload-Offset` of
    the answer says where. 503, code `disk_full`: it does not fit."""
    if "upload-length" not in request.headers:
        raise Invalid("Upload-Length is missing: the size of the file has to be known when it is announced")
    metadata = rules.read_metadata(request.headers.get("upload-metadata", ""))
    uploads = svc.serving.uploads
    length = request.headers["upload-length"]
    wanted = rules.announced_file(length, metadata, uploads.new_id(), admin)
    if name := metadata.get("model"):
        await svc.serving.installs.check_upload(name, wanted.upload, wanted.sha256)
    begun = await uploads.create(wanted)
    answered = answer(_file_view(begun), 201)
    answered.headers.update(_TUS | _state(begun) | {"Location": _url(begun)})
    return answered


@routes.get(PATH, responses=gives(ModelUploadViews, 401))
async def list_uploads(svc: Svc) -> Response:
    """What has been uploaded to this frontend and is not installed yet."""
    found = await svc.serving.uploads.listing()
    return answer(ModelUploadViews(uploads=tuple(_views(found))))


@routes.get(f"{PATH}/{{file_id}}", responses=gives(ModelUploadView, 401, 404))
async def upload_state(file_id: FileId, svc: Svc) -> Response:
    """How far one file is (HEAD: in `Upload-Offset`), or all files of an upload."""
    upload, _, key = file_id.partition(".")
    if not key:
        answered = answer(next(iter(_views(await svc.serving.uploads.files(upload)))))
        answered.headers.update(_TUS)
        return answered
    found = await svc.serving.uploads.look(file_id)
    answered = answer(next(iter(_views([found]))))
    answered.headers.update(_TUS | _state(found))
    return answered


@routes.patch(
    f"{PATH}/{{file_id}}",
    status_code=204,
    responses=_NOTHING | refuses(400, 401, 404, 408, 409, 412, 415, 460, 503),
    dependencies=[Depends(check_version)],
    openapi_extra=takes_raw(_PART),
)
async def upload_part(file_id: FileId, request: Request, svc: Svc) -> Response:
    """Any number of bytes from `Upload-Offset` on. With `Upload-Checksum` all of them are taken or none. What
    arrived before a break is kept. 409: the file has another length by now, which HEAD tells."""
    headers = request.headers
    if headers.get("content-type", "").partition(";")[0].strip() != _PART:
        raise WrongMediaType(f"the content type of a part must be {_PART}")
    announced = headers.get("content-length")
    reached = await svc.serving.uploads.append(
        file_id,
        rules.number(headers.get("upload-offset", ""), "Upload-Offset"),
        request.stream(),
        announced=None if announced is None else int(announced),  # The server has checked it.
        checksum=rules.read_checksum(headers.get("upload-checksum", "")),
    )
    return Response(status_code=204, headers=_TUS | _state(reached))


@routes.delete(
    f"{PATH}/{{file_id}}",
    status_code=204,
    responses=_NOTHING | refuses(401, 404, 409, 412),
    dependencies=[Depends(check_version)],
)
async def end_upload(file_id: FileId, svc: Svc) -> Response:
    """Remove one file, or all files of an upload. 409: it is being installed, by the operation it names."""
    upload, _, key = file_id.partition(".")
    await svc.serving.installs.discard_upload(upload, key)
    return Response(status_code=204, headers=_TUS)


def _state(at: UploadProgress) -> dict[str, str]:
    expires = format_datetime(at.expires_at.replace(microsecond=0), usegmt=True)
    return {
        "Upload-Offset": str(at.offset),
        "Upload-Length": str(at.file.size),
        "Upload-Expires": expires,
    }


def _views(found: Iterable[UploadProgress]) -> Iterable[ModelUploadView]:
    for upload, group in groupby(found, key=lambda one: one.file.upload):
        files = list(group)
        yield ModelUploadView(
            upload=upload,
            source=f"upload:{upload}",
            complete=all(one.complete for one in files),
            expires_at=max(one.expires_at for one in files),
            files=tuple(_file_view(one) for one in files),
        )


def _file_view(at: UploadProgress) -> UploadedFileView:
    file = at.file
    return UploadedFileView(
        id=file.id, url=_url(at), path=file.path, size=file.size, offset=at.offset, sha256=file.sha256
    )


def _url(at: UploadProgress) -> str:
    return f"{PATH}/{at.file.id}"

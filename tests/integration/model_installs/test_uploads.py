"""What people upload becomes a model when it is whole and checked, and is nothing before."""

import errno
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Conflict, Forbidden, Invalid, NotFound
from remuda.model_installs import upload_rules
from remuda.model_installs.service import InstallRequest
from remuda.model_installs.upload_rules import AnnouncedFile
from remuda.model_installs.uploads import ChecksumWrong, ModelUploads
from remuda.models.reading import read_model
from remuda.oci import disk
from remuda.oci.errors import DiskFull
from remuda.ops.model import State, Wish
from tests.integration.model_installs.conftest import Make
from tests.integration.model_installs.test_installing import SHA256, TINY, padded
from tests.support.hub import HubServer
from tests.support.images import noise
from tests.support.model_rig import ModelFrontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
UPLOAD = "my-upload"


class Cut(Exception):
    """The connection broke."""


async def sent(content: bytes, *, cut: bool = False, piece: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), piece):
        yield content[start : start + piece]
    if cut:
        raise Cut


def safetensors() -> bytes:
    """One tensor of four numbers."""
    header = b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    return len(header).to_bytes(8, "little") + header + bytes(16)


async def put(uploads: ModelUploads, content: bytes, path: str = "m.gguf", sha256: str = "") -> str:
    begun = await uploads.create(AnnouncedFile(UPLOAD, path, len(content), sha256))
    await uploads.append(begun.file.id, begun.offset, sent(content[begun.offset :]))
    return begun.file.id


async def test_what_was_uploaded_is_installed_like_any_other_source(frontend: ModelFrontend) -> None:
    await put(frontend.uploads, TINY, "Tiny-Llama.Q4_0.gguf", SHA256)
    assert frontend.visible() == []

    model = await frontend.installed(await frontend.install(f"upload:{UPLOAD}", context_size=512))

    assert (model.name, model.kept_by) == ("tiny-llama", "frontend-1")
    assert read_model(model.text).context_size == 512
    assert model.manifest is not None
    assert [file.sha256 for file in model.manifest.files] == [SHA256]
    assert frontend.visible() == ["tiny-llama/Tiny-Llama.Q4_0.gguf"]
    assert await frontend.uploads.listing() == []
    await frontend.tidy()
    assert not list((frontend.library.blobs.root / "uploads").iterdir()), "its room is free again"


async def test_an_upload_goes_on_wherever_it_was_cut(frontend: ModelFrontend) -> None:
    content, dice = padded(200_000), SeededEntropy(7)
    begun = await frontend.uploads.create(AnnouncedFile(UPLOAD, "m.gguf", len(content)))
    at, cuts = 0, 0
    while at < len(content):
        part = content[at : at + 1 + int(dice.fraction() * 90_000)]
        if at + len(part) < len(content):
            cuts += 1
            with pytest.raises(Cut):
                await frontend.uploads.append(begun.file.id, at, sent(part, cut=True, piece=777))
        else:
            await frontend.uploads.append(begun.file.id, at, sent(part))
        # As another frontend process would find it: nothing but the disk is asked.
        reopened = ModelUploads(frontend.library, SystemClock(), dice)
        at = (await reopened.look(begun.file.id)).offset
    assert cuts > 2

    model = await frontend.installed(await frontend.install(f"upload:{UPLOAD}"))
    assert model.manifest is not None
    assert model.manifest.files[0].sha256 == hashlib.sha256(content).hexdigest()


async def test_a_part_that_does_not_fit_changes_nothing(frontend: ModelFrontend) -> None:
    uploads = frontend.uploads
    file_id = (await uploads.create(AnnouncedFile(UPLOAD, "m.gguf", 100))).file.id
    await uploads.append(file_id, 0, sent(bytes(40)))

    with pytest.raises(Conflict, match="has 40 bytes, and this part begins at 30"):
        await uploads.append(file_id, 30, sent(bytes(10)))
    with pytest.raises(Invalid, match="beyond the 100 bytes"):
        await uploads.append(file_id, 40, sent(b""), announced=61)
    with pytest.raises(Invalid, match="beyond the 100 bytes"):
        await uploads.append(file_id, 40, sent(bytes(61), piece=50))  # Its length was not announced.
    with pytest.raises(ChecksumWrong):
        await uploads.append(file_id, 40, sent(bytes(10)), checksum=hashlib.sha256(b"other").digest())
    assert (await uploads.look(file_id)).offset == 40
    await uploads.append(file_id, 40, sent(bytes(60)), checksum=hashlib.sha256(bytes(60)).digest())
    assert (await uploads.look(file_id)).complete


async def test_an_upload_that_is_not_whole_cannot_be_installed(frontend: ModelFrontend) -> None:
    begun = await frontend.uploads.create(AnnouncedFile(UPLOAD, "m.gguf", len(TINY)))
    await frontend.uploads.append(begun.file.id, 0, sent(TINY[:10]))
    with pytest.raises(Conflict, match=f"m.gguf has 10 of {len(TINY)} bytes"):
        await frontend.install(f"upload:{UPLOAD}")
    with pytest.raises(NotFound, match="no upload 'no-such-upload'"):
        await frontend.install("upload:no-such-upload")


async def test_other_bytes_than_promised_become_no_model(frontend: ModelFrontend) -> None:
    await put(frontend.uploads, TINY, sha256="0" * 64)
    step = await frontend.ended(await frontend.install(f"upload:{UPLOAD}"))
    assert step.state is State.FAILED
    assert step.problem is not None
    assert f"arrived with the checksum {SHA256}, and not 000" in step.problem.message
    assert frontend.visible() == []
    await frontend.tidy()
    with pytest.raises(NotFound):
        await frontend.uploads.files(UPLOAD)


@pytest.mark.parametrize("content", [noise(5000, 1), b"<!DOCTYPE html>" + bytes(500), TINY[: len(TINY) // 2]])
async def test_a_file_that_is_not_a_whole_model_leaves_nothing(
    frontend: ModelFrontend, content: bytes
) -> None:
    await put(frontend.uploads, content)
    step = await frontend.ended(await frontend.install(f"upload:{UPLOAD}"))
    assert step.state is State.FAILED
    assert step.problem is not None
    assert "m.gguf" in step.problem.message
    assert frontend.visible() == []
    assert list(await frontend.store.models()) == []


async def test_a_folder_is_several_files_of_one_upload(frontend: ModelFrontend) -> None:
    await put(frontend.uploads, b'{"architectures": ["LlamaForCausalLM"]}', "config.json")
    await put(frontend.uploads, safetensors(), "model.safetensors")
    await put(frontend.uploads, b"{}", "tokenizer/tokenizer.json")
    with pytest.raises(Invalid, match="--name"):
        await frontend.install(f"upload:{UPLOAD}")

    await frontend.installed(await frontend.install(f"upload:{UPLOAD}", "folder"))

    assert frontend.visible() == [
        "folder/config.json",
        "folder/model.safetensors",
        "folder/tokenizer/tokenizer.json",
    ]


async def test_only_the_frontend_with_the_bytes_installs_them(make: Make) -> None:
    """Whichever was asked, and for as long as it is away."""
    async with make("first", name="frontend-1") as first:
        await put(first.uploads, TINY)
    # As if the one that was asked had died at once.
    async with make("second", name="frontend-2", asked=first) as second:
        op = await second.install(f"upload:{UPLOAD}")

        async def waits() -> bool:
            return "waiting for the frontend on host-of-frontend-1" in str((await second.step(op)).reason)

        await wait_until(waits, within=10, what="the step to wait for the other frontend")
        async with make("first", name="frontend-1") as first:
            model = await first.installed(op)
            assert model.kept_by == "frontend-1"
            assert first.visible() == ["m/m.gguf"]
        assert second.visible() == []


async def test_what_is_here_already_is_not_uploaded_again(frontend: ModelFrontend) -> None:
    await put(frontend.uploads, TINY, sha256=SHA256)
    await frontend.installed(await frontend.install(f"upload:{UPLOAD}", "one"))

    again = await frontend.uploads.create(AnnouncedFile("another-upload", "m.gguf", len(TINY), SHA256))
    assert again.complete
    await frontend.installed(await frontend.install("upload:another-upload", "two"))
    assert frontend.visible() == ["one/m.gguf", "two/m.gguf"]


async def test_uploads_expire_unless_an_operation_needs_them(
    frontend: ModelFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(frontend.uploads, TINY)
    await frontend.uploads.sweep(())
    assert len(await frontend.uploads.listing()) == 1
    monkeypatch.setattr(upload_rules, "IDLE_MAX", timedelta(seconds=-1))
    await frontend.uploads.sweep({UPLOAD})
    assert len(await frontend.uploads.listing()) == 1
    await frontend.uploads.sweep(())
    assert await frontend.uploads.listing() == []


async def test_what_does_not_fit_is_refused_before_its_first_byte(
    frontend: ModelFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await frontend.uploads.create(AnnouncedFile("first-upload", "a.gguf", 2 << 30))
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 5 << 30)
    with pytest.raises(DiskFull, match=r"with all other unfinished uploads, needs 4.0 GiB.*5.0 GiB are free"):
        await frontend.uploads.create(AnnouncedFile(UPLOAD, "m.gguf", (2 << 30) + 1000))
    assert [one.file.upload for one in await frontend.uploads.listing()] == ["first-upload"]


async def test_a_disk_that_fills_keeps_what_fitted(
    frontend: ModelFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await frontend.uploads.create(AnnouncedFile(UPLOAD, "m.gguf", 10_000))
    write, room = os.write, 2_500

    def scarce(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal room
        if len(data) not in (1000, 500):  # Not what else this process writes.
            return write(descriptor, data)
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", scarce)
        with pytest.raises(DiskFull):
            await frontend.uploads.append(begun.file.id, 0, sent(bytes(10_000)))
    at = (await frontend.uploads.look(begun.file.id)).offset
    assert 2_000 <= at <= 2_500
    await frontend.uploads.append(begun.file.id, at, sent(bytes(10_000 - at)))
    assert (await frontend.uploads.look(begun.file.id)).complete


async def test_files_of_the_frontends_machine_are_for_its_own_user(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(TINY)
    async with make(local_sources=False) as frontend:
        with pytest.raises(Forbidden, match="--allow-local-sources"):
            await frontend.install(f"file://{file}")
        own = InstallRequest(f"file://{file}", by="admin", on_own_machine=True)
        await frontend.installed((await frontend.installs.install(own)).operation.id)


async def test_a_name_of_its_own_is_another_install(frontend: ModelFrontend) -> None:
    await put(frontend.uploads, TINY)
    await frontend.installed(await frontend.install(f"upload:{UPLOAD}", "first"))
    there = frontend.installs.present
    assert await there(InstallRequest(f"upload:{UPLOAD}")) == "first"
    assert await there(InstallRequest(f"upload:{UPLOAD}", "second")) == ""


async def test_an_upload_that_is_being_installed_is_not_removed(make: Make) -> None:
    """The install waits for the frontend that has the bytes, which was asked to remove them."""
    async with make("first", name="frontend-1") as first:
        await put(first.uploads, TINY)
    async with make("second", name="frontend-2", asked=first) as second:
        op = await second.install(f"upload:{UPLOAD}", "mine")
        with pytest.raises(Conflict, match=f"being installed as mine, by operation {op}"):
            await second.installs.discard_upload(UPLOAD)
        assert len(await first.uploads.files(UPLOAD)) == 1

        await second.ops.store.wish(op, Wish.CANCEL)
        await second.ended(op)
        await second.installs.discard_upload(UPLOAD)
    with pytest.raises(NotFound):
        await first.uploads.files(UPLOAD)


async def test_a_name_that_is_taken_is_refused_before_the_upload(frontend: ModelFrontend) -> None:
    await put(frontend.uploads, TINY)
    check = frontend.installs.check_upload
    await check("mine", UPLOAD)
    await frontend.installed(await frontend.install(f"upload:{UPLOAD}", "mine"))

    with pytest.raises(Conflict, match=f"a model mine already, which came from upload:{UPLOAD}") as refused:
        await check("mine", "another-upload")
    assert "--name" in refused.value.hint
    await check("mine", UPLOAD)  # The same files once more.
    with pytest.raises(Invalid):
        await check("../mine", "another-upload")


async def test_the_file_that_is_being_fetched_may_be_uploaded_instead(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    hub.bytes_per_s = 1000
    coming = await frontend.install(hub.add("/mine.gguf", TINY), sha256=SHA256)
    await put(frontend.uploads, TINY, sha256=SHA256)
    check = frontend.installs.check_upload
    await check("mine", UPLOAD, SHA256)
    with pytest.raises(Conflict, match="mine is being installed from http"):
        await check("mine", UPLOAD, "ab" * 32)
    assert (await frontend.view(coming)).operation.wish is Wish.RUN, "nothing has been brought yet"

    model = await frontend.installed(await frontend.install(f"upload:{UPLOAD}", "mine"))

    assert model.manifest is not None
    assert model.manifest.source == f"upload:{UPLOAD}"
    assert (await frontend.ended(coming)).state is State.CANCELLED
    assert frontend.visible() == ["mine/m.gguf"]

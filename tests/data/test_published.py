from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedloom.data import fetch, load, mnist
from fedloom.data.published import Published, cache_folder, content, obtain, obtain_archive, obtain_members
from fedloom.errors import DataError

CONTENT = b"what was published" * 100


def published(file: str = "file.gz", data: bytes = CONTENT) -> Published:
    return Published("set", file, (), hashlib.md5(data).hexdigest(), len(data))


def offered(folder: Path, data: bytes, file: str = "file.gz") -> Path:
    (folder / "set").mkdir(parents=True)
    (folder / "set" / file).write_bytes(data)
    return folder


def test_a_file_of_the_users_folder_comes_before_the_cache_and_any_download(own_data: Path) -> None:
    offered(own_data, gzip.compress(CONTENT))
    cache_folder("set").mkdir(parents=True)
    (cache_folder("set") / "file.gz").write_bytes(b"another")
    assert obtain(published()) == own_data / "set" / "file.gz"


def test_a_missing_file_is_downloaded_into_the_cache_and_found_there_the_next_time(
    tmp_path: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(offered(tmp_path / "site", gzip.compress(CONTENT)))
    with pytest.warns(UserWarning, match="downloading") as told:
        path = obtain(published())
    (said,) = (str(one.message) for one in told)
    assert said.startswith(f"set: downloading file.gz (1.8 kB once it is unzipped) from {address}")
    assert said.endswith(f" to {path.parent}")
    assert path == cache_folder("set") / "file.gz"
    assert content(path, published()) == CONTENT
    monkeypatch.setenv("FEDLOOM_MIRROR", "http://127.0.0.1:9")
    assert obtain(published()) == path
    assert [file.name for file in path.parent.iterdir()] == ["file.gz"]


def test_the_same_content_wrapped_in_gzip_anew_is_accepted(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    serve(offered(tmp_path / "site", gzip.compress(CONTENT, compresslevel=1, mtime=12345)))
    assert content(obtain(published()), published()) == CONTENT


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (gzip.compress(b"x" + CONTENT[1:]), "checksum"),
        (gzip.compress(CONTENT)[:-20], "unzipped"),
        (b"<html>not found</html>", "unzipped"),
    ],
    ids=["other content", "cut short", "not gzip"],
)
def test_a_download_that_is_not_the_published_file_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, serve: Callable[[Path], str], data: bytes, complaint: str
) -> None:
    url = serve(offered(tmp_path / "site", data))
    with pytest.raises(DataError, match=complaint) as error:
        obtain(published())
    assert f"{url}/set/file.gz" in str(error.value)
    assert "FEDLOOM_DATA" in str(error.value)
    assert list(cache_folder("set").iterdir()) == []


def test_a_mirror_that_fails_is_followed_by_the_next(
    tmp_path: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(offered(tmp_path / "site", gzip.compress(CONTENT)))
    monkeypatch.delenv("FEDLOOM_MIRROR")
    mirrors = ("http://127.0.0.1:9/", f"{url}/nowhere/", f"{url}/set/")
    file = Published("set", "file.gz", mirrors, published().checksum, len(CONTENT))
    assert content(obtain(file), file) == CONTENT


def test_without_a_connection_the_error_says_what_is_missing_and_where_to_put_it() -> None:
    with pytest.raises(DataError, match=r"set: file\.gz is not in .*put the published files into .*FEDLOOM_DATA"):
        obtain(published())


def test_a_file_of_the_published_length_must_be_the_published_one(own_data: Path) -> None:
    path = offered(own_data, gzip.compress(CONTENT[:-1] + b"!")) / "set" / "file.gz"
    with pytest.raises(DataError, match=r"set/file\.gz is damaged: .*checksum.*delete it"):
        content(path, published())


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"inside/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def test_an_archive_is_downloaded_unpacked_and_taken_away(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    data = archive({"a.bin": b"aaa", "b.bin": b"bbb", "readme.html": b"not needed"})
    serve(offered(tmp_path / "site", data, "all.tar.gz"))
    folder = obtain_archive(published("all.tar.gz", data), ("a.bin", "b.bin"))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"a.bin": b"aaa", "b.bin": b"bbb"}
    assert obtain_archive(published("all.tar.gz", data), ("a.bin", "b.bin")) == folder


def test_an_archive_without_a_file_that_it_should_have_is_damaged(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    data = archive({"a.bin": b"aaa"})
    serve(offered(tmp_path / "site", data, "all.tar.gz"))
    with pytest.raises(DataError, match=r"all\.tar\.gz is damaged: it has no file 'b\.bin'"):
        obtain_archive(published("all.tar.gz", data), ("a.bin", "b.bin"))


def zip_archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


PARTS = {
    "inside/b.csv": b"bbb",
    "inside/a.csv": b"aaa" * 100,
    "inside/c.csv.gz": gzip.compress(b"ccc"),
    "inside/readme.txt": b"not needed",
    "__MACOSX/inside/._a.csv": b"hidden",
}


def test_a_zip_archive_is_downloaded_once_and_read_without_being_unpacked(
    tmp_path: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zip_archive(PARTS)
    serve(offered(tmp_path / "site", data, "all.zip"))
    file = Published("set", "all.zip", (), hashlib.sha256(data).hexdigest())
    found = obtain_members(file, "*.csv")
    assert [(part.path.name, part.content()) for part in found] == [("a.csv", b"aaa" * 100), ("b.csv", b"bbb")]
    monkeypatch.setenv("FEDLOOM_MIRROR", "http://127.0.0.1:9")
    assert [part.content() for part in obtain_members(file, "*.csv.gz")] == [b"ccc"]
    assert [path.name for path in cache_folder("set").iterdir()] == ["all.zip"]


def test_the_files_of_an_archive_may_lie_in_the_users_folder_instead(own_data: Path) -> None:
    offered(own_data, b"whatever", "all.zip")
    for name, data in (("b.csv", b"bbb"), ("a.csv.gz", gzip.compress(b"aaa")), (".hidden.csv", b"")):
        (own_data / "set" / name).write_bytes(data)
    assert [part.content() for part in obtain_members(published("all.zip"), "*.csv*")] == [b"aaa", b"bbb"]


def test_a_zip_archive_with_another_checksum_is_refused(tmp_path: Path, serve: Callable[[Path], str]) -> None:
    serve(offered(tmp_path / "site", zip_archive(PARTS), "all.zip"))
    with pytest.raises(DataError, match=rf"all\.zip arrived with checksum \w+ instead of {'0' * 64}"):
        obtain_members(Published("set", "all.zip", (), "0" * 64), "*.csv")


@pytest.mark.parametrize(
    ("data", "pattern", "complaint"),
    [
        (zip_archive(PARTS)[:-30], "*.csv", "it is no whole zip archive"),
        (zip_archive(PARTS), "*.bin", r"it has no file \*\.bin"),
        (zip_archive(PARTS).replace(b"bbb", b"bxb"), "b.csv", r"inside/b\.csv in it cannot be read"),
        (zip_archive({"c.csv.gz": b"no gzip"}), "c.csv.gz", r"c\.csv\.gz in it cannot be read"),
    ],
    ids=["cut off", "without the files", "with a wrong byte", "with a part that is no gzip"],
)
def test_a_damaged_zip_archive_says_so(own_data: Path, data: bytes, pattern: str, complaint: str) -> None:
    offered(own_data, data, "all.zip")
    with pytest.raises(DataError, match=rf"all\.zip is damaged: {complaint}"):
        [part.content() for part in obtain_members(published("all.zip"), pattern)]


def test_the_published_mnist_passes_its_checksums_over_http(
    real: Callable[..., Path], serve: Callable[[Path], str]
) -> None:
    serve(real("mnist"))
    paths = fetch("mnist")
    assert [path.name for path in paths] == [file.file for file in mnist.MNIST]
    assert all(path.parent == cache_folder("mnist") for path in paths)


def test_fetching_a_set_that_needs_no_files_does_nothing() -> None:
    assert fetch("digits") == []


def test_a_half_written_image_file_names_itself_and_the_remedy(small_mnist: Path) -> None:
    path = small_mnist / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged: it cannot be unzipped.*delete it"):
        load("mnist")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "begins with nothing"),
        (b"\0\0\x08\x01\0\0\0\x05abcde", "not as an idx file of 3 dimensions"),
        (b"\0\0\x08\x03" + b"\0\0\0\x02\0\0\0\x02\0\0\0\x02" + b"1234567", "23 bytes where .* asks for 24"),
        (b"\0\0\x08\x03" + b"\0\0\0\x02", "bytes where"),
    ],
    ids=["empty", "labels", "a byte short", "only half a header"],
)
def test_an_idx_file_whose_header_does_not_fit_is_refused(small_mnist: Path, data: bytes, complaint: str) -> None:
    (small_mnist / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
    with pytest.raises(DataError, match=complaint):
        load("mnist")


def test_images_and_labels_of_different_numbers_do_not_belong_together(
    small_mnist: Path, write_idx: Callable[[Path, np.ndarray], Path]
) -> None:
    write_idx(small_mnist / "t10k-labels-idx1-ubyte.gz", np.zeros(3, dtype=np.uint8))
    with pytest.raises(DataError, match=r"4 images but .* 3 labels"):
        load("mnist")


def test_a_label_above_nine_is_damage(small_mnist: Path, write_idx: Callable[[Path, np.ndarray], Path]) -> None:
    write_idx(small_mnist / "t10k-labels-idx1-ubyte.gz", np.full(4, 77, dtype=np.uint8))
    with pytest.raises(DataError, match="label 77"):
        load("mnist")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [(b"", "0 bytes"), (bytes(3072), "3072 bytes"), (bytes([10]) + bytes(3072), "label 10")],
    ids=["empty", "a byte short", "no such label"],
)
def test_damaged_cifar_records_are_refused(own_data: Path, data: bytes, complaint: str) -> None:
    folder = own_data / "cifar10"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(bytes(3073))
    (folder / "test_batch.bin").write_bytes(data)
    with pytest.raises(DataError, match=rf"test_batch\.bin is damaged: .*{complaint}"):
        load("cifar10")


def test_cifar_without_a_single_training_batch_says_which_file_is_missing(own_data: Path) -> None:
    (own_data / "cifar10").mkdir()
    (own_data / "cifar10" / "test_batch.bin").write_bytes(bytes(3073))
    with pytest.raises(DataError, match=r"data_batch_1\.bin is missing"):
        load("cifar10")

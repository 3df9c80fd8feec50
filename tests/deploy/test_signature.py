"""Only the app that the project's authority signed is installed, file by file as it was signed."""

from __future__ import annotations

import io
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.runtime import RuntimeHttpClient
from hypothesis import given
from hypothesis import strategies as st

from fedloom.deploy.control import TokenPlugin
from fedloom.deploy.programs import _only_signed
from fedloom.deploy.project import write_app
from fedloom.deploy.security import Certificates, make_certificates
from fedloom.deploy.signature import SIGNATURE, check_app, sign_app
from fedloom.deploy.terms import Terms
from fedloom.errors import RunError

Files = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, authority: Certificates) -> bytes:
    folder = tmp_path_factory.mktemp("app")
    write_app(folder, "rounds = 1\n", Terms())
    sign_app(folder, authority.authority_key)
    return build_fab_from_disk(folder)


def unpacked(content: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        return [(entry.filename, bundle.read(entry)) for entry in bundle.infolist()]


def packed(files: Files) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as bundle:
        for name, content in files:
            bundle.writestr(name, content)
    return made.getvalue()


def test_a_signed_app_is_taken_again_and_again(signed: bytes, authority: Certificates) -> None:
    check_app(signed, authority.authority)
    check_app(packed(unpacked(signed)), authority.authority)


def test_signing_again_after_a_change_is_enough(tmp_path: Path, authority: Certificates) -> None:
    write_app(tmp_path, "rounds = 1\n", Terms())
    for text in ("rounds = 2\n", "rounds = 3\n"):
        (tmp_path / "experiment.toml").write_text(text)
        sign_app(tmp_path, authority.authority_key)
        check_app(build_fab_from_disk(tmp_path), authority.authority)


@given(data=st.data())
def test_an_app_with_any_file_changed_renamed_added_removed_or_doubled_is_refused(
    data: st.DataObject, signed: bytes, authority: Certificates
) -> None:
    files = [file for file in unpacked(signed) if file[0] != ".info/CONTENT"]
    place = data.draw(st.integers(0, len(files) - 1))
    name, content = files[place]
    way = data.draw(st.sampled_from(["change", "rename", "add", "remove", "double"]))
    new = data.draw(st.text("abc/.", min_size=1).filter(lambda text: text not in dict(files)))
    if way == "change":
        files[place] = (name, data.draw(st.binary().filter(lambda other: other != content)))
    elif way == "rename":
        files[place] = (new, content)
    elif way == "add":
        files.append((new, b"x = 1\n"))
    elif way == "remove":
        del files[place]
    bundle = packed(files)
    if way == "double":
        with pytest.warns(UserWarning, match="Duplicate"):
            bundle = packed([*files, (name, content)])
    with pytest.raises(RunError, match="so nothing of it was run"):
        check_app(bundle, authority.authority)


@given(content=st.binary(max_size=200))
def test_what_is_no_bundle_is_refused(content: bytes, authority: Certificates) -> None:
    with pytest.raises(RunError, match="so nothing of it was run"):
        check_app(content, authority.authority)


def test_the_signature_of_another_authority_or_none_is_refused(
    signed: bytes, authority: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other")
    unsigned = packed([file for file in unpacked(signed) if file[0] != SIGNATURE])
    for content, whose in ((signed, other), (unsigned, authority)):
        with pytest.raises(RunError, match="so nothing of it was run"):
            check_app(content, whose.authority)


@pytest.mark.parametrize("place", ["flwr.supernode.runtime.run_clientapp", "flwr.superlink.runtime.run_serverapp"])
def test_flower_installs_no_app_that_is_not_signed_or_goes_by_another_name(
    place: str, signed: bytes, authority: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(place)
    monkeypatch.setattr(module, "install_from_fab", module.install_from_fab)
    monkeypatch.setattr(RuntimeHttpClient, "PullTaskInput", RuntimeHttpClient.PullTaskInput)
    _only_signed(module, authority.authority)
    with pytest.raises(RunError, match="so nothing of it was run"):
        module.install_from_fab(packed([("fleet_app.py", b"")]), skip_prompt=True)
    with pytest.raises(RunError, match="said to be another one"):
        module.install_from_fab(signed, skip_prompt=True)


@given(st.text())
def test_the_control_lets_in_who_has_the_token_and_nobody_else(guess: str) -> None:
    plugin = TokenPlugin("open sesame")
    valid, account = plugin.validate_tokens_in_metadata([("flwr-oidc-access-token", guess)])
    assert valid == (account is not None) == (guess == "open sesame")
    assert plugin.validate_tokens_in_metadata([("flwr-oidc-access-token", "open sesame")])[0]
    assert plugin.validate_tokens_in_metadata([]) == (False, None)
    assert TokenPlugin().validate_tokens_in_metadata([("flwr-oidc-access-token", "")]) == (False, None)

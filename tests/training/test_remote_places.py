"""Places that cannot be used: one sentence, before anything is trained."""

import importlib
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from test_sharding import trained

from everyformer.core.errors import CheckpointError, ConfigError, MissingExtraError
from everyformer.system import remote
from everyformer.system.remote import Remote, local_folder
from everyformer.training.remote import fetched
from everyformer.training.run import RunDirectory
from everyformer.training.saved import load_model, save_model

PLACE = "memory://bucket/run"
pytestmark = pytest.mark.usefixtures("store")


class Refusing(MemoryFileSystem):
    """A bucket that may be read, or not even that."""

    protocol = "refusing"

    def pipe_file(self, *_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    def put_file(self, *_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    def find(self, path: str, *given: Any, **more: Any) -> Any:
        if "secret" in path:
            raise RuntimeError("An error occurred (403): Forbidden\nRequest id 7")
        return {}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("refusing", Refusing, clobber=True)


@pytest.mark.parametrize(
    ("place", "kind", "told"),
    [
        (
            "refusing://b/run",
            ConfigError,
            r"^cannot write into refusing://b/run: Access Denied",
        ),
        ("refusing://secret/run", CheckpointError, r"^cannot read .*\(403\): Forbidden; check"),
        ("sr://bucket/run", ConfigError, r"begin with sr://; did you mean"),
        ("sftp://host/run", ConfigError, "paramiko"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_in_one_sentence(
    place: str, kind: type, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with pytest.raises(kind, match=told) as caught:
        RunDirectory(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("az", "adlfs")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    scheme: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.setattr(registry, "_registry", {})
    told = rf"{scheme}:// needs the package '{package}'.*everyformer\[cloud\]"
    with pytest.raises(MissingExtraError, match=told):
        load_model(f"{scheme}://bucket/run")


def test_names_that_lead_out_of_the_folder_are_refused(
    store: MemoryFileSystem, tmp_path: Path
) -> None:
    store.pipe_file("/bucket/run/../../evil", b"x")
    store.store["/bucket/run/../../evil"] = store.store.pop(next(iter(store.store)))
    with pytest.raises(CheckpointError, match="leads out of it"):
        fetched(PLACE)
    assert not list(tmp_path.rglob("evil"))


def test_local_paths_reach_for_no_other_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: Any) -> Any:
        raise AssertionError("a place was opened")

    monkeypatch.setattr(remote, "_opened", reached)
    trained(tmp_path, ("gpt",), 2)
    load_model(str(tmp_path / "gpt"))
    save_model(load_model(tmp_path / "gpt"), tmp_path / "model")
    with pytest.raises(AssertionError, match="opened"):
        Remote(PLACE)


def test_places_have_local_folders_of_their_own(tmp_path: Path) -> None:
    places = ("s3://a/run", "s3://b/run", "gs://a/run", "s3://a/run2", "s3://a/r%20n/")
    folders = [local_folder(place) for place in places]
    assert len({*folders}) == len(places)
    assert local_folder("s3://a/run/") == folders[0]
    assert folders[0].name == "run"
    assert all(folder.is_relative_to(tmp_path / "cache" / "remote") for folder in folders)

"""`depthroute doctor` says what there is, and what to do about what there is not."""

import jax
import pytest

from depthroute import doctor


@pytest.fixture
def section():
    """section(title) -> its lines in the report."""

    def find(title):
        lines = iter(doctor.report().splitlines())
        assert title in lines
        found = []
        for line in lines:
            if not line.startswith("  "):
                break
            found.append(line.strip())
        return found

    return find


def test_versions_and_devices_are_those_of_this_process(section):
    assert f"jax {jax.__version__}" in section("packages")
    assert section("devices") == [f"{i}: cpu cpu" for i in range(8)]
    assert len(section("machine")) == 2 and "cores" in section("machine")[1]


def test_what_is_missing_comes_with_its_remedy(section, monkeypatch):
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda tool: "/bin/git" if tool == "git" else None)
    assert all("MISSING; pip install" in line for line in section("packages"))
    assert all("pip install 'depthroute[" in line for line in section("optional"))
    assert section("tools")[0] == "git /bin/git" and all("missing; needed for" in line for line in section("tools")[1:])


def test_a_broken_accelerator_does_not_hide_the_rest(section, monkeypatch):
    def broken():
        raise RuntimeError("no\ndevice")

    monkeypatch.setattr(jax, "devices", broken)
    assert section("devices") == ["MISSING: JAX finds no device (no device)"]
    assert section("tools")

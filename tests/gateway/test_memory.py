"""What the system says of memory, told from files of the system's own shape."""

import os
from pathlib import Path
from typing import Any

import pytest

from gateway import memory
from gateway.memory import MachineMemory, container_limits, machine_memory

GIB = 1 << 30


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def limits(tmp_path: Path, cgroup: str) -> list[tuple[int, int]]:
    (tmp_path / "cgroup").write_text(cgroup)
    return [(limit.most, limit.used) for limit in container_limits(tmp_path / "cgroup", tmp_path / "groups")]


def test_a_machine_has_memory_and_some_of_it_is_free() -> None:
    found = machine_memory()
    assert 0 < found.total_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.free_bytes is None or 0 < found.free_bytes <= found.total_bytes


def test_models_may_have_three_quarters() -> None:
    assert MachineMemory(16 * GIB).budget_bytes == 12 * GIB


def test_groups_of_version_2_bound_from_within_and_from_around(tmp_path: Path) -> None:
    group(tmp_path / "groups" / "a" / "b", memory__max=4 * GIB, memory__current=3 * GIB)
    group(tmp_path / "groups" / "a", memory__max=6 * GIB, memory__current=5 * GIB)
    group(tmp_path / "groups", memory__max="max")
    assert limits(tmp_path, "0::/a/b\n") == [(4 * GIB, 3 * GIB), (6 * GIB, 5 * GIB)]


def test_clean_pages_of_files_are_free(tmp_path: Path) -> None:
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7"
    group(tmp_path / "groups", memory__max=4 * GIB, memory__current=3 * GIB, memory__stat=stat)
    assert limits(tmp_path, "0::/\n") == [(4 * GIB, 2 * GIB)]


def test_a_group_that_a_container_sees_as_its_root_counts(tmp_path: Path) -> None:
    stat = f"total_inactive_file {GIB}"
    files: dict[str, Any] = {"memory__limit_in_bytes": 2 * GIB, "memory__usage_in_bytes": 2 * GIB, "memory__stat": stat}
    group(tmp_path / "groups" / "memory", **files)
    cgroup = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n"
    assert limits(tmp_path, cgroup) == [(2 * GIB, GIB)]


@pytest.mark.parametrize("cgroup", ["", "nonsense\n", "0::\n", "7:cpu:/\n", "4:memory\n"])
def test_a_system_without_groups_has_no_limits(tmp_path: Path, cgroup: str) -> None:
    assert limits(tmp_path, cgroup) == []


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_the_least_of_all_bounds_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tmp_path / "groups", memory__max=1 << 20, memory__current=3 << 18)
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:      100 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    here = list(container_limits(tmp_path / "cgroup", tmp_path / "groups"))
    monkeypatch.setattr(memory, "container_limits", lambda: here)
    assert machine_memory() == MachineMemory(1 << 20, 100 << 10)
    (tmp_path / "meminfo").write_text("MemAvailable: 999999 kB\n")
    assert machine_memory() == MachineMemory(1 << 20, 1 << 18)

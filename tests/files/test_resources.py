"""Limits of containers, from files as the kernel writes them; the threads that follow from them."""

import os
import subprocess
import sys

import pytest

from vit.files import machine
from vit.files.machine import busy_cores, cpu_limit, limit_spinning, memory_limit, threads_per_process


def container(tmp_path, groups, files):
    """A file like /proc/self/cgroup and a folder like /sys/fs/cgroup."""
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "groups", tmp_path / "mount"


@pytest.mark.parametrize(("groups", "files", "expected"), [
    ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),  # docker run --cpus 1.5
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/\n", {}, None),  # the root group of a machine
    ("0::/pods/one/box\n", {"pods/one/cpu.max": "400000 100000", "pods/one/box/cpu.max": "max 100000"}, 4),
    ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
    ("0::/../outside\n", {"cpu.max": "300000 100000"}, 3),
    ("4:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n0::/\n",  # version 1, of which the outer folders are not mounted
     {"cpu,cpuacct/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 2.5),
    ("4:cpu:/job\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000",
                      "cpu/job/cpu.cfs_quota_us": "800000", "cpu/job/cpu.cfs_period_us": "100000"}, 8),
    ("4:cpu:/job\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
])
def test_processor_time_of_the_container(tmp_path, groups, files, expected):
    assert cpu_limit(*container(tmp_path, groups, files)) == expected


@pytest.mark.parametrize(("groups", "files", "expected"), [
    ("0::/box\n", {"box/memory.max": "2147483648\n"}, 2**31),
    ("0::/box\n", {"memory.max": "1073741824", "box/memory.max": "max"}, 2**30),
    ("3:memory:/\n", {"memory/memory.limit_in_bytes": "536870912"}, 2**29),
    ("3:pids:/\n", {"memory/memory.limit_in_bytes": "536870912"}, None),
])
def test_memory_of_the_container(tmp_path, groups, files, expected):
    assert memory_limit(*container(tmp_path, groups, files)) == expected


def test_systems_without_control_groups_have_no_limit(tmp_path):
    assert cpu_limit(tmp_path / "none", tmp_path) is None and memory_limit(tmp_path / "none", tmp_path) is None
    assert busy_cores(str(tmp_path / "none")) == 0


def test_cores_are_rounded_up_and_never_more_than_those_of_the_process(monkeypatch):
    monkeypatch.setattr(machine, "bound_cores", lambda: 8)
    for limit, cores in ((None, 8), (0.5, 1), (1.5, 2), (4.0, 4), (64.0, 8)):
        monkeypatch.setattr(machine, "cpu_limit", lambda limit=limit: limit)
        assert machine.available_cores() == cores


@pytest.mark.parametrize(("stated", "limit", "expected"), [
    (None, None, "4"), (None, 4.0, "2"), ("4", 4.0, "2"),  # the last as `limit_threads` has set it
    ("3", 4.0, None), ("8", None, None),  # by the user
])
def test_the_processes_of_a_run_share_the_cores(monkeypatch, stated, limit, expected):
    monkeypatch.setattr(machine, "bound_cores", lambda: 8)
    monkeypatch.setattr(machine, "cpu_limit", lambda: limit)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if stated is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert threads_per_process(2) == ({} if expected is None else {"OMP_NUM_THREADS": expected})


@pytest.mark.slow
def test_torch_starts_as_many_threads_as_the_container_has_cores():
    code = ("from vit.files import machine; machine.cpu_limit = lambda: 0.5; machine.bound_cores = lambda: 8;"
            "machine.limit_threads(); import torch; from torch._inductor.config import compile_threads;"
            "print(torch.get_num_threads(), compile_threads)")
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    for variable, expected in (({}, "1 1"), ({"OMP_NUM_THREADS": "2"}, f"{min(2, os.cpu_count())} 1")):
        run = subprocess.run([sys.executable, "-c", code], env=environment | variable, capture_output=True, text=True)
        assert run.stdout.strip() == expected, run.stderr


@pytest.mark.parametrize(("stated", "expected"), [
    ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}),
    ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5"}),
    ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ({"OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_WAIT_POLICY": "PASSIVE"}),
])
def test_how_long_threads_spin_is_the_choice_of_the_user(monkeypatch, stated, expected):
    monkeypatch.setattr(os, "environ", dict(stated))
    limit_spinning()
    assert os.environ == expected


def test_running_threads_are_counted():
    """As many as there are busy processes, on a machine with a core for each."""
    code = "print(flush=True)\nwhile True: pass"
    before = max(busy_cores() for _ in range(20))
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for other in others:
            other.stdout.readline()
        during = max(busy_cores() for _ in range(200))
    finally:
        for other in others:
            other.kill()
            other.communicate()
    assert during >= min(before + 1, 2)

"""How many cores a process may use: where it may run, and what its control group grants."""

import math
import os

import pytest

from tfasr.kit import process as cores


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        (
            "0::/a\n",
            {"sys/fs/cgroup/a/cpu.max": "max 100000", "sys/fs/cgroup/cpu.max": "200000 100000"},
            2,
        ),
        (
            "4:memory:/m\n3:cpu,cpuacct:/a\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            "3:cpu:/\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
        ),
        ("0::/../..\n", {}, math.inf),
    ],
)
def test_a_quota_is_the_least_of_the_groups_around(tmp_path, groups, files, expected):
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.quota(tmp_path) == expected


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cores.quota(tmp_path) == math.inf


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
@pytest.mark.parametrize(("granted", "expected"), [(math.inf, 3), (2.9, 2), (0.4, 1), (8, 3)])
def test_cores_are_those_of_the_affinity_within_the_quota(monkeypatch, granted, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5})
    monkeypatch.setattr(cores, "quota", lambda: granted)
    assert cores.usable_cores() == expected

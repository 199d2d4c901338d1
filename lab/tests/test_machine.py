"""Texts of the kernel that the lab reads."""

import unittest

from lab import backends, cgroups

MOUNTS = """\
1 0 8:1 / / rw - ext4 /dev/root rw
2 1 0:4 / /proc rw - proc proc rw
3 2 0:9 /x /proc/meminfo ro - fuse.lxcfs lxcfs ro
4 3 0:8 /y /proc/meminfo ro shared:1 - fuse.elbowroom elbowroom ro
"""


class Kernel(unittest.TestCase):
    def test_a_file_is_on_what_was_mounted_last_over_its_nearest_directory(self):
        kinds = {"/proc/meminfo": "fuse.elbowroom", "/proc/stat": "proc", "/proc/meminfo2": "proc", "/procfs": "ext4"}
        self.assertEqual({path: backends.innermost(MOUNTS, path) for path in kinds}, kinds)

    def test_a_line_that_is_no_number_is_left_out(self):
        self.assertEqual(cgroups.pairs("cache 4096\nrss\nmax max\nmin 3\n"), {"cache": 4096, "min": 3})

    def test_a_disk_is_found_among_others_whose_numbers_begin_alike(self):
        v1 = "7:10 Read 1\n7:1 Read 4096\n7:1 Write 512\n7:1 Total 4608\nTotal 4609\n"
        self.assertEqual(cgroups.io_value(v1, "7:1", "Read "), 4096)
        self.assertEqual(cgroups.io_value("7:1 900\n", "7:1", ""), 900)
        v2 = "259:0 rbytes=1 wbytes=2 rios=3\n259:1 rbps=max wbps=7 riops=max wiops=max\n"
        self.assertEqual(cgroups.io_value(v2, "259:0", "wbytes="), 2)
        self.assertIsNone(cgroups.io_value(v2, "259:1", "rbps="), "max is no number")
        self.assertIsNone(cgroups.io_value(v2, "259:2", "wbps="))

"""A root directory with busybox alone, for containers that are started by hand."""

import shutil

from kit.docker import busybox


def busybox_root(root):
    """Makes it, with an init that keeps one program running."""
    for name in ("bin", "sbin", "proc", "sys", "dev", "etc", "tmp", "run", "usr"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox(), root / "bin/busybox")
    for name in ("sh", "cat", "sleep"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "sbin/init").symlink_to("../bin/busybox")
    (root / "etc/inittab").write_text("::respawn:/bin/sleep 1000\n")
    # systemd-nspawn recognizes a system by this file.
    (root / "etc/os-release").write_text("ID=test\n")

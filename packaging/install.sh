#!/bin/sh
# install.sh [--prefix DIR] [--root DIR] [--sums FILE] TARBALL - installs the static tarball of Elbowroom, below /usr/local.
# install.sh [--prefix DIR] [--root DIR] --uninstall            - takes away what it installed; the configuration stays.
#
# TARBALL is compared with SHA256SUMS beside it, or with FILE; without its line there nothing is installed. Whose SHA256SUMS that is says its
# signature (docs/guide/install.md). --root is another root directory than this machine's: nothing is started or stopped there.
# It downloads nothing.
set -eu
export LC_ALL=C

prefix=/usr/local root='' sums='' tarball='' uninstall=''
die() { echo "install.sh: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --root | --sums)
      [ $# -gt 1 ] || die "$1 needs a value"
      case $1 in --prefix) prefix=$2 ;; --root) root=$2 ;; --sums) sums=$2 ;; esac
      shift 2 ;;
    --uninstall) uninstall=yes; shift ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "$1 is no option: install.sh --help" ;;
    *) [ -z "$tarball" ] || die "two tarballs: $tarball and $1"; tarball=$1; shift ;;
  esac
done
case $prefix in /*) ;; *) die "--prefix $prefix: write a path that begins with /" ;; esac
case $prefix in *[!A-Za-z0-9/._-]*) die "--prefix $prefix: units cannot name such a path: use letters, digits, /, ., _ and -" ;; esac
root=${root%/}
# What was installed, by path below the prefix.
list=$root$prefix/lib/elbowroom/installed

systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

verified() { # TARBALL SUMS: whether SUMS has the tarball's checksum
  want=$(awk -v name="${1##*/}" '{ file = $2; sub(/^\*/, "", file); sub(/.*\//, "", file) } file == name { print $1 }' "$2")
  [ -n "$want" ] || die "$2 says nothing of ${1##*/}"
  is=$(sha256sum <"$1") || die "sha256sum cannot be run"
  [ "${is%% *}" = "$want" ] || die "$1 is not the file that $2 names: damaged, another version, or forged"
}

unpack() {
  [ -n "$sums" ] || sums=$(dirname "$tarball")/SHA256SUMS
  [ -r "$tarball" ] || die "$tarball cannot be read"
  [ -r "$sums" ] || die "$sums cannot be read, and nothing is installed unverified: fetch it from where the tarball is, or name it by --sums"
  work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
  # A copy: what was verified is what is unpacked.
  cp "$tarball" "$work/${tarball##*/}"
  verified "$work/${tarball##*/}" "$sums"
  mkdir "$work/root"
  tar -xzf "$work/${tarball##*/}" -C "$work/root" || die "$tarball cannot be unpacked"
  set -- "$work"/root/*
  [ $# = 1 ] && [ -x "$1/bin/elbowroom" ] || die "$tarball is no tarball of Elbowroom"
  tree=$1
}

install_tree() {
  config=$root/etc/elbowroom/elbowroom.toml
  mkdir -p "$root$prefix" "$root/etc/elbowroom"
  [ -e "$config" ] || { cp "$tree/etc/elbowroom/elbowroom.toml" "$config" && chmod 0640 "$config"; }
  rm -r "$tree/etc"
  if [ "$prefix" != /usr/local ]; then
    grep -rlI /usr/local "$tree/lib/systemd" "$tree/share/doc" | while read -r file; do
      sed "s|/usr/local/|$prefix/|g" "$file" >"$work/placed" && cat "$work/placed" >"$file"
    done
  fi
  (cd "$tree" && find . ! -type d | sed 's|^\./||' | sort) >"$work/installed"
  # Beside the old file and renamed: an engine that starts a hook just then finds one or the other.
  while read -r file; do
    mkdir -p "$root$prefix/$(dirname "$file")"
    cp -P "$tree/$file" "$root$prefix/$file.new"
    mv -f "$root$prefix/$file.new" "$root$prefix/$file"
  done <"$work/installed"
  # What an older version had and this one has not.
  [ ! -e "$list" ] || sort "$list" | comm -23 - "$work/installed" | while read -r file; do rm -f "$root$prefix/$file"; done
  mkdir -p "$(dirname "$list")"
  cp "$work/installed" "$list"
  if systemd; then
    ! command -v systemd-sysusers >/dev/null || systemd-sysusers "$prefix/lib/sysusers.d/elbowroom.conf"
    systemctl daemon-reload
    systemctl try-restart elbowroom.service elbowroom-keeper.service
  fi
  echo "installed below $root$prefix, configuration $config; to start it: systemctl enable --now elbowroom"
}

remove_tree() {
  [ -r "$list" ] || die "$list is not there: nothing was installed by this below $root$prefix"
  if grep -qs elbowroom-runtime "$root/etc/docker/daemon.json"; then
    die "$root/etc/docker/daemon.json names elbowroom-runtime: take it out there, restart dockerd, make those containers anew"
  fi
  if systemd; then
    held=$(systemctl show --property NFileDescriptorStore --value elbowroom-keeper.service 2>/dev/null) || held=
    [ "${held:-0}" -le 1 ] || die "elbowroom-keeper answers system calls of running containers: stop those with elbowroom.dev/seccomp=on first"
    systemctl disable --now elbowroom-keeper.service elbowroom.service || true
  fi
  while read -r file; do
    rm -f "$root$prefix/$file"
    dir=$(dirname "$file")
    # As far as they are empty.
    while [ "$dir" != . ] && rmdir "$root$prefix/$dir" 2>/dev/null; do dir=$(dirname "$dir"); done
  done <"$list"
  rm -f "$list"
  rmdir "$root$prefix/lib/elbowroom" 2>/dev/null || true
  ! systemd || systemctl daemon-reload
  echo "removed from $root$prefix; /etc/elbowroom and /var/lib/elbowroom are left"
}

if [ -n "$uninstall" ]; then
  [ -z "$tarball" ] || die "--uninstall needs no tarball"
  remove_tree
else
  [ -n "$tarball" ] || die "which tarball? install.sh --help"
  unpack
  install_tree
fi

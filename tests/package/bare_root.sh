#!/usr/bin/env bash
# bare_root.sh <folder of packages>: installs the packages in a bare Debian 12 in which neither the source nor the build
# is, uses them as a user does (in_bare_root.sh), removes them, and looks for what stayed. `tools/dev package --try` calls
# it.
#
# Needs root, debootstrap and a Debian mirror; about 3 GB in TMPDIR while it runs. BARE_ROOT=FILE.tar is a bare Debian 12
# made before.
set -euo pipefail
packages=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "bare_root.sh needs root, to change the root folder" >&2 && exit 1; }

root=$(mktemp -d "${TMPDIR:-/tmp}/bare-root.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
if [ -n "${BARE_ROOT:-}" ]; then
  tar -C "$root" -xf "$BARE_ROOT"
else
  debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2 && exit 1; }
  rm -f "$root.log" "$root/etc/apt/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    if [ -s "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
  done
fi
chmod 755 "$root"
cp -L /etc/resolv.conf "$root/etc/"
mkdir -p "$root/packages" "$root/user"
cp "$packages"/{*.deb,*.rpm,cohort-*-Linux-*.tar.gz} "$root/packages/"
cp "$here/in_bare_root.sh" "$here/project/checkpoint.cc" "$source/comm/examples/embed.cc" "$source/comm/c/examples/ring.c" \
  "$root/user/"

# Mounts and processes end with the namespaces. Proxies are the machine's own.
unshare --mount --pid --fork bash -euc '
  root=$1
  mount -t proc none "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  mount -t tmpfs -o mode=755 none "$root/dev"
  for device in null zero full random urandom tty; do cp -a "/dev/$device" "$root/dev/"; done
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs -o mode=1777 none "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 none "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  exec env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    $(env | grep -iE "^(http|https|no)_proxy=" || true) chroot "$root" bash /user/in_bare_root.sh
' bash "$root"

# For scripts that try packages in a bare Debian: bare_root.sh, wheel_roots.sh.

# fill_root <root> <suite> <architecture> [package...]: a bare Debian of that suite for that architecture of dpkg, with this
# machine's package sources where the suite is this machine's too. BARE_ROOT=FILE.tar is such a one, made before.
# The caller removes <root> and <root>.log, the log of an unfinished debootstrap.
fill_root() {
  local root=$1 suite=$2 architecture=$3 mirror file packages=ca-certificates
  shift 3
  if [ -n "${BARE_ROOT:-}" ]; then
    mkdir -p "$root"
    tar -C "$root" -xf "$BARE_ROOT"
    return
  fi
  for package; do packages+=,$package; done
  # One of the two files may be missing.
  mirror=$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null |
    sed -nE 's/^URIs: *([^ ]*).*/\1/p; s/^deb +(\[[^]]*\] *)?([^ ]*) .*/\2/p' | sed -n 1p) || true
  debootstrap --arch="$architecture" --variant=minbase --include="$packages" "$suite" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2 && return 1; }
  rm -f "$root.log"
  if grep -qsw "$suite" /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; then
    rm -f "$root/etc/apt/sources.list"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
      if [ -s "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
    done
  fi
}

# in_root <root> <command>...: runs it there with an empty environment. Mounts and processes end with the namespaces.
# Proxies are the machine's own.
in_root() {
  cp -L /etc/resolv.conf "$1/etc/"
  chmod 755 "$1"
  unshare --mount --pid --fork bash -euc '
    root=$1
    shift
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
      $(env | grep -iE "^(http|https|no)_proxy=" || true) chroot "$root" "$@"
  ' bash "$@"
}

#!/usr/bin/env bash
# wheel_roots.sh [--torch|--torch-wheel] <wheel> [suite...]: installs the wheel and numpy in bare Debian 11, 12 and 13, or in
# the suites given, and runs four ranks there. Both together may take 60 s. Then jobs run there without the calls that older
# kernels lack (old_kernel_test.py). `tools/dev wheel --roots` calls it.
#
# --torch: then four ranks of torch.distributed too, with Debian's PyTorch, which 12 and 13 have (Debian 11's is too old).
# --torch-wheel: with PyPI's. TORCH_INDEX names another index, as for `tools/dev wheel`.
# A wheel for another machine runs under qemu, with ten times the time. Packages qemu-user-static and binfmt-support make the
# kernel start it.
# BARE_ROOT=FILE.tar is a bare Debian with python3-venv made before, of the one suite given.
# Needs root, debootstrap, a Debian mirror and PyPI. TMPDIR holds 500 MB while it runs, 1.5 GB with --torch, 10 GB with
# --torch-wheel.
set -euo pipefail
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
case ${1:-} in -h | --help) usage && exit ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/root.sh"
torch=
case ${1:-} in
  --torch) torch=python3-torch && shift ;;
  --torch-wheel) torch=wheel && shift ;;
esac
[ $# -gt 0 ] || { usage >&2 && exit 2; }
[ -f "$1" ] || { echo "wheel_roots.sh: there is no file $1" >&2 && exit 1; }
wheel=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- bullseye bookworm trixie
skip() { echo "skipped: the wheel in bare roots: $*" && exit 77; }
[ "$(id -u)" = 0 ] || skip "they need root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
architecture=$(dpkg --print-architecture) most=60 emulated=
machine=$(sed -E 's/.*manylinux_[0-9]+_[0-9]+_(.*)\.whl/\1/' <<<"$wheel")
if [ "$machine" != "$(uname -m)" ]; then
  [ "$machine" = aarch64 ] || skip "there is none for $machine"
  [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || skip "binfmt_misc does not know qemu-aarch64: install qemu-user-static binfmt-support, then update-binfmts --enable qemu-aarch64"
  architecture=arm64 most=600 emulated=", emulated"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/wheel-roots.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
cat >"$work/in_root.sh" <<'END'
set -euo pipefail
cd /user
export PIP_CERT=/user/certificates PIP_INDEX_URL=$2
torch=$1 most=$3 index=$4
packages=--system-site-packages
if [ "$torch" != python3-torch ]; then packages=; fi
python3 -m venv $packages env
began=$(date +%s)
env/bin/pip install -q --no-cache-dir --disable-pip-version-check ./dlaunch-*.whl numpy
PATH=/user/env/bin:$PATH
timeout "$most" dlaunch -n 4 python -c '
import dlaunch, numpy, platform, sys
world = dlaunch.init()
numbers = numpy.full(1000, world.rank, "f")
world.all_reduce(numbers)
print(f"rank {world.rank} of {world.size}: {numbers[999]}, Python {sys.version.split()[0]}, numpy {numpy.__version__}, {platform.machine()}")
' | tee output
took=$(($(date +%s) - began))
[ "$(grep -c ': 6.0,' output)" = 4 ] || { echo "these are not four sums of 6" && exit 1; }
dlaunch doctor | tail -n 1
ldd --version | sed -n 1p # head would end ldd by SIGPIPE
if [ -e old_kernel_test.py ]; then
  env/bin/python old_kernel_test.py env/bin/dlaunch >old_kernel.log 2>&1 || { cat old_kernel.log && exit 1; }
  grep '^Ran' old_kernel.log
fi
if [ "$torch" = wheel ]; then pip install -q --no-cache-dir --disable-pip-version-check ${index:+--extra-index-url "$index"} torch; fi
if [ -n "$torch" ]; then
  timeout $((5 * most)) dlaunch -n 4 python -c '
import torch, torch.distributed as dist
import dlaunch.torch
dist.init_process_group("cohort")
numbers = torch.full((1000,), float(dist.get_rank()))
dist.all_reduce(numbers)
print(f"torch: {numbers[999].item()}, {torch.__version__}")
dist.destroy_process_group()' | tee output
  [ "$(grep -c 'torch: 6.0,' output)" = 4 ] || { echo "these are not four sums of 6" && exit 1; }
fi
pip uninstall -q -y dlaunch
[ ! -e /user/env/bin/dlaunch ] || { echo "uninstalled, but dlaunch is still here" && exit 1; }
echo "installed and run in $took s"
[ "$took" -le "$most" ] || { echo "that is more than $most s" && exit 1; }
END
for suite; do
  with=$torch
  if [ "$suite,$with" = bullseye,python3-torch ]; then with=; fi
  echo "== $suite on $machine$emulated${with:+, with PyTorch: $with}"
  fill_root "$work/$suite" "$suite" "$architecture" python3 python3-venv || exit 1
  mkdir "$work/$suite/user"
  cp "$wheel" "$work/in_root.sh" "$work/$suite/user/"
  [ -n "$emulated" ] || cp "$here/../launcher/dlaunch/old_kernel_test.py" "$work/$suite/user/" # qemu has no seccomp
  cp /etc/ssl/certs/ca-certificates.crt "$work/$suite/user/certificates" # pip trusts what this machine trusts
  if [ "$with" = python3-torch ]; then
    in_root "$work/$suite" sh -c "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install python3-torch" \
      >"$work/apt.log" 2>&1 || { tail -n 5 "$work/apt.log" && exit 1; }
  fi
  in_root "$work/$suite" bash /user/in_root.sh "$with" "${PIP_INDEX_URL:-https://pypi.org/simple}" "$most" "${TORCH_INDEX:-}"
  rm -rf --one-file-system "${work:?}/$suite"
done

#!/usr/bin/env bash
# wheel_roots.sh [--torch] <wheel> [suite...]: installs the wheel and numpy in bare Debian 11, 12 and 13, or in the suites given,
# and runs four ranks there. Both together may take 60 s. `tools/dev wheel --roots` calls it.
#
# --torch: then four ranks of torch.distributed too, with Debian's PyTorch, which 12 and 13 have (Debian 11's is too old).
# Needs root, debootstrap, a Debian mirror and PyPI; 500 MB in TMPDIR while it runs, 1.5 GB with --torch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/root.sh"
torch=
if [ "${1:-}" = --torch ]; then torch=python3-torch && shift; fi
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
wheel=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- bullseye bookworm trixie
skip() { echo "skipped: the wheel in bare roots: $*" && exit 77; }
[ "$(id -u)" = 0 ] || skip "they need root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"

work=$(mktemp -d "${TMPDIR:-/tmp}/wheel-roots.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
cat >"$work/in_root.sh" <<'END'
set -euo pipefail
cd /user
export PIP_CERT=/user/certificates PIP_INDEX_URL=$2
python3 -m venv ${1:+--system-site-packages} env
began=$(date +%s)
env/bin/pip install -q --no-cache-dir --disable-pip-version-check ./dlaunch-*.whl numpy
PATH=/user/env/bin:$PATH
timeout 60 dlaunch -n 4 python -c '
import dlaunch, numpy, sys
world = dlaunch.init()
numbers = numpy.full(1000, world.rank, "f")
world.all_reduce(numbers)
print(f"rank {world.rank} of {world.size}: {numbers[999]}, Python {sys.version.split()[0]}, numpy {numpy.__version__}")
' | tee output
took=$(($(date +%s) - began))
[ "$(grep -c ': 6.0,' output)" = 4 ] || { echo "these are not four sums of 6" && exit 1; }
dlaunch doctor | tail -n 1
ldd --version | head -n 1
if [ -n "${1:-}" ]; then
  timeout 300 dlaunch -n 4 python -c '
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
[ "$took" -le 60 ] || { echo "that is more than 60 s" && exit 1; }
END
for suite; do
  with=$torch
  if [ "$suite" = bullseye ]; then with=; fi
  echo "== $suite${with:+, with PyTorch}"
  fill_root "$work/$suite" "$suite" python3 python3-venv || exit 1
  mkdir "$work/$suite/user"
  cp "$wheel" "$work/in_root.sh" "$work/$suite/user/"
  cp /etc/ssl/certs/ca-certificates.crt "$work/$suite/user/certificates" # pip trusts what this machine trusts
  if [ -n "$with" ]; then
    in_root "$work/$suite" sh -c "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $with" \
      >"$work/apt.log" 2>&1 || { tail -n 5 "$work/apt.log" && exit 1; }
  fi
  in_root "$work/$suite" bash /user/in_root.sh "$with" "${PIP_INDEX_URL:-https://pypi.org/simple}"
  rm -rf --one-file-system "${work:?}/$suite"
done

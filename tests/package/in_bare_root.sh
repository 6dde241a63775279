#!/usr/bin/env bash
# in_bare_root.sh [deb|tarball|rpm]...: runs in a bare Debian 12 that has /packages and /user (bare_root.sh). Installs and
# uses the packages of these formats, or of all, and removes them. The .deb set, which brings the libraries of others for the
# other formats, is always installed and removed.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
[ $# -gt 0 ] || set -- deb tarball rpm
formats=" $* "
for format; do
  case $format in deb | tarball | rpm) ;; *) echo "in_bare_root.sh: there is no format $format" && exit 2 ;; esac
done
cd /user

quietly() { "$@" >/tmp/step.log 2>&1 || { cat /tmp/step.log && echo "failed: $*" && exit 1; }; }
apt() { quietly apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends "$@"; }

# Files by name in all of the system, and all files where programs write.
everything() {
  find / -xdev \( -path /packages -o -path /user -o -path /tmp/step.log -o -path '/proc/*' -o -path '/sys/*' \) -prune -o \
    \( -iname '*cohort*' -o -iname '*dlaunch*' -o -iname '*train_*' -o -iname 'port_*' -o -iname 'collperf*' \) -print
  find /root /tmp /var/tmp /run /home /usr/local /opt /dev/shm -xdev -not -path /tmp/step.log | sort
}

# Nothing of a job lives on. Only processes of this root are in its /proc.
no_process() {
  local deadline=$((SECONDS + 10))
  while grep -qE '^(dlaunch|train_digits|embed|ring)' /proc/[0-9]*/comm 2>/dev/null; do
    [ $SECONDS -lt $deadline ] || { echo "a process of a job is still here" && exit 1; }
    sleep 0.1
  done
}

# use <prefix> <folder for pkg-config> [option of cmake]: the projects of a user, with CMake and with pkg-config, and a training.
use() {
  local prefix=$1 pkg_config=$2 work
  work=$(mktemp -d /user/work.XXXXXX)
  cat >"$work/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C CXX)
find_package(cohort 0.1 REQUIRED COMPONENTS trainer)
add_executable(embed /user/embed.cc)
target_link_libraries(embed PRIVATE cohort::comm)
add_executable(ring /user/ring.c)
target_link_libraries(ring PRIVATE cohort::c)
add_executable(checkpoint /user/checkpoint.cc)
target_link_libraries(checkpoint PRIVATE cohort::trainer)
END
  cat >"$work/version.c" <<END
#include <cohort/cohort.h>
#include <cohort/version.h>
#include <string.h>
int main(void) { return COHORT_VERSION_NUMBER < 100 || strcmp(cohort_version(), COHORT_VERSION_STRING) != 0; }
END
  quietly cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" ${3:+"$3"}
  quietly cmake --build "$work/build"
  quietly "$work/build/embed"
  quietly "$work/build/ring"
  quietly "$work/build/checkpoint"
  export PKG_CONFIG_PATH=$pkg_config
  # shellcheck disable=SC2046
  quietly g++ -std=c++20 embed.cc -o "$work/embed" $(pkg-config --cflags --libs cohort)
  # shellcheck disable=SC2046
  quietly gcc "$work/version.c" -o "$work/version" $(pkg-config --cflags --libs cohort-c)
  quietly "$work/embed"
  quietly "$work/version"
  quietly "$prefix/bin/dlaunch" --nproc-per-node 2 "$work/embed"
  (cd "$work" && PATH=$prefix/bin:$PATH quietly dlaunch --nproc-per-node 2 train_digits --epochs 2)
  grep -E 'accuracy|loss' /tmp/step.log | tail -n 1
  no_process
  rm -rf "$work"
}

# wanted <format>
wanted() { [[ $formats == *" $1 "* ]]; }

# removed <what>: nothing is left that was not there before.
removed() {
  ldconfig
  if ldconfig -p | grep cohort; then echo "the loader still knows the library" && exit 1; fi
  everything | sort >/user/after
  diff /user/before /user/after || { echo "the files above stayed or are gone after $1 was removed" && exit 1; }
  echo "$1 was removed without a trace"
}

quietly apt-get -q update
apt install g++ cmake make pkg-config libabsl-dev libtorch-dev libopenblas0-openmp rpm
everything | sort >/user/before

echo "== .deb"
apt install /packages/*.deb
dpkg -l libcohort0 libcohort-dev dlaunch cohort-trainer | awk '/^ii/ { print $2, $3 }'
if wanted deb; then use /usr ""; fi
apt purge libcohort0 libcohort-dev dlaunch cohort-trainer
removed "the set of .deb"

# The libraries of others, which those packages brought, are still here.
if wanted tarball; then
  echo "== tarball"
  mkdir /user/first
  tar -xzf /packages/cohort-*-Linux-*.tar.gz -C /user/first --strip-components 1
  mv /user/first /opt/moved
  use /opt/moved /opt/moved/lib/pkgconfig
  rm -rf /opt/moved
  removed "the tarball"
fi

if wanted rpm; then
  echo "== .rpm"
  # rpm's own database knows nothing of Debian's libraries.
  quietly rpm --install --nodeps /packages/*.rpm
  rpm -qa | sort
  # Debian's loader and CMake look into no lib64, as those of rpm's systems do.
  echo /usr/lib64 >/etc/ld.so.conf.d/lib64.conf
  ldconfig
  use /usr /usr/lib64/pkgconfig -Dcohort_DIR=/usr/lib64/cmake/cohort
  quietly rpm --erase --nodeps libcohort0 libcohort-devel dlaunch cohort-trainer
  rm /etc/ld.so.conf.d/lib64.conf
  [ -z "$(rpm -qa)" ] || { rpm -qa && echo "rpm still has the packages above" && exit 1; }
  rm -r /root/.rpmdb # rpm's own database, which Debian's rpm has in the home folder
  removed "the set of .rpm"
fi
echo "passed:$formats"

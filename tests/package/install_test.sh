#!/bin/sh
# install_test.sh <build folder> <program>: installs the build, moves what was installed elsewhere, and uses it there
# (use_installed.sh) while the source and the build can't be seen. Headers named like Cohort's are earlier in the include
# path.
set -eu
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
case ${1:-} in -h | --help) usage && exit ;; esac
[ $# = 2 ] || { usage >&2 && exit 2; }
build=$1 program=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$(cd "$here/../.." && pwd)
build=$(cd "$build" && pwd)

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log" && exit 1; }
mv "$work/first" "$work/moved"
mkdir "$work/user"
cp "$here"/project/* "$here/use_installed.sh" "$program" "$source/comm/c/examples/ring.c" "$work/user"
sed -n '/^```cpp title="main.cc"$/,/^```$/p' "$source/docs/start/library.md" | sed '/^```/d' >"$work/user/main.cc"
decoy=$work/decoy
for header in comm/communicator.h runtime/runtime.h trainer/trainer.h trainer.h cohort.h; do
  mkdir -p "$decoy/$(dirname $header)"
  echo "#error $header of somebody else" >"$decoy/$header"
done

echo "== what is installed"
du -sh "$work/moved" "$work/moved"/*
libraries=$(find "$work/moved" -name 'libcohort_*.so')
for binary in "$work"/moved/bin/* $libraries; do
  if readelf -S "$binary" | grep -q '\.symtab'; then echo "$binary is not stripped" && exit 1; fi
done
for library in $libraries; do
  case $library in */libcohort_c.so)
    if nm -D --defined-only "$library" | grep -v -e ' T cohort_[a-z_]*@@COHORT_C_1$' -e ' A COHORT_C_1'; then
      echo "$library exports the symbols above" && exit 1
    fi
    continue ;;
  esac
  if nm -D --defined-only "$library" | c++filt | grep -v -e 'cohort::\(runtime\|comm\|trainer\)::' -e ' A COHORT_[0-9.]*$'; then
    echo "$library exports the symbols above" && exit 1
  fi
done
trainer=$(find "$work/moved" -name libcohort_trainer.so)
if [ -n "$trainer" ] && nm -D --defined-only "$trainer" | c++filt | grep ' [TDB] cohort::\(comm\|runtime\)::'; then
  echo "$trainer holds a copy of what libcohort_comm has" && exit 1
fi

echo "== manual pages, completion and schemas"
for program in collperf plan schedule blackbox dlaunch; do
  [ -x "$work/moved/bin/$program" ] || continue
  for file in man/man1/$program.1 bash-completion/completions/$program zsh/site-functions/_$program \
    fish/vendor_completions.d/$program.fish; do
    [ -s "$work/moved/share/$file" ] || { echo "share/$file is missing" && exit 1; }
  done
done
[ -s "$work/moved/share/cohort/schemas/report.schema.json" ] || { echo "the schemas are missing" && exit 1; }

echo "== what leads out of it"
if find "$work/moved" -type l -lname '/*' -o -xtype l | grep .; then echo "are links that lead out of the install" && exit 1; fi
for folder in "$source" "$build" "$work/first"; do
  if grep -rlaF "$folder/" "$work/moved"; then echo "hold $folder" && exit 1; fi
done
for binary in "$work"/moved/bin/* $libraries; do
  # Libraries of others may lie anywhere: libtorch does.
  if readelf -d "$binary" | grep -E '\((RPATH|RUNPATH)\)' | grep -F -e "$source" -e "$build"; then exit 1; fi
done

# A namespace in which the source and the build are empty, where this user may make one.
cd "$work"
hide="mount -t tmpfs none '$build' && mount -t tmpfs none '$source'"
for namespace in "unshare -m" "unshare -rm"; do
  if $namespace sh -c "$hide" 2>/dev/null; then
    $namespace sh -c "$hide && exec sh '$work/user/use_installed.sh' '$work'"
    exit
  fi
done
echo "the source and the build stay in sight: this user can make no mount namespace"
sh "$work/user/use_installed.sh" "$work"

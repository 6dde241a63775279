#!/bin/sh
# open_mpi_test.sh <program> <programs to draw>: runs it under Open MPI's mpirun, with 2, 3 and 4 ranks.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl=self,vader TMPDIR="$folder"
# Open MPI does not free what its plug-ins have allocated.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
for ranks in 2 3 4; do
  mpirun.openmpi -n "$ranks" "$1" $(($2 / 3 + 1))
done

#!/bin/sh
# A Slurm batch job of one dlaunch: sbatch [options of Slurm] job.sh [options of dlaunch] program [arguments]
#SBATCH --nodes=2
#SBATCH --exclusive
# A minute before the time limit the ranks get SIGTERM and may write a checkpoint; see --grace.
#SBATCH --signal=B:TERM@60
exec dlaunch --grace 50 "$@"

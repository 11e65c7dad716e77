#!/usr/bin/env bash
# Starts one rank of gptrain per task of the Slurm job it is called in, and exits as they do.
#   tools/slurm/launch.sh train CONFIG [option]...
# GPTRAIN names the program (build/gptrain). GPTRAIN_MPI: "pmix" to start MPI, "none" for TCP between the ranks; left
# out, MPI where this Slurm lists the plugin for it.
set -euo pipefail

if [[ -z ${GPTRAIN_MPI:-} ]]; then
  plugins=$(srun --mpi=list 2>&1)
  grep -qw pmix <<<"$plugins" && GPTRAIN_MPI=pmix || GPTRAIN_MPI=none
fi

# srun does not take this over from the job by itself.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# gptrain itself ends all ranks when one is lost, and says why: srun must not be faster, but kills what hangs after that.
exec srun --mpi="$GPTRAIN_MPI" --kill-on-bad-exit=0 --wait=60 "${GPTRAIN:-build/gptrain}" "$@"

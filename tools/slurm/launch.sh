#!/usr/bin/env bash
# Starts one rank of gptrain per task of the current Slurm job, and exits with their exit code.
#   tools/slurm/launch.sh train CONFIG [option]...
# RANKS_PER_NODE: starts that many ranks per node instead, which divide the CPUs of the node's one task. GPTRAIN: the
# program (build/gptrain of this source tree). GPTRAIN_MPI: "pmix" starts MPI, "none" uses TCP between the ranks;
# default: MPI if every node can start it.
set -euo pipefail

# srun does not inherit this setting from the job.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

ranks=()
if [[ -n ${RANKS_PER_NODE:-} ]]; then
  ranks=(--ntasks=$((RANKS_PER_NODE * SLURM_JOB_NUM_NODES)) --ntasks-per-node="$RANKS_PER_NODE")
  [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$((SLURM_CPUS_PER_TASK / RANKS_PER_NODE))
fi

# Secret by which the ranks recognise each other. srun passes on the environment, which nobody else can read.
if [[ -z ${GPTRAIN_SECRET:-}${GPTRAIN_SECRET_FILE:-} ]]; then
  GPTRAIN_SECRET=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
  export GPTRAIN_SECRET
fi

# srun --mpi=list names the plugin even if the library that it opens is missing.
starts_pmix() {
  # shellcheck disable=SC2016  # for the shell of the task
  srun --mpi=pmix --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '[ -n "$PMIX_RANK" ]' 2>/dev/null
}
if [[ -z ${GPTRAIN_MPI:-} ]]; then
  starts_pmix && GPTRAIN_MPI=pmix || GPTRAIN_MPI=none
fi

program=${GPTRAIN:-$(cd "$(dirname "$0")/../.." && pwd)/build/gptrain}
# gptrain itself ends all ranks when one is lost, with a report: srun must not be faster, and only kills leftovers.
exec srun "${ranks[@]}" --mpi="$GPTRAIN_MPI" --kill-on-bad-exit=0 --wait=60 "$program" "$@"

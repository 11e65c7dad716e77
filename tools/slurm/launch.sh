#!/usr/bin/env bash
# Starts one rank of gptrain per task of the Slurm job it is called in, and exits as they do.
#   tools/slurm/launch.sh train CONFIG [option]...
# RANKS_PER_NODE: starts so many per node instead, among which the CPUs of the node's one task are divided.
# GPTRAIN names the program (build/gptrain). GPTRAIN_MPI: "pmix" to start MPI, "none" for TCP between the ranks; left
# out, MPI where every node can start it.
set -euo pipefail

# srun does not take this over from the job by itself.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

ranks=()
if [[ -n ${RANKS_PER_NODE:-} ]]; then
  ranks=(--ntasks=$((RANKS_PER_NODE * SLURM_JOB_NUM_NODES)) --ntasks-per-node="$RANKS_PER_NODE")
  [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$((SLURM_CPUS_PER_TASK / RANKS_PER_NODE))
fi

# By this the ranks know each other. srun hands the environment on; nobody else can read it.
if [[ -z ${GPTRAIN_SECRET:-}${GPTRAIN_SECRET_FILE:-} ]]; then
  GPTRAIN_SECRET=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
  export GPTRAIN_SECRET
fi

# srun --mpi=list names the plugin even where the library that it opens is missing.
starts_pmix() {
  # shellcheck disable=SC2016  # for the shell of the task
  srun --mpi=pmix --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '[ -n "$PMIX_RANK" ]' 2>/dev/null
}
if [[ -z ${GPTRAIN_MPI:-} ]]; then
  starts_pmix && GPTRAIN_MPI=pmix || GPTRAIN_MPI=none
fi

# gptrain itself ends all ranks when one is lost, and says why: srun must not be faster, but kills what is left of them.
exec srun "${ranks[@]}" --mpi="$GPTRAIN_MPI" --kill-on-bad-exit=0 --wait=60 "${GPTRAIN:-build/gptrain}" "$@"

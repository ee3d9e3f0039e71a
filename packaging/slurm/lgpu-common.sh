# shellcheck shell=bash
# lgpu's scripts for Slurm source this file. lgpu-slurm.conf beside it may set LGPU_ENDPOINT.

lgpu_folder=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=/dev/null
if [[ -r $lgpu_folder/lgpu-slurm.conf ]]; then . "$lgpu_folder/lgpu-slurm.conf"; fi
export LGPU_ENDPOINT=${LGPU_ENDPOINT:-/run/lgpu}
# lgpu looks at all cards of the node, not only at those that Slurm chose for the job.
unset CUDA_VISIBLE_DEVICES

# The name of the job's lease on this node. The lease is a managed one, so no other user's lease hides it.
lgpu_lease_name() { printf 'slurm-%s' "$1"; }

# slurmd's log has the output of these scripts, and may cut it to one line.
lgpu_log() { printf 'lgpu: %s\n' "$*" >&2; }

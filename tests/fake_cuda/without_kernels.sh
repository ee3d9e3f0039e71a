#!/usr/bin/env bash
# without_kernels.sh BUILD DIRECTORY: a build without a CUDA toolkit, on a machine with a GPU (fake_cuda_run --): its memory
# is served within limits, and ops run on the CPU, which programs are told.
set -euo pipefail
build=$1
export LGPU_ENDPOINT=$2
PATH=$build/cli:$build/examples:$PATH

fail() {
  printf 'without_kernels: %s\n' "$*" >&2
  exit 1
}

"$build/daemon/lgpud" --dir "$LGPU_ENDPOINT" 2>"$LGPU_ENDPOINT.log" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true' EXIT
until grep -q ' ready: 1 GPU' "$LGPU_ENDPOINT.log"; do
  kill -0 $daemon 2>/dev/null || fail "lgpud serves no GPU: $(cat "$LGPU_ENDPOINT.log")"
  sleep 0.05
done
out=$(lgpu run -q -m 64MiB -- lgpu verify 2>&1) || fail "lgpu verify: $out"
[[ $out == *"The limit holds."* ]] || fail "the limit does not hold: $out"
out=$(lgpu run -q -m 64MiB -- 01_hello 2>&1) || fail "01_hello: $out"
[[ $out == *"built without a CUDA toolkit"*"MatMul in device /job:localhost/replica:0/task:0/device:CPU:0"* ]] ||
  fail "MatMul is not the CPU's: $out"
[[ $out == *"[[44 56] [98 128]]"* ]] || fail "the result differs: $out"
if out=$(LGPU_SOFT_PLACEMENT=0 lgpu run -q -n 2 -m 64MiB -- 03_simulate_multi_gpu 2>&1); then fail "a GPU runs MatMul: $out"; fi
[[ $out == *"Could not satisfy device specification"*"built without a CUDA toolkit"* ]] || fail "the refusal is unclear: $out"
out=$(lgpu doctor -v 2>&1) || fail "lgpu doctor: $out"
[[ $out == *"MatMul on the CPU (no kernels for GPUs)"* ]] || fail "lgpu doctor: $out"
kill -TERM $daemon
wait $daemon || fail "lgpud ended with $?"

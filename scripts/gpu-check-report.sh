# shellcheck shell=bash
# The report of gpu-check-run, written anew before and after every step: a run that is killed leaves what it knows. To be
# sourced by it, with `report` and `logs` (folders), `here` (the bundle) and the variables of gpu-check-steps.sh.
# shellcheck disable=SC2154

# about KEY: what gpu_probe has found out about the machine.
about() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$logs/about.json" 2>/dev/null | head -n 1; }
word() { tr -cs "A-Za-z0-9$2" '-' <<<"${1:-none}" | sed 's/-*$//'; }
# A string of JSON, without quotes, backslashes and control characters.
json_text() { printf '"%s"' "$(tr -d '"\\\000-\037' <<<"$1")"; }

# name_report FOLDER: finds out what machine this is, names the report after it, and makes the folder of its logs.
name_report() {
  logs=$(mktemp -d "$report/.about-XXXXXX") || {
    note "gpu-check: error: $report cannot be written; name another folder"
    exit 2
  }
  timeout -k 5 "$(time_for 60)" "$here/bin/gpu_probe" --out "$logs/about.json" about >"$logs/about.log" 2>&1 || true
  date=$(about date)
  date=${date:-$(date -u +%Y-%m-%dT%H:%M:%SZ)}
  gpu=$(about gpu)
  driver=$(about driver)
  commit=$(cat "$here/commit" 2>/dev/null)
  report_name=$(word "$date" '')
  report_name=${report_name%Z}-$(word "$gpu" '')-$(word "$driver" .)
  local folder=$report/$report_name more=2
  while ! mkdir "$folder" 2>/dev/null; do
    if [[ ! -e $folder ]]; then
      note "gpu-check: error: $folder cannot be made"
      exit 2
    fi
    folder=$report/$report_name-$more
    more=$((more + 1))
  done
  report_name=$(basename "$folder")
  mv "$logs"/* "$folder/"
  rmdir "$logs"
  logs=$folder
}

verdict_of() {
  if [[ $1 == "$running" ]]; then
    printf 'running'
  elif [[ ${verdicts[$1]:-} ]]; then
    printf '%s' "${verdicts[$1]}"
  elif wanted "$1"; then
    printf 'not reached'
  else
    printf 'left out'
  fi
}

json_report() {
  local step comma=
  printf '{"date":%s,"gpu":%s,"driver":%s,"cublaslt":%s,"commit":%s,"counts":%s,"ended":%s,"steps":{' "$(json_text "$date")" \
    "$(json_text "$gpu")" "$(json_text "$driver")" "$(json_text "$cublaslt")" "$(json_text "$commit")" "$(json_text "$(counts)")" "$1"
  for step in "${all_steps[@]}"; do
    printf '%s"%s":{"verdict":%s' "$comma" "$step" "$(json_text "$(verdict_of "$step")")"
    if [[ ${codes[$step]:-} ]]; then printf ',"code":%d,"seconds":%d' "${codes[$step]}" "${durations[$step]}"; fi
    printf '}'
    comma=,
  done
  printf '},"probe":\n'
  cat "$logs/probe.json" 2>/dev/null || cat "$logs/about.json" 2>/dev/null || echo null
  printf ',"suspend":\n'
  cat "$logs/suspend.json" 2>/dev/null || echo null
  printf '}\n'
}

# logs_of TITLE STEP ...: the logs of those that ran.
logs_of() {
  local step title=$1
  shift
  printf '\n## %s\n' "$title"
  for step in "$@"; do
    if [[ -s $logs/$step.log ]]; then
      # shellcheck disable=SC2016  # Markdown
      printf '\n### %s\n\n```\n%s\n```\n' "$step" "$(tail -n 200 "$logs/$step.log" | tr -d '\000')"
    fi
  done
}

markdown_report() {
  local step
  printf '# %s\n\n' "${gpu:-No GPU}"
  printf '| date | %s |\n| --- | --- |\n| gpu | %s |\n| driver | %s |\n| cuBLASLt | %s |\n| commit | %s |\n' "$date" "$gpu" \
    "$driver" "$cublaslt" "$commit"
  printf '\n| step | verdict | time |\n| --- | --- | --- |\n'
  for step in "${all_steps[@]}"; do
    printf '| %s | %s | %s |\n' "$step" "$(verdict_of "$step" | tr '|' '/')" "${durations[$step]+${durations[$step]} s}"
  done
  # shellcheck disable=SC2016  # Markdown
  printf '\n## Tests\n\n```\n'
  for step in kernels contract e2e memory; do
    if [[ -s $logs/$step.log ]]; then grep -hE '^\[ +(FAILED|SKIPPED|PASSED) +\]' "$logs/$step.log"; fi
  done
  # shellcheck disable=SC2016  # Markdown
  printf '```\n'
  logs_of 'The ledger' ledger
  logs_of 'Benchmarks' bench kernels-bench
  logs_of 'Programs that know nothing of lgpu, and adaptors' doctor verify verify-driver runtime torch torch-expandable torch-async \
    training jax cupy numba triton two killed restart module adaptor-torch adaptor-torch-pool adaptor-cupy adaptor-rmm adaptor-numba \
    cuda-gdb nsys compute-sanitizer
  # shellcheck disable=SC2016  # Markdown
  printf '\n## Experiments\n\nThe questions are in ../cuda-reference.md.\n\n```json\n%s\n```\n\n' "$(cat "$logs"/{probe,suspend}.json 2>/dev/null)"
  if [[ $1 == false ]]; then printf 'The run has not ended%s: ' "${running:+; $running was running}"; fi
  printf '%s\n' "$(counts)"
}

# write_report [ended]: both files are whole at any time.
write_report() {
  local ended=false
  if [[ ${1:-} ]]; then ended=true; fi
  cublaslt=$(sed -n 's/^cuBLASLt: //p' "$logs/kernels-bench.log" 2>/dev/null)
  cublaslt=${cublaslt:-not known}
  markdown_report "$ended" >"$report/.$report_name.md.next" && mv "$report/.$report_name.md.next" "$report/$report_name.md"
  json_report "$ended" >"$report/.$report_name.json.next" && mv "$report/.$report_name.json.next" "$report/$report_name.json"
}

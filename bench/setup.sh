#!/usr/bin/env bash
# Installs the programs that the benchmarks compare with. Does nothing when they are there. Where they cannot be installed it says so
# and succeeds: verbena-bench then leaves them out and marks them as missing.
set -uo pipefail

declare -A package=([iperf3]=iperf3 [sockperf]=sockperf [ucx_perftest]=ucx-utils [taskset]=util-linux)
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
  echo "bench: not installed and no apt-get here: ${missing[*]} (left out of the comparison)" >&2
  exit 0
fi
sudo=
if [[ $(id -u) != 0 ]]; then
  if ! sudo -n true 2>/dev/null; then
    echo "bench: not root, please install: ${missing[*]} (left out of the comparison)" >&2
    exit 0
  fi
  sudo="sudo -n"
fi
echo "bench: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=($sudo apt-get install -y -qq --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { $sudo apt-get update -qq && "${install[@]}" >/dev/null; } ||
  echo "bench: could not install ${missing[*]} (left out of the comparison)" >&2
exit 0

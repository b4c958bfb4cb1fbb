#!/usr/bin/env bash
# Everything about DDTree that needs a GPU, in one call: tests, figures, memory and race checks. About four minutes.
# usage: benchmarks/ddtree_gpu.sh [FOLDER for the results]
set -u -o pipefail
cd "$(dirname "$0")/.."
out=${1:-build/ddtree-gpu}
mkdir -p "$out"
export PYTHONPATH=. PYTHONUNBUFFERED=1

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
timeout 200 python3 -m pytest tests/ddtree -q -p no:cacheprovider -p no:benchmark --confcutdir=tests/ddtree -n 8 --maxfail=30 \
    --deselect tests/ddtree/test_compile.py --ignore-glob='*generate*' ${TESTS:-} >"$out/tests.txt" 2>&1
tail -3 "$out/tests.txt"
timeout 150 python3 benchmarks/ddtree.py --json "$out/ddtree.json" 2>&1 | tee "$out/ddtree.txt"
if command -v compute-sanitizer >/dev/null; then
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 100 compute-sanitizer --tool memcheck \
        python3 benchmarks/ddtree_sanitize.py >"$out/memcheck.txt" 2>&1
    timeout 100 compute-sanitizer --tool racecheck python3 benchmarks/ddtree_sanitize.py >"$out/racecheck.txt" 2>&1
    timeout 60 compute-sanitizer --tool racecheck python3 benchmarks/ddtree_sanitize.py --stock \
        >"$out/racecheck-stock.txt" 2>&1
    for check in memcheck racecheck racecheck-stock; do echo "$check: $(grep SUMMARY "$out/$check.txt")"; done
else
    echo "compute-sanitizer is not installed: memory and race checks were NOT RUN"
fi

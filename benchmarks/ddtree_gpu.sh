#!/usr/bin/env bash
# Everything about DDTree that needs a GPU, in one call: tests, memory and race checks, then the figures. Six minutes.
# usage: benchmarks/ddtree_gpu.sh [FOLDER for the results]
set -u -o pipefail
cd "$(dirname "$0")/.."
out=${1:-build/ddtree-gpu}
mkdir -p "$out"
export PYTHONPATH=. PYTHONUNBUFFERED=1

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

# pytest-benchmark, where it is installed, warns under parallel workers, and a warning is an error here
timeout 300 python3 -m pytest tests/ddtree -q -n "${JOBS:-8}" -p no:cacheprovider -p no:benchmark \
    --confcutdir=tests/ddtree --deselect tests/ddtree/test_compile.py >"$out/tests.txt" 2>&1
tail -12 "$out/tests.txt"

sanitize() { # name, tool, arguments
    timeout 120 compute-sanitizer --tool "$2" python3 benchmarks/ddtree_sanitize.py ${3:-} >"$out/$1.txt" 2>&1
    echo "$1: $(grep SUMMARY "$out/$1.txt" || echo "did not finish, see $out/$1.txt")"
}
if command -v compute-sanitizer >/dev/null; then
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 sanitize memcheck memcheck
    sanitize racecheck racecheck
    sanitize racecheck-stock racecheck --stock
else
    echo "compute-sanitizer is not installed: memory and race checks were NOT RUN"
fi

# last and alone: nothing else may run on the GPU meanwhile
python3 benchmarks/ddtree.py --json "$out/ddtree.json" 2>&1 | tee "$out/ddtree.txt"
python3 benchmarks/ddtree_attention.py --json "$out/attention.json" 2>&1 | tee "$out/attention.txt"

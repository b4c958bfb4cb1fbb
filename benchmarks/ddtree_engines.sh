#!/usr/bin/env bash
# Everything about DDTree that needs engines on a GPU: what is right (parts run together), then the figures, alone, then
# memory checks. About 13 minutes for V2 and 7 for V1 on an H200 with 16 cores, most of it engines that start.
# usage: benchmarks/ddtree_engines.sh v1|v2 STOCK PATCHED TARGET DRAFT PROMPTS FOLDER
#   STOCK, PATCHED: search paths (PYTHONPATH) of two vLLMs; for V1 the first one has dflash-layer-ids
#   PROMPTS: JSON, lists of token ids; FOLDER: results, one file per step
set -u
[ $# = 7 ] || { sed -n 4,6p "$0" >&2; exit 2; }
runner=$1 stock=$2 patched=$3 target=$4 draft=$5 prompts=$6 out=$7
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
export PYTHONUNBUFFERED=1
worst=0

suite() { # name, minutes, arguments
    local name=$1 minutes=$2
    shift 2
    python3 "$here/engine" suite --runner "$runner" --path "$patched" --stock-path "$stock" --target "$target" \
        --draft "$draft" --prompts "$prompts" --minutes "$minutes" --json "$out/$name.json" --logs "$out/logs-$name" \
        --cache "$out/cache" "$@" >"$out/$name.txt" 2>"$out/$name.err"
    local code=$?
    [ $code -le $worst ] || worst=$code
    echo "$name: exit code $code; $(grep -c '^ok' "$out/$name.txt") met, $(grep -c '^MISS' "$out/$name.txt") missed"
    grep '^MISS\|^n/a\|^FAILED' "$out/$name.txt" || true
}
memcheck() { # name, search path, arguments; in the background, so its result is a file
    PYTHONPATH=$2 timeout 900 compute-sanitizer --launch-timeout 0 --tool memcheck python3 "$here/ddtree_memcheck.py" --target "$target" \
        --draft "$draft" ${3:-} >"$out/memcheck-$1.txt" 2>&1
    if grep -q '^emitted \[12, 12, 12\]' "$out/memcheck-$1.txt"; then
        echo "memcheck $1: $(grep 'ERROR SUMMARY' "$out/memcheck-$1.txt")"
    else
        echo "memcheck $1: did not run to its end, see $out/memcheck-$1.txt"
    fi
}

if [ "$runner" = v1 ]; then
    suite right 5 --together --parts lossless:greedy correctness
    suite figures 4 --parts acceptance speed:32 speed:8 speed:1 speed:exact
    exit $worst
fi
suite right 7 --together --parts acceptance lossless correctness soak steps:memory
suite figures 7 --parts speed steps:small steps:prefill launches off-switch
suite large 5 --parts steps:large steps:large-prefill
# last and without other engines beside them: under their load the sanitizer does not get going
memcheck chain "$stock" --chain &
memcheck tree "$patched" &
memcheck exact "$patched" --exact &
wait
exit $worst

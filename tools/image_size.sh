#!/usr/bin/env bash
# Holds an image to its budget: tools/image_size.sh ENGINE NAME IMAGE prints its size and fails above the budget of
# NAME. MB are millions of bytes, uncompressed, the base (some 130 MB) among them. SIZES=print only prints: another
# base, or another torch, has its own weight.
set -euo pipefail
engine=$1 name=$2 image=$3
case $name in
# What an image has above its base, as built on 29 November 2026, in MB: quota 42, tokenizer 68, loadtest 76, edge 115,
# envoy 137, router 161, gateway 169. The base and a fifth more are added. Those of workers are guesses.
quota) budget_mb=200 ;;
tokenizer | loadtest) budget_mb=240 ;;
edge) budget_mb=280 ;;
envoy) budget_mb=310 ;;
router | gateway) budget_mb=350 ;;
worker) budget_mb=1800 ;;
worker-cuda*) budget_mb=9000 ;;
*)
    echo "$image: no budget"
    exit 0
    ;;
esac
bytes=$("$engine" image inspect --format '{{.Size}}' "$image")
mb=$(((bytes + 999999) / 1000000))
echo "$image: $mb of $budget_mb MB"
if [ "$mb" -gt "$budget_mb" ] && [ "${SIZES:-check}" != print ]; then
    echo "$image is larger than its budget: find out what came in, or raise the budget in $0." >&2
    exit 1
fi

#!/bin/sh
# A stand-in for nvidia-smi where GPUs are simulated: it shows the devices of this container, as its environment lists
# them, and measures nothing. Needs sh, env, sort and printf, which busybox has.

usage() {
    echo "nvidia-smi: simulated by Tessera; it knows: nvidia-smi, nvidia-smi -L, nvidia-smi --help"
}

# one line per device, whole cards and slices in the order of cards and places:
# product|card's UUID|card's MiB|profile|slice's UUID|slice's MiB
devices() {
    env | sort | while IFS= read -r line; do
        case $line in
        TESSERA_DEVICE_*=*) printf '%s\n' "${line#*=}" ;;
        esac
    done
}

list() {
    card=-1
    last=
    while IFS='|' read -r product gpu memory profile mig mig_memory; do
        if [ "$gpu" != "$last" ]; then
            card=$((card + 1))
            slice=0
            last=$gpu
            printf 'GPU %d: %s (UUID: %s)\n' "$card" "$product" "$gpu"
        fi
        if [ -n "$mig" ]; then
            printf '  MIG %-15s Device %2d: (UUID: %s)\n' "$profile" "$slice" "$mig"
            slice=$((slice + 1))
        fi
    done
}

table() {
    line='+-----------------------------------------------------------------------------+'
    printf '%s\n| %-75s |\n' "$line" 'NVIDIA-SMI, simulated by Tessera: nothing here computes'
    printf '%s\n| %-4s %-34s %-18s %16s |\n%s\n' "$line" GPU Name MIG Memory "$line"
    card=-1
    last=
    while IFS='|' read -r product gpu memory profile mig mig_memory; do
        if [ "$gpu" != "$last" ]; then
            card=$((card + 1))
            last=$gpu
        fi
        printf '| %-4s %-34s %-18s %12s MiB |\n' "$card" "$product" "${profile:-off}" "${mig_memory:-$memory}"
    done
    printf '%s\n' "$line"
}

if [ $# -gt 1 ]; then
    usage >&2
    exit 2
fi
found=$(devices)
case ${1:-} in
-h | --help)
    usage
    exit 0
    ;;
'' | -L | --list-gpus) ;;
*)
    usage >&2
    exit 2
    ;;
esac
if [ -z "$found" ]; then
    echo 'No devices were found' # as the real one says it, with its exit code
    exit 6
fi
if [ -n "${1:-}" ]; then
    printf '%s\n' "$found" | list
else
    printf '%s\n' "$found" | table
fi

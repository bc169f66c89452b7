#!/bin/sh
# leasehold and etcd side by side, and whether our goals are reached: three processes each on
# loopback, on the same disk, taking turns; a bare quinn echo; the leased get in process.
#
#   benches/compare.sh                 about twenty minutes
#   benches/compare.sh --quick         about five, and less to rely on
#   benches/compare.sh --door          the port for etcd's clients: one client of etcd on both, beside a
#                                      bare HTTP/2 echo; about ten minutes
#   benches/compare.sh --out DIR       tables, picture and figures go there; default: target/compare
#   benches/compare.sh --data DIR      the clusters' data lies there meanwhile; default: the same
#   benches/compare.sh --profile NAME  cargo's profile; default: bench
#
# Installs nothing. etcd is looked for as $ETCD and in $PATH; without it leasehold is measured alone.
# Ends what it started, also when it is told to stop.
set -eu
here=$PWD
cd "$(dirname "$0")/.."

say() { printf 'compare: %s\n' "$*" >&2; }
usage() {
    say "$1"
    sed -n '2,/^set /{ /^#/s/^# \{0,1\}//p; }' benches/compare.sh >&2
    exit 2
}
# Of whoever called, not of the directory that this runs in.
absolute() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$here/$1" ;; esac; }

quick='' door='' out=$PWD/target/compare data='' profile=bench
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=yes ;;
    --door) door=yes ;;
    --out | --data | --profile)
        [ $# -ge 2 ] || usage "$1 wants a value"
        case $1 in
        --out) out=$(absolute "$2") ;;
        --data) data=$(absolute "$2") ;;
        --profile) profile=$2 ;;
        esac
        shift
        ;;
    *) usage "$1: no such option" ;;
    esac
    shift
done
data=${data:-$out}
# Before the build, which leaves a load of its own behind.
load=$(cut -d ' ' -f 1 /proc/loadavg)
say "$(nproc) cores, load average $load"
mkdir -p "$out" "$data"

if [ -n "${ETCD:-}" ] && [ ! -x "$ETCD" ]; then
    usage "ETCD=$ETCD is no program"
fi
if [ -z "${ETCD:-}" ] && ! command -v etcd >/dev/null 2>&1; then
    say "there is no etcd here: SKIPPED, leasehold is measured alone. To compare, get it by"
    say "  apt-get install etcd-server"
    say "or name it with ETCD=/path/to/etcd"
fi

say "building (profile $profile)"
built=$(cargo bench --locked --no-run --profile "$profile" --message-format=json \
    --bench load --bench loopback --bench leased_get)
program() {
    printf '%s\n' "$built" | sed -n "s|.*\"executable\":\"\([^\"]*/$1-[0-9a-f]*\)\".*|\1|p" | tail -n 1
}

# Each runs beside this shell, so that whoever stops the shell stops it, too.
child=''
# shellcheck disable=SC2317 # called by the traps
stop() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null || :
        wait "$child" 2>/dev/null || :
    fi
    say "stopped before it was done"
    exit 1
}
trap stop INT TERM HUP
run() {
    name=$1
    shift
    path=$(program "$name")
    [ -n "$path" ] || { say "cargo built no $name"; exit 1; }
    # Data of benches that make directories of their own is to lie on the same disk.
    TMPDIR=$data "$path" "$@" &
    child=$!
    status=0
    wait "$child" || status=$?
    child=''
    [ "$status" -eq 0 ] || say "$name failed"
    return "$status"
}

# A bench that fails leaves its goals unmeasured, and the rest stands.
failed=''
if [ -n "$door" ]; then
    run load compare --door ${quick:+--quick} --load-before "$load" --out "$out" --data "$data"
    exit
fi
for name in leased_get loopback; do
    rm -f "$out/$name.json"
    short=''
    [ "$name" = loopback ] && short=${quick:+quick}
    run "$name" ${short:+"$short"} "figures=$out/$name.json" || failed="$failed $name"
done
set --
for name in leased_get loopback; do
    [ ! -f "$out/$name.json" ] || set -- "$@" --figures "$out/$name.json"
done
run load compare ${quick:+--quick} --load-before "$load" --out "$out" --data "$data" "$@" || exit 1
if [ -n "$failed" ]; then
    say "not everything was measured:$failed failed"
    exit 1
fi

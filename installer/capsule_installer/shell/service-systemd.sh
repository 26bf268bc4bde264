# Act on one unit of a real host through systemd.
#
#   sh service-systemd.sh ROOT start|stop|status|reload UNIT [DEADLINE_MS]
#
# Used by the host program and by rescue.sh alike, so it needs neither Python nor a bus: systemctl
# speaks to systemd's own socket as root. ROOT is empty: systemd knows one root. A call that systemd
# does not answer ends with its deadline.
set -u -f
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022

root=$1 verb=$2 unit=$3 deadline_ms=${4-10000}
[ -z "$root" ] || { echo "service: not the root of this host: $root" >&2; exit 2; }
case $unit in */* | .* | '') echo "service: not a unit: $unit" >&2; exit 2 ;; esac

# systemctl with a limit in milliseconds; a systemd that hangs must not hang a restore. In the
# foreground, which means in our process group: what kills the supervisor's group ends it too.
ask() {
    limit_ms=$1
    shift
    timeout --foreground --signal=KILL "$((limit_ms / 1000)).$(printf '%03d' $((limit_ms % 1000)))" \
        systemctl --no-ask-password --quiet "$@"
}

# Set `active` and `pid` of the unit; an unknown unit is inactive. Fail when systemd says nothing.
look() {
    active='' pid=0
    for pair in $(ask 5000 show --property=ActiveState --property=MainPID -- "$unit"); do
        case $pair in
            ActiveState=*) active=${pair#*=} ;;
            MainPID=*) pid=${pair#*=} ;;
        esac
    done
    [ -n "$active" ]
}

is_down() {
    look && { [ "$active" = inactive ] || [ "$active" = failed ]; }
}

stop() {
    said=$(ask "$deadline_ms" stop -- "$unit" 2>&1) && return 0
    # A unit that systemd doesn't know is as good as a stopped one.
    is_down && return 0
    ask 5000 kill --kill-whom=all --signal=KILL -- "$unit"
    # The job of the first call, or this one, ends as soon as the last process is gone.
    ask 5000 stop -- "$unit"
    is_down && return 0
    echo "service: $unit does not stop: $said" >&2
    return 1
}

start() {
    ask "$deadline_ms" start -- "$unit" && return 0
    # Starts of another release count against the limit of this one: five in ten seconds by default.
    # Asked only now, because every call lengthens the time in which nothing serves.
    case $(ask 5000 show --property=Result -- "$unit") in
        Result=start-limit-hit) ;;
        *) return 1 ;;
    esac
    ask 5000 reset-failed -- "$unit"
    ask "$deadline_ms" start -- "$unit"
}

case $verb in
    start) start ;;
    stop) stop ;;
    status) if look && [ "$active" = active ]; then echo "active $pid"; else echo 'inactive 0'; fi ;;
    reload) ask "$deadline_ms" daemon-reload ;;
    *) echo "service: unknown verb: $verb" >&2; exit 2 ;;
esac

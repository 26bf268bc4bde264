# Run one service of a folder host as a plain process.
#
#   sh service-process.sh ROOT start|stop|status|reload UNIT [DEADLINE_MS]
#
# Used by the host program and by rescue.sh alike, so it needs neither Python nor a bus: a POSIX
# shell, setsid and /proc. What to run stands in UNIT.run beside the unit, made when it was copied.
# All processes of a service are in the process group of its runner, so none escapes a stop.
#
# Below ROOT/run/capsule/services/UNIT: runner and main ("pid start-time"), invocation, restarts,
# result, log. They are written in place: with no inode left a new file could not be made.
set -u -f
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022

root=$1 verb=$2 unit=$3 deadline_ms=${4-10000}
case $unit in */* | .* | '') echo "service: not a unit: $unit" >&2; exit 2 ;; esac
file=$root/usr/local/lib/systemd/system/$unit.run
place=$root/run/capsule/services/$unit

# Set `process_state`, `process_group` and `process_ticks` of a pid; fail when there is none.
look() {
    { IFS= read -r stat_line < "/proc/$1/stat"; } 2> /dev/null || return 1
    # The name is in brackets and may hold anything, so fields count from the last bracket.
    set -- ${stat_line##*) }
    process_state=$1 process_group=$3
    shift 19
    process_ticks=$1
}

# Succeed if the process that a file names ("pid start-time") lives; sets `pid`.
alive() {
    pid='' ticks=''
    { read -r pid ticks < "$1"; } 2> /dev/null || return 1
    case $pid in '' | *[!0-9]*) return 1 ;; esac
    look "$pid" && [ "$process_ticks" = "$ticks" ] && [ "$process_state" != Z ]
}

record() {
    look "$2" && printf '%s %s\n' "$2" "$process_ticks" > "$1"
}

# Hundredths of a second since boot, suspended time included.
now() {
    read -r up _ < /proc/uptime
    now_cs=${up%.*}${up#*.}
}

pause() {
    sleep "$1" 2> /dev/null || sleep 1
}

# Succeed if no process of a group runs any more; a zombie that nobody reaps does not count.
is_gone() {
    kill -0 "-$1" 2> /dev/null || return 0
    for process in $(ls /proc); do
        case $process in *[!0-9]*) continue ;; esac
        look "$process" && [ "$process_group" = "$1" ] && [ "$process_state" != Z ] && return 1
    done
    return 0
}

# Wait until a group is gone or the time is over.
await_end() {
    now
    until_cs=$((now_cs + $2 / 10))
    while ! is_gone "$1"; do
        now
        [ "$now_cs" -lt "$until_cs" ] || return 1
        pause 0.02
    done
}

stop() {
    group=''
    if alive "$place/runner"; then
        group=$pid
        # The runner first and without asking: it would start the service again.
        kill -KILL "$group" 2> /dev/null
    elif alive "$place/main"; then
        group=$process_group
    fi
    if [ -n "$group" ]; then
        kill_signal=TERM
        [ ! -f "$file" ] || . "$file"
        kill "-$kill_signal" "-$group" 2> /dev/null
        if ! await_end "$group" "$deadline_ms"; then
            kill -KILL "-$group" 2> /dev/null
            await_end "$group" 2000 || { echo "service: $unit survives SIGKILL" >&2; return 1; }
        fi
        echo stopped > "$place/result"
    fi
    if [ -d "$place" ]; then
        : > "$place/main"
        : > "$place/runner"
    fi
}

start() {
    [ -f "$file" ] || { echo "service: no $file" >&2; return 1; }
    alive "$place/runner" && return 0
    # What a runner left that was killed from outside.
    stop || return 1
    mkdir -p "$place" || return 1
    setsid sh "$0" "$root" run "$unit" < /dev/null >> "$place/log" 2>&1 &
    started=$!
    now
    until_cs=$((now_cs + deadline_ms / 10))
    # Until a main process was started, or the runner has ended again because of the hold. Whether
    # the process stays is not for a start to say.
    while look "$started" && [ "$process_state" != Z ] && [ ! -s "$place/main" ]; do
        now
        [ "$now_cs" -lt "$until_cs" ] || return 1
        pause 0.01
    done
}

run() {
    . "$file"
    record "$place/runner" $$
    count=0
    while conditions; do
        read -r id < /proc/sys/kernel/random/uuid
        INVOCATION_ID=$(IFS=-; printf '%s' $id)
        export INVOCATION_ID
        echo "$INVOCATION_ID" > "$place/invocation"
        echo "$count" > "$place/restarts"
        sh "$file" exec &
        main=$!
        record "$place/main" "$main"
        wait "$main"
        code=$?
        echo "exit $code" > "$place/result"
        case $restart:$code in
            # Ended by a signal that asks politely is a clean end. Source: systemd.service(5).
            no:* | on-failure:0 | on-failure:129 | on-failure:130 | on-failure:141 | \
                on-failure:143) return 0 ;;
        esac
        count=$((count + 1))
        pause "$restart_s"
    done
    echo condition > "$place/result"
}

show() {
    if alive "$place/runner" && alive "$place/main"; then echo "active $pid"; else echo 'inactive 0'; fi
}

case $verb in
    start) start ;;
    stop) stop ;;
    run) run ;;
    status) show ;;
    reload) ;; # a unit is read when it is started
    *) echo "service: unknown verb: $verb" >&2; exit 2 ;;
esac

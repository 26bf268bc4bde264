# Restore what a host ran before an op: the dead-man, the boot rescue, and the way by hand.
#
#   sh rescue.sh ROOT OP_ID now                 restore unless the op has committed
#   sh rescue.sh ROOT OP_ID arm|d1|d2 AT_MS     the same at AT_MS of the boot clock, unless
#                                               arm: the stop has begun · d1: there is a proof
#   sh rescue.sh ROOT boot                      restore every op that a power cut left open
#
# ROOT is empty on a real host. It needs a POSIX shell (dash, busybox sh), rm, mv, ln, sync, sleep and
# /proc; no Python, network or bus of its own, no free byte and no free inode: every file that it
# puts in place was written before the stop. It may be killed anywhere and run again. Only a release
# whose units run images also needs podman, and only when podman lost one of them.
#
# Exit: 0 nothing to do or restored, 61 restore failed (the hold stays, so nothing half-switched
# starts), 2 usage.
set -u -f
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022

tab=$(printf '\t')
root=${1-}
state=$root/var/lib/capsule
recovery=$state/recovery

log() {
    echo "rescue: $*" >&2
}

# Set `process_state`, `process_group`, `process_threads` and `process_ticks` of a pid; fail when there
# is none.
look() {
    { IFS= read -r stat_line < "/proc/$1/stat"; } 2> /dev/null || return 1
    # The name is in brackets and may hold anything, so fields count from the last bracket.
    set -- ${stat_line##*) }
    process_state=$1 process_group=$3
    shift 17
    process_threads=$1
    shift 2
    process_ticks=$1
}

# Succeed while the process that `look` has found may still do something: a leader is a zombie already
# while a thread of it ends its last system call.
is_running() {
    [ "$process_state" != Z ] || [ "$process_threads" -gt 1 ]
}

# Succeed while something of a process group is alive. A guarded step is in a session of its own, but
# the first process of its namespace is in the group, and ends after everything in there.
is_group_alive() {
    kill -0 "-$1" 2> /dev/null || return 1
    set +f
    set -- "$1" /proc/[0-9]*
    set -f
    group=$1
    shift
    for entry; do
        if look "${entry#/proc/}" && [ "$process_group" = "$group" ] && is_running; then return 0; fi
    done
    return 1
}

# Kill the process group whose leader a file names as "pid start-time"; a reused pid is left alone.
kill_recorded() {
    pid='' ticks=''
    { read -r pid ticks < "$1"; } 2> /dev/null || return 0
    case $pid in '' | *[!0-9]*) return 0 ;; esac
    [ "$pid" != $$ ] || return 0
    if look "$pid"; then
        [ "$process_ticks" = "$ticks" ] || return 0
        kill -KILL "-$pid" 2> /dev/null
    fi
    # Last system calls may still run, also those of a group whose leader is gone: names must not
    # move under the restore.
    while look "$pid" && [ "$process_ticks" = "$ticks" ] && is_running; do
        pause 0.01
    done
    now
    gone_ms=$((now_ms + 2000))
    while is_group_alive "$pid"; do
        now
        [ "$now_ms" -lt "$gone_ms" ] || { log "something of process $pid does not end"; return 0; }
        pause 0.02
    done
}

pause() {
    sleep "$1" 2> /dev/null || sleep 1
}

# Milliseconds since boot, suspended time included.
now() {
    read -r up _ < /proc/uptime
    now_ms=${up%.*}${up#*.}0
}

# Succeed when the op needs no restore any more.
is_settled() {
    [ -e "$op/intent" ] || return 0
    if [ -e "$op/result" ] && ! [ "$op/result" -ef "$op/result.failed" ]; then return 0; fi
    # The outcome is written once, by linking: it is the prepared file or somebody's commit.
    [ -e "$op/outcome" ] && ! [ "$op/outcome" -ef "$op/outcome.restoring" ]
}

# Succeed when another timer took over from this one.
is_passed_on() {
    case $mode in
        arm) [ -e "$op/stopping" ] ;;
        d1) [ -e "$op/proof" ] ;;
        *) return 1 ;;
    esac
}

sleep_until() {
    now
    while [ "$now_ms" -lt "$1" ]; do
        if is_settled || is_passed_on; then return 0; fi
        rest=$(($1 - now_ms))
        [ "$rest" -lt 1000 ] || rest=1000
        pause "$((rest / 1000)).$(printf '%03d' $((rest % 1000)))"
        now
    done
}

# Run a list of name operations; each is done already when its source or path is gone.
apply() {
    while IFS=$tab read -r verb one two; do
        case $verb in
            rename)
                [ -e "$one" ] || [ -h "$one" ] || continue
                if [ -h "$two" ]; then
                    # mv would follow a link to a folder. Stopped here, the next run finds `one`.
                    rm -f -- "$two" || return 1
                elif [ -d "$two" ]; then
                    log "a folder is in the way: $two"
                    return 1
                elif [ "$one" -ef "$two" ]; then
                    rm -f -- "$one" || return 1
                    continue
                fi
                mv -f -- "$one" "$two" || return 1
                ;;
            unlink) rm -f -- "$one" || return 1 ;;
            *) log "not a plan: $1" && return 1 ;;
        esac
    done < "$1"
}

# Make the names durable that a list changed.
sync_folders() {
    last=''
    while IFS=$tab read -r verb one two; do
        folder=${two:-$one}
        folder=${folder%/*}/
        [ "$folder" = "$last" ] || [ ! -d "$folder" ] || sync "$folder" || return 1
        last=$folder
    done < "$1"
}

service() {
    sh "$recovery/service-$manager.sh" "$root" "$@" 9<&-
}

stop_units() {
    for list in units.new units.old; do
        while IFS=$tab read -r unit stop_ms start_ms; do
            service stop "$unit" "$stop_ms" < /dev/null || return 1
        done < "$op/$list"
    done
}

podman_says() {
    timeout --signal=KILL 20 podman "$@" < /dev/null
}

pull_image() {
    timeout --signal=KILL 120 podman pull --quiet "oci:$1" < /dev/null > /dev/null
}

# Remove an image with its names, if there is one; fail while a container runs it.
drop_image() {
    podman_says image exists "$1" || return 0
    runs=$(podman_says ps --quiet --filter "ancestor=${1#sha256:}") && [ -z "$runs" ] ||
        { log 'a container runs it'; return 1; }
    podman_says untag "$1" && podman_says rmi "$1" > /dev/null || { log 'podman keeps it'; return 1; }
}

# Let the engine take again what it lost of the images that the old units run; their layouts lie in
# the generation, so no registry is asked. What it does not take is told by the unit that needs it.
load_images() {
    [ -e "$op/images.old" ] || return 0
    while IFS=$tab read -r image layout; do
        if [ -e "$state/state/engines/podman/${image#sha256:}.loading" ]; then
            # Of a load that was cut short: what podman holds may be torn, and so may layers that it
            # drops only with the image. The note stays, as nothing here waits for its store.
            log "$image may be torn"
            drop_image "$image" || continue
            pull_image "$layout"
            drop_image "$image" || continue
        elif podman_says image exists "$image"; then
            continue
        fi
        log "loading $image again"
        pull_image "$layout" || log "podman did not take it"
    done < "$op/images.old"
}

start_units() {
    while IFS=$tab read -r unit stop_ms start_ms; do
        service start "$unit" "$start_ms" < /dev/null || return 1
    done < "$op/units.old"
}

# Every unit that was there is active, and still the same process a moment later.
check_units() {
    while IFS=$tab read -r unit stop_ms start_ms; do
        now
        until_ms=$((now_ms + start_ms))
        first=$(service status "$unit" < /dev/null)
        while [ "${first%% *}" != active ]; do
            now
            [ "$now_ms" -lt "$until_ms" ] || { log "$unit is not active"; return 1; }
            pause 0.05
            first=$(service status "$unit" < /dev/null)
        done
        pause 0.3
        [ "$(service status "$unit" < /dev/null)" = "$first" ] || { log "$unit does not stay"; return 1; }
    done < "$op/units.old"
}

names_back() {
    # The program may have been killed before it made the intent durable. A power cut that forgets
    # the intent, but not the hold, would leave nothing to restore and nothing that may start.
    sync "$op" || return 1
    [ -e "$state/hold" ] || ln "$op/hold" "$state/hold" || return 1
    sync "$state" || return 1
    # Nothing was stopped before `stopping`; after a reboot it says nothing. At a boot systemd has
    # started no managed unit yet, and to stop one now would take back that it starts it later.
    if [ "$mode" = boot ]; then
        [ "$manager" = systemd ] || stop_units || return 1
    elif [ -e "$op/stopping" ]; then
        stop_units || return 1
    fi
    apply "$op/restore.plan" && sync_folders "$op/restore.plan" && service reload -
}

serve_again() {
    # An absent node keeps its hold: nothing of ours may start on it.
    [ ! -e "$op/absent" ] || return 0
    load_images
    rm -f -- "$state/hold" && sync "$state" || return 1
    # A boot starts the units itself, once this program has ended.
    [ "$mode" != boot ] || [ "$manager" = process ] || return 0
    start_units && check_units
}

finish() {
    rm -f -- "$op/result"
    ln "$op/result.$1" "$op/result"
    sync "$op"
}

restore() {
    [ -e "$op/outcome" ] || ln "$op/outcome.restoring" "$op/outcome" 2> /dev/null
    if ! [ -e "$op/outcome" ]; then
        rm -rf -- "$state/state/ballast" "$state/state/spare"
        ln "$op/outcome.restoring" "$op/outcome" 2> /dev/null
    fi
    if is_settled; then return 0; fi
    rm -rf -- "$state/state/ballast" "$state/state/spare"
    kill_recorded "$op/supervisor"
    kill_recorded "$op/worker"
    # Two restores at once would only be a waste, but for a link that one removes and one moves.
    exec 9< "$op/order"
    ! command -v flock > /dev/null || flock -x -w 60 9 || log 'another restore does not end'
    if is_settled; then return 0; fi
    read -r manager < "$op/manager"
    log "restoring ${op##*/}"
    if names_back && serve_again; then
        if [ -e "$op/absent" ]; then finish absent; else finish restored; fi
        apply "$op/clean.plan"
        log "restored ${op##*/}"
        return 0
    fi
    finish failed
    log "restore of ${op##*/} failed"
    return 61
}

# Succeed when an op of systemd's began in this boot: its own timers watch it, and somebody who
# starts a target by hand, and the boot unit with it, must not undo it.
is_of_this_boot() {
    { read -r manager < "$op/manager"; } 2> /dev/null || return 1
    [ "$manager" = systemd ] || return 1
    read -r boot_id < /proc/sys/kernel/random/boot_id
    line=''
    { read -r line < "$op/summary"; } 2> /dev/null
    case $line in *"\"boot_id\":\"$boot_id\""*) return 0 ;; esac
    return 1
}

usage() {
    sed -n 's/^#   //p' "$0" >&2
    exit 2
}

case $#:${2-}:${3-} in
    2:boot:)
        mode=boot code=0
        for name in $(ls "$state/state/ops" 2> /dev/null); do
            op=$state/state/ops/$name
            is_settled || is_of_this_boot || restore || code=$?
        done
        exit "$code"
        ;;
    3:*:now | 4:*:arm | 4:*:d1 | 4:*:d2)
        op=$state/state/ops/$2 mode=$3
        [ -d "$op" ] || usage
        [ "$mode" = now ] || sleep_until "$4"
        if is_settled || is_passed_on; then exit 0; fi
        restore
        ;;
    *) usage ;;
esac

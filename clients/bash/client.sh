#!/usr/bin/env bash
# A producer and a worker in bash, with psql. See docs/reference/protocol.md for what each call does.
#
#     client.sh enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the job's id
#     client.sh worker QUEUE                     runs jobs until TERM or INT
#
# PGQUEUE_DSN names the database, PGQUEUE_LEASE the lease in seconds (30).
set -euo pipefail

lease=${PGQUEUE_LEASE:-30}
me="bash:$(hostname):$$:$RANDOM"

# sql 'statement' name=value ...: values come as psql variables, :'name' quotes them.
sql() {
    local statement=$1 options=() each
    shift
    for each in "$@"; do options+=(-v "$each"); done
    psql "$PGQUEUE_DSN" -XqAt -F $'\x1f' -v ON_ERROR_STOP=1 "${options[@]}" -f - <<<"$statement"
}

enqueue() {
    sql "begin;
        insert into client_orders (note) values (:'task');
        select pgqueue.enqueue(:'task', :'args'::jsonb, queue => :'queue', key => nullif(:'key', ''));
        commit;" task="$1" args="$2" queue="$3" key="${4:-}"
}

# The handlers. Each runs in a process group of its own, so that all of it can be ended.
run() {
    local id=$1 task=$2 args=$3 seconds
    case $task in
    note) seconds=$(sql "insert into client_notes (job_id, args) values (:'id'::bigint, :'args'::jsonb)
        returning seconds" id="$id" args="$args") && sleep "$seconds" ;;
    fail) echo "no such order" >&2 && return 1 ;;
    *) echo "there is no task $task" >&2 && return 1 ;;
    esac
}

# Reports how the last job ended, and claims $1: one or none. Rows: outcome, id, task, args, reservation.
completed='{}' completed_reservations='{}' failed='{}' failed_reservations='{}' error=''
exchange() {
    sql "select outcome, id, task, args, reservation from pgqueue.exchange(
            :'me', :'max'::int, array[:'queue'], lease => (:'lease' || ' s')::interval,
            completed => :'completed', completed_reservations => :'completed_reservations',
            failed => :'failed', failed_reservations => :'failed_reservations',
            errors => case when :'error' <> '' then array[jsonb_build_object('message', :'error')] end)" \
        me="$me" max="$1" queue="$queue" lease="$lease" completed="$completed" error="$error" failed="$failed" \
        completed_reservations="$completed_reservations" failed_reservations="$failed_reservations"
}

release() {
    sql "select pgqueue.release(array[:'id'::bigint], array[:'reservation'::bigint])" id="$1" reservation="$2"
}

# Runs one job to its end; extends its lease meanwhile, every third of it.
attempt() {
    local id=$1 task=$2 args=$3 reservation=$4 asked
    set -m
    (trap - TERM INT; run "$id" "$task" "$args") 2>"$log" &
    set +m
    handler=$!
    local next=$((SECONDS + (lease + 2) / 3))
    while kill -0 "$handler" 2>/dev/null; do
        sleep 0.05
        ((SECONDS >= next)) || continue
        next=$((SECONDS + (lease + 2) / 3))
        asked=$(sql "select cancel_requested from pgqueue.extend(
            array[:'id'::bigint], array[:'reservation'::bigint], (:'lease' || ' s')::interval), pgqueue.beat(:'me')" \
            id="$id" reservation="$reservation" lease="$lease" me="$me")
        [ "$asked" = f ] && continue
        # No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
        kill -- "-$handler" 2>/dev/null || true
        wait "$handler" || true
        handler=''
        [ -z "$asked" ] || release "$id" "$reservation"
        return
    done
    if wait "$handler"; then
        completed="{$id}" completed_reservations="{$reservation}"
    else
        failed="{$id}" failed_reservations="{$reservation}"
        error=$(tail -n 1 "$log" | tr -d '\0' | iconv -c -f UTF-8 -t UTF-8) || true # a text takes nothing else
        error=${error:-the handler failed}
    fi
    handler=''
}

# However the worker ends, its handler ends with it: another worker will run the job.
leave() {
    [ -z "$handler" ] || kill -- "-$handler" 2>/dev/null || true
    rm -f "$log"
}

# psql shows notifications after a statement: so it gets an empty one five times a second, while this worker lives.
listen() {
    { echo "listen \"$1\";" && while kill -0 $$ 2>/dev/null && echo 'select;'; do sleep 0.2; done; } |
        stdbuf -oL psql "$PGQUEUE_DSN" -XqAt 2>/dev/null | grep --line-buffered '^Asynchronous notification'
}

# Reports how the last job ended, until that is stored, and claims $1. Sets job, and then what attempt takes.
claim() {
    local max=$1 answer outcome locked
    while true; do
        job='' locked='' answer=$(exchange "$max")
        while IFS=$'\x1f' read -r outcome id task args reservation; do
            case $outcome in
            reserved) job=1 && break ;; # the last row
            locked) locked=1 ;;
            esac
        done <<<"$answer"
        [ -n "$locked" ] || break
        # Another session has its row: nothing was changed. A job that waited for it would lose its lease.
        [ -z "$job" ] || release "$id" "$reservation"
        max=0
        sleep 0.1
    done
    completed='{}' completed_reservations='{}' failed='{}' failed_reservations='{}' error=''
}

worker() {
    queue=$1 stopping='' polls=0 handler='' log=$(mktemp)
    trap 'stopping=1' TERM INT
    trap leave EXIT
    hello="pgqueue.hello(:'me', array[:'queue'], '{\"client\": \"bash\"}')"
    channel=$(sql "select $hello" me="$me" queue="$queue")
    exec 3< <(listen "$channel")
    while [ -z "$stopping" ]; do
        claim 1
        if [ -n "$job" ]; then
            attempt "$id" "$task" "$args" "$reservation"
            polls=0
            continue
        fi
        # Registered as idle, it polls four times in a second, and then blocks until it is notified or a job is due.
        pause=$(sql "select least(extract(epoch from call_again_in), extract(epoch from next_due - now())),
            case when not registered then $hello end
            from pgqueue.idle(:'me', array[:'queue'])" me="$me" queue="$queue")
        ((++polls > 4)) && pause=${pause%%$'\x1f'*} || pause=0.25
        pause=$(awk -v s="$pause" 'BEGIN { print (s < 0.01) ? 0.01 : s }')
        read -r -t "$pause" -u 3 _ || (($? > 128)) || { echo "the connection that listens is lost" >&2; exit 1; }
    done
    claim 0
    sql "select pgqueue.bye(:'me')" me="$me"
}

"$@"

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

# The handlers. Each runs in its own process, so that it can be ended.
run() {
    local id=$1 task=$2 args=$3
    case $task in
    note) exec sleep "$(sql "insert into client_notes (job_id, args) values (:'id'::bigint, :'args'::jsonb)
        returning seconds" id="$id" args="$args")" ;;
    fail) echo "no such order" >&2 && return 1 ;;
    *) echo "there is no task $task" >&2 && return 1 ;;
    esac
}

# Reports how the last job ended, and claims up to $1 jobs. Rows: outcome, id, task, args, reservation.
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

# Runs one job to its end; extends its lease meanwhile, every third of it.
attempt() {
    local id=$1 task=$2 args=$3 reservation=$4 log asked
    log=$(mktemp)
    (trap - TERM INT; run "$id" "$task" "$args") 2>"$log" &
    local handler=$! next=$((SECONDS + (lease + 2) / 3))
    while kill -0 "$handler" 2>/dev/null; do
        sleep 0.05
        ((SECONDS >= next)) || continue
        next=$((SECONDS + (lease + 2) / 3))
        asked=$(sql "select cancel_requested from pgqueue.extend(
            array[:'id'::bigint], array[:'reservation'::bigint], (:'lease' || ' s')::interval)" \
            id="$id" reservation="$reservation" lease="$lease")
        [ "$asked" = f ] && continue
        # No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
        kill "$handler" 2>/dev/null || true
        wait "$handler" || true
        [ -z "$asked" ] || sql "select pgqueue.release(array[:'id'::bigint], array[:'reservation'::bigint])" \
            id="$id" reservation="$reservation"
        return
    done
    if wait "$handler"; then
        completed="{$id}" completed_reservations="{$reservation}"
    else
        failed="{$id}" failed_reservations="{$reservation}" error=$(tail -n 1 "$log")
        error=${error:-the handler failed}
    fi
    rm -f "$log"
}

# psql shows notifications after a statement: so it gets an empty one five times a second, while this worker lives.
listen() {
    { echo "listen \"$1\";" && while kill -0 $$ 2>/dev/null && echo 'select;'; do sleep 0.2; done; } |
        stdbuf -oL psql "$PGQUEUE_DSN" -XqAt 2>/dev/null | grep --line-buffered '^Asynchronous notification'
}

worker() {
    queue=$1 stopping='' polls=0
    trap 'stopping=1' TERM INT
    channel=$(sql "select pgqueue.hello(:'me', array[:'queue'], '{\"client\": \"bash\"}')" me="$me" queue="$queue")
    exec 3< <(listen "$channel")
    while [ -z "$stopping" ]; do
        job='' locked=''
        while IFS=$'\x1f' read -r outcome id task args reservation; do
            case $outcome in
            reserved) job=1 && break ;;
            locked) locked=1 ;; # Another session has the row: nothing was changed, report it again.
            esac
        done < <(exchange 1)
        [ -n "$locked" ] || completed='{}' completed_reservations='{}' failed='{}' failed_reservations='{}' error=''
        if [ -n "$job" ]; then
            attempt "$id" "$task" "$args" "$reservation"
            polls=0
            continue
        fi
        # Registered as idle, it polls four times in a second, and then blocks until it is notified or a job is due.
        pause=$(sql "select least(extract(epoch from call_again_in), extract(epoch from next_due - now()))
            from pgqueue.idle(:'me', array[:'queue'])" me="$me" queue="$queue")
        ((++polls > 4)) || pause=0.25
        read -r -t "$(awk -v s="$pause" 'BEGIN { print (s < 0.01) ? 0.01 : s }')" -u 3 _ || true
    done
    exchange 0 >/dev/null
    sql "select pgqueue.bye(:'me')" me="$me"
}

"$@"

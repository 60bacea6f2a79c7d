// A producer and a worker in Go, with pgx. See docs/reference/protocol.md for what each call does.
// PGQUEUE_DSN names the database, PGQUEUE_LEASE the lease in seconds (30).
//
//	client enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the job's id
//	client worker QUEUE                     runs jobs until TERM or INT
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

type job struct {
	id          int64
	task, args  *string
	reservation *int64
}

var background, lease = context.Background(), 30.0

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func connect() *pgx.Conn              { return must(pgx.Connect(background, os.Getenv("PGQUEUE_DSN"))) }
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func enqueue(task, args, queue, key string) (id int64) {
	tx := must(connect().Begin(background)) // the process ends: closed without a commit, it is rolled back
	must(tx.Exec(background, "insert into client_orders (note) values ($1)", task))
	statement := "select pgqueue.enqueue($1, $2::text::jsonb, queue => $3, key => nullif($4, ''))"
	must(0, tx.QueryRow(background, statement, task, args, queue, key).Scan(&id))
	must(0, tx.Commit(background))
	return
}

// The handlers. Each has its own connection, and must end when the context does. A panic fails the job alone.
func handle(ctx context.Context, j *job) (failure error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			failure = fmt.Errorf("%v", panicked)
		}
	}()
	db := connect()
	defer db.Close(background)
	switch *j.task {
	case "note":
		var pause float64
		note := "insert into client_notes (job_id, args) values ($1, $2::text::jsonb) returning seconds"
		must(0, db.QueryRow(ctx, note, j.id, j.args).Scan(&pause))
		_, err := db.Exec(ctx, "select pg_sleep($1)", pause)
		return err
	case "fail":
		return fmt.Errorf("no such order")
	}
	return fmt.Errorf("there is no task %s", *j.task)
}

// exchange reports how the last job ended, until that is stored, and claims max: one or none. It returns the job.
func exchange(db *pgx.Conn, name, queue string, max int, ended *job, failure error) *job {
	good, bad, messages := [2][]int64{{}, {}}, [2][]int64{{}, {}}, []string{}
	if ended != nil && failure != nil {
		// Jsonb takes no zero bytes, and UTF-8 alone.
		messages = []string{strings.ToValidUTF8(strings.ReplaceAll(failure.Error(), "\x00", ""), "?")}
		bad = [2][]int64{{ended.id}, {*ended.reservation}}
	} else if ended != nil {
		good = [2][]int64{{ended.id}, {*ended.reservation}}
	}
	rows := must(db.Query(background, `select outcome, coalesce(id, 0), task, args::text, reservation from pgqueue.exchange(
		$1, $2, array[$3], lease => make_interval(secs => $4), completed => $5, completed_reservations => $6, failed => $7,
		failed_reservations => $8, errors => array(select jsonb_build_object('message', e) from unnest($9::text[]) e))`,
		name, max, queue, lease, good[0], good[1], bad[0], bad[1], messages))
	outcomes := map[string]*job{}
	for outcome, row := "", new(job); rows.Next(); outcomes[outcome], row = row, new(job) {
		must(0, rows.Scan(&outcome, &row.id, &row.task, &row.args, &row.reservation))
	}
	must(0, rows.Err())
	if outcomes["locked"] == nil {
		return outcomes["reserved"]
	}
	// Another session has its row: nothing was changed. A job that waited for it would lose its lease.
	if j := outcomes["reserved"]; j != nil {
		must(db.Exec(background, "select pgqueue.release($1, $2)", []int64{j.id}, []int64{*j.reservation}))
	}
	time.Sleep(seconds(0.1))
	return exchange(db, name, queue, 0, ended, failure)
}

// attempt runs one job to its end, and extends its lease meanwhile, every third of it. Nil: no end to report.
func attempt(db *pgx.Conn, name string, j *job) (*job, error) {
	ctx, interrupt := context.WithCancel(background)
	defer interrupt()
	done := make(chan error, 1)
	go func() { done <- handle(ctx, j) }()
	pair := []any{[]int64{j.id}, []int64{*j.reservation}, lease, name}
	for {
		select {
		case err := <-done:
			return j, err
		case <-time.After(seconds(lease / 3)):
			var asked bool
			extend := "select cancel_requested from pgqueue.extend($1, $2, make_interval(secs => $3)), pgqueue.beat($4)"
			if err := db.QueryRow(background, extend, pair...).Scan(&asked); err == nil && !asked {
				continue
			}
			// No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
			interrupt()
			<-done
			must(db.Exec(background, "select pgqueue.release($1, $2)", pair[:2]...))
			return nil, nil
		}
	}
}

func work(queue string) {
	stopping, _ := signal.NotifyContext(background, syscall.SIGTERM, syscall.SIGINT)
	db, channel := connect(), ""
	name := fmt.Sprintf("go:%d:%x", os.Getpid(), time.Now().UnixNano())
	hello := `pgqueue.hello($1, array[$2], '{"client": "go"}')`
	must(0, db.QueryRow(background, "select "+hello, name, queue).Scan(&channel))
	must(db.Exec(background, "listen "+pgx.Identifier{channel}.Sanitize()))
	ended, failure := (*job)(nil), error(nil)
	for polls := 0; stopping.Err() == nil; {
		reserved := exchange(db, name, queue, 1, ended, failure)
		if ended = nil; reserved != nil {
			ended, failure = attempt(db, name, reserved)
			polls = 0
			continue
		}
		var pause float64
		must(0, db.QueryRow(background, `select least(extract(epoch from call_again_in),
			extract(epoch from next_due - now()))::float8, case when not registered then `+hello+` end
			from pgqueue.idle($1, array[$2])`, name, queue).Scan(&pause, nil))
		// Registered as idle, it polls four times in a second, and then blocks until it is notified or a job is due.
		if polls++; polls <= 4 {
			pause = 0.25
		}
		waiting, end := context.WithTimeout(stopping, seconds(pause))
		db.WaitForNotification(waiting) // or until it is time, or stopping
		end()
	}
	exchange(db, name, queue, 0, ended, failure)
	must(db.Exec(background, "select pgqueue.bye($1)", name))
}

func main() {
	fmt.Sscan(os.Getenv("PGQUEUE_LEASE"), &lease)
	if given := append(os.Args[2:], ""); os.Args[1] == "enqueue" {
		fmt.Println(enqueue(given[0], given[1], given[2], given[3]))
	} else {
		work(given[0])
	}
}

<?php
// A producer and a worker in PHP, with PDO. See docs/reference/protocol.md for what each call does.
//
//     php client.php enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the id
//     php client.php worker QUEUE                     runs jobs until TERM or INT; needs the extension pcntl
//
// libpq's variables (PGHOST, PGDATABASE, ...) name the database; PGQUEUE_LEASE is the lease in seconds (30).

declare(strict_types=1);

$lease = (float) (getenv('PGQUEUE_LEASE') ?: 30);

function connect(): PDO
{
    return new PDO('pgsql:', null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function ask(PDO $db, string $statement, mixed ...$values): array
{
    $prepared = $db->prepare($statement);
    $prepared->execute($values);
    return $prepared->fetchAll(PDO::FETCH_ASSOC);
}

function enqueue(string $task, string $args, string $queue, ?string $key = null): string
{
    $db = connect();
    $db->beginTransaction();
    ask($db, 'insert into client_orders (note) values (?)', $task);
    $rows = ask($db, 'select pgqueue.enqueue(?, ?::jsonb, queue => ?, key => ?) as id', $task, $args, $queue, $key);
    $db->commit();
    return (string) $rows[0]['id'];
}

// The handlers. Each runs in its own process, so that it can be ended.
$handlers = [
    'note' => function (PDO $db, array $job): void {
        $statement = 'insert into client_notes (job_id, args) values (?, ?) returning seconds';
        usleep((int) (ask($db, $statement, $job['id'], $job['args'])[0]['seconds'] * 1e6));
    },
    'fail' => fn() => throw new RuntimeException('no such order'),
];

final class Worker
{
    private string $name;
    private bool $stopping = false;
    private PDO $db;

    public function __construct(private string $queue, private array $handlers, private float $lease)
    {
        $this->name = 'php:' . getmypid() . ':' . bin2hex(random_bytes(4));
        pcntl_async_signals(true);
        foreach ([SIGTERM, SIGINT] as $signal) {
            pcntl_signal($signal, function (): void { $this->stopping = true; });
        }
    }

    public function run(): void
    {
        $this->db = connect();
        $hello = "pgqueue.hello(?, array[?], '{\"client\": \"php\"}') ";
        $me = [$this->name, $this->queue];
        $channel = ask($this->db, "select $hello as channel", ...$me)[0]['channel'];
        $this->db->exec("listen \"$channel\"");
        $end = null;
        $polls = 0;
        while (!$this->stopping) {
            $job = $this->exchange(1, $end);
            $end = $job ? $this->attempt($job) : null;
            if ($job) {
                $polls = 0;
                continue;
            }
            // Registered as idle, it polls four times in a second, then blocks until it is notified or a job is due.
            $seconds = (float) ask($this->db, "select least(extract(epoch from call_again_in),
                extract(epoch from next_due - now())) as s, case when not registered then $hello end
                from pgqueue.idle(?, array[?])", ...$me, ...$me)[0]['s'];
            $until = microtime(true) + (++$polls <= 4 ? 0.25 : max($seconds, 0.01));
            while (!$this->stopping && microtime(true) < $until && !$this->db->pgsqlGetNotify(PDO::FETCH_ASSOC, 250));
        }
        $this->exchange(0, $end);
        ask($this->db, 'select pgqueue.bye(?)', $this->name);
    }

    /** Reports how the last job ended, until that is stored, and claims $max: one or none. Returns the job. */
    private function exchange(int $max, ?array $end): ?array
    {
        [$good, $bad] = isset($end['error']) ? [null, $end] : [$end, null];
        // Jsonb takes no zero bytes, and UTF-8 alone.
        $message = json_encode(['message' => str_replace("\0", '', $bad['error'] ?? '')], JSON_INVALID_UTF8_SUBSTITUTE);
        $errors = $bad ? '{"' . addcslashes($message, '"\\') . '"}' : '{}';
        for (;; $max = 0, usleep(100_000)) {
            $rows = array_column(ask($this->db, 'select outcome, id, task, args, reservation from pgqueue.exchange(
                ?, ?::int, array[?], lease => make_interval(secs => ?), completed => ?, completed_reservations => ?,
                failed => ?, failed_reservations => ?, errors => ?::jsonb[])', ...[$this->name, $max, $this->queue,
                $this->lease, ...$this->pair($good), ...$this->pair($bad), $errors]), null, 'outcome');
            if (!isset($rows['locked'])) {
                return $rows['reserved'] ?? null;
            }
            // Another session has its row: nothing was changed. A job that waited for it would lose its lease.
            ask($this->db, 'select pgqueue.release(?, ?)', ...$this->pair($rows['reserved'] ?? null));
        }
    }

    private function pair(?array $job): array
    {
        return $job ? ["{{$job['id']}}", "{{$job['reservation']}}"] : ['{}', '{}'];
    }

    /** Runs one job to its end, and extends its lease meanwhile, every third of it. */
    private function attempt(array $job): ?array
    {
        [$mine, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        if (($handler = pcntl_fork()) === 0) {
            foreach ([SIGTERM, SIGINT] as $signal) {
                pcntl_signal($signal, SIG_IGN); // the worker decides when its handler ends
            }
            // However it ends, by exit() or a fatal error too: without a word to the connection that it shares.
            register_shutdown_function(fn() => posix_kill(getmypid(), SIGKILL));
            try {
                $known = $this->handlers[$job['task']] ?? throw new RuntimeException("there is no task {$job['task']}");
                $known(connect(), $job);
                fwrite($its, 'done');
            } catch (Throwable $error) {
                fwrite($its, $error::class . ': ' . substr($error->getMessage(), 0, 10000)); // what the pipe can hold
            }
            exit;
        }
        fclose($its);
        $pair = $this->pair($job);
        $extended = microtime(true);
        while (pcntl_waitpid($handler, $status, WNOHANG) === 0) {
            usleep(10_000);
            if (microtime(true) - $extended < $this->lease / 3) {
                continue;
            }
            $extended = microtime(true);
            try {
                $rows = ask($this->db, 'select cancel_requested as c
                    from pgqueue.extend(?, ?, make_interval(secs => ?)), pgqueue.beat(?)', ...[...$pair, $this->lease, $this->name]);
            } catch (PDOException $error) {
                posix_kill($handler, SIGKILL); // another worker will run the job
                throw $error;
            }
            if ($rows && !$rows[0]['c']) {
                continue;
            }
            // No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
            posix_kill($handler, SIGKILL);
            pcntl_waitpid($handler, $status);
            ask($this->db, 'select pgqueue.release(?, ?)', ...$pair);
            return null;
        }
        $said = stream_get_contents($mine) ?: 'the process of the handler has ended early';
        return ['id' => $job['id'], 'reservation' => $job['reservation'], 'error' => $said === 'done' ? null : $said];
    }
}

[, $command] = $argv;
$given = array_slice($argv, 2);
$command === 'enqueue' ? print(enqueue(...$given) . "\n") : (new Worker($given[0], $handlers, $lease))->run();

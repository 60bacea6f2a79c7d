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
        $hello = "select pgqueue.hello(?, array[?], '{\"client\": \"php\"}') as channel";
        $channel = ask($this->db, $hello, $this->name, $this->queue)[0]['channel'];
        $this->db->exec("listen \"$channel\"");
        $ended = [];
        $polls = 0;
        while (!$this->stopping) {
            $answer = $this->exchange(1, $ended);
            // Another session has the row of a locked one: nothing was changed, report it again.
            $locked = array_column(array_filter($answer, fn($row) => $row['outcome'] === 'locked'), 'id');
            $ended = array_filter($ended, fn($end) => in_array($end['id'], $locked));
            $jobs = array_filter($answer, fn($row) => $row['outcome'] === 'reserved');
            if ($job = reset($jobs)) {
                array_push($ended, ...$this->attempt($job));
                $polls = 0;
                continue;
            }
            // Registered as idle, it polls four times in a second, then blocks until it is notified or a job is due.
            $seconds = (float) ask($this->db, 'select least(extract(epoch from call_again_in),
                extract(epoch from next_due - now())) as s from pgqueue.idle(?, array[?])', $this->name, $this->queue)[0]['s'];
            $until = microtime(true) + (++$polls <= 4 ? 0.25 : max($seconds, 0.01));
            while (!$this->stopping && microtime(true) < $until && !$this->db->pgsqlGetNotify(PDO::FETCH_ASSOC, 250));
        }
        $this->exchange(0, $ended);
        ask($this->db, 'select pgqueue.bye(?)', $this->name);
    }

    /** Reports how jobs ended, and claims up to $max. */
    private function exchange(int $max, array $ended): array
    {
        $good = array_filter($ended, fn($end) => $end['error'] === null);
        $bad = array_filter($ended, fn($end) => $end['error'] !== null);
        $list = fn(array $ends, string $name) => '{' . implode(',', array_column($ends, $name)) . '}';
        $error = $bad ? json_encode(['message' => reset($bad)['error']]) : null; // one job at a time: one error at most
        return ask($this->db, 'select outcome, id, task, args, reservation from pgqueue.exchange(
            ?, ?::int, array[?], lease => make_interval(secs => ?), completed => ?, completed_reservations => ?,
            failed => ?, failed_reservations => ?, errors => case when ?::text is not null then array[?::jsonb] end)',
            $this->name, $max, $this->queue, $this->lease, $list($good, 'id'), $list($good, 'reservation'),
            $list($bad, 'id'), $list($bad, 'reservation'), $error, $error);
    }

    /** Runs one job to its end, and extends its lease meanwhile, every third of it. */
    private function attempt(array $job): array
    {
        [$mine, $its] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        if (($handler = pcntl_fork()) === 0) {
            foreach ([SIGTERM, SIGINT] as $signal) {
                pcntl_signal($signal, SIG_IGN); // the worker decides when its handler ends
            }
            try {
                $known = $this->handlers[$job['task']] ?? throw new RuntimeException("there is no task {$job['task']}");
                $known(connect(), $job);
            } catch (Throwable $error) {
                fwrite($its, $error->getMessage());
            }
            fclose($its);
            posix_kill(getmypid(), SIGKILL); // without a word to the connection that it shares with the worker
        }
        fclose($its);
        $pair = ["{{$job['id']}}", "{{$job['reservation']}}"];
        $extended = microtime(true);
        while (pcntl_waitpid($handler, $status, WNOHANG) === 0) {
            usleep(10_000);
            if (microtime(true) - $extended < $this->lease / 3) {
                continue;
            }
            $extended = microtime(true);
            $rows = ask($this->db, 'select cancel_requested as c from pgqueue.extend(?, ?, make_interval(secs => ?))',
                ...[...$pair, $this->lease]);
            if ($rows && !$rows[0]['c']) {
                continue;
            }
            // No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
            posix_kill($handler, SIGKILL);
            pcntl_waitpid($handler, $status);
            ask($this->db, 'select pgqueue.release(?, ?)', ...$pair);
            return [];
        }
        $error = stream_get_contents($mine);
        return [['id' => $job['id'], 'reservation' => $job['reservation'], 'error' => $error === '' ? null : $error]];
    }
}

[, $command] = $argv;
$given = array_slice($argv, 2);
$command === 'enqueue' ? print(enqueue(...$given) . "\n") : (new Worker($given[0], $handlers, $lease))->run();

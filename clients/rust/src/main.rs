//! A producer and a worker in Rust, with tokio-postgres. See docs/reference/protocol.md for what each call does.
//!
//!     client enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the job's id
//!     client worker QUEUE                     runs jobs until TERM or INT
//!
//! PGQUEUE_DSN names the database, PGQUEUE_LEASE the lease in seconds (30).
use futures_util::{stream, StreamExt};
use std::{env, error::Error, sync::Arc, time::Duration};
use tokio::signal::unix::{signal, SignalKind};
use tokio::{sync::watch, sync::Notify, time};
use tokio_postgres::{AsyncMessage, Client, NoTls};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone)]
struct Job { id: i64, task: String, args: String, reservation: i64 }

struct End { job: Job, error: Option<String> }

/// Connects; each notification wakes `wake`.
async fn connect(wake: Arc<Notify>) -> Result<Client> {
    let (client, mut connection) = tokio_postgres::connect(&env::var("PGQUEUE_DSN")?, NoTls).await?;
    tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) {
                wake.notify_one();
            }
        }
    });
    Ok(client)
}

async fn enqueue(task: &str, args: &str, queue: &str, key: Option<&str>) -> Result<i64> {
    let mut db = connect(Arc::default()).await?;
    let tx = db.transaction().await?; // without the commit, it is rolled back
    tx.execute("insert into client_orders (note) values ($1)", &[&task]).await?;
    let statement = "select pgqueue.enqueue($1, $2::text::jsonb, queue => $3, key => $4)";
    let id = tx.query_one(statement, &[&task, &args, &queue, &key]).await?.get(0);
    tx.commit().await?;
    Ok(id)
}

/// The handlers. One that is dropped ends at its next await.
async fn handle(job: Job) -> Result<()> {
    let db = connect(Arc::default()).await?;
    let note = "insert into client_notes (job_id, args) values ($1, $2::text::jsonb) returning seconds";
    let seconds: f64 = match job.task.as_str() {
        "note" => db.query_one(note, &[&job.id, &job.args]).await?.get(0),
        "fail" => return Err("no such order".into()),
        other => return Err(format!("there is no task {other}").into()),
    };
    time::sleep(Duration::from_secs_f64(seconds)).await;
    Ok(())
}

struct Worker { db: Client, name: String, queue: String, lease: f64 }

impl Worker {
    /// Reports how the last job ended, until that is stored, and claims `max`: one or none. Returns the job.
    async fn exchange(&self, mut max: i32, ended: &Option<End>) -> Result<Option<Job>> {
        let (bad, good): (Vec<_>, Vec<_>) = ended.iter().partition(|end| end.error.is_some());
        let ids = |ends: &[&End]| ends.iter().map(|end| end.job.id).collect::<Vec<i64>>();
        let reservations = |ends: &[&End]| ends.iter().map(|end| end.job.reservation).collect::<Vec<i64>>();
        let errors: Vec<_> = bad.iter().map(|end| end.error.clone()).collect();
        let statement = "select outcome, id, task, args::text, reservation from pgqueue.exchange(
            $1, $2, array[$3], lease => make_interval(secs => $4), completed => $5, completed_reservations => $6,
            failed => $7, failed_reservations => $8,
            errors => array(select jsonb_build_object('message', e) from unnest($9::text[]) e))";
        loop {
            let rows = self.db.query(statement, &[&self.name, &max, &self.queue, &self.lease, &ids(&good),
                &reservations(&good), &ids(&bad), &reservations(&bad), &errors]).await?;
            let find = |outcome: &str| rows.iter().find(|row| row.get::<_, &str>(0) == outcome);
            let job = find("reserved").map(|row| Job { id: row.get(1), task: row.get(2), args: row.get(3), reservation: row.get(4) });
            if find("locked").is_none() {
                return Ok(job);
            }
            // Another session has its row: nothing was changed. A job that waited for it would lose its lease.
            if let Some(job) = job {
                self.release(&job).await?;
            }
            max = 0;
            time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn release(&self, job: &Job) -> Result<()> {
        self.db.query("select pgqueue.release($1, $2)", &[&vec![job.id], &vec![job.reservation]]).await?;
        Ok(())
    }

    /// Runs one job to its end, and extends its lease meanwhile, every third of it.
    async fn attempt(&self, job: Job) -> Result<Option<End>> {
        let mut handler = tokio::spawn(handle(job.clone()));
        let pair = (vec![job.id], vec![job.reservation]);
        loop {
            tokio::select! {
                ended = &mut handler => {
                    let error = match ended { Ok(Ok(())) => None, Ok(Err(e)) => Some(e.to_string()), Err(e) => Some(e.to_string()) };
                    let error = error.map(|text| text.replace('\0', "")); // a text takes no zero bytes
                    return Ok(Some(End { job, error }));
                }
                _ = time::sleep(Duration::from_secs_f64(self.lease / 3.0)) => {
                    let extend = "select cancel_requested
                        from pgqueue.extend($1, $2, make_interval(secs => $3)), pgqueue.beat($4)";
                    let held = self.db.query_opt(extend, &[&pair.0, &pair.1, &self.lease, &self.name]).await?;
                    if matches!(&held, Some(row) if !row.get::<_, bool>(0)) { continue; }
                    // No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
                    handler.abort();
                    let _ = (&mut handler).await; // it ends at its next await
                    self.release(&job).await?;
                    return Ok(None);
                }
            }
        }
    }

    async fn run(&self, wake: Arc<Notify>) -> Result<()> {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (stop, mut stopping) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            stop.send(true)
        });
        let hello = "pgqueue.hello($1, array[$2], '{\"client\": \"rust\"}')";
        let channel: String = self.db.query_one(&format!("select {hello}"), &[&self.name, &self.queue]).await?.get(0);
        self.db.batch_execute(&format!("listen \"{channel}\"")).await?;
        let (mut ended, mut polls) = (None, 0);
        while !*stopping.borrow_and_update() {
            let job = self.exchange(1, &ended).await?;
            ended = None;
            if let Some(job) = job {
                ended = self.attempt(job).await?;
                polls = 0;
                continue;
            }
            let idle = format!("select least(extract(epoch from call_again_in), extract(epoch from next_due - now()))::float8,
                case when not registered then {hello} end from pgqueue.idle($1, array[$2])");
            let seconds: f64 = self.db.query_one(&idle, &[&self.name, &self.queue]).await?.get(0);
            // Registered as idle, it polls four times in a second, then blocks until it is notified or a job is due.
            polls += 1;
            let pause = Duration::from_secs_f64(if polls <= 4 { 0.25 } else { seconds.max(0.01) });
            tokio::select! { _ = stopping.changed() => {}, _ = wake.notified() => {}, _ = time::sleep(pause) => {} }
        }
        self.exchange(0, &ended).await?;
        self.db.query("select pgqueue.bye($1)", &[&self.name]).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let given: Vec<String> = env::args().skip(1).collect();
    if given[0] == "enqueue" {
        println!("{}", enqueue(&given[1], &given[2], &given[3], given.get(4).map(String::as_str)).await?);
        return Ok(());
    }
    let wake = Arc::new(Notify::new());
    let lease = env::var("PGQUEUE_LEASE").ok().map_or(Ok(30.0), |text| text.parse())?;
    let name = format!("rust:{}:{:x}", std::process::id(), std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos());
    Worker { db: connect(wake.clone()).await?, name, queue: given[1].clone(), lease }.run(wake).await
}

//! `/debug/profile`: what the threads of this process did over some seconds, off unless a setting asks for it.
//!
//! It shows where processor time went by thread, and what threads waited for; not by function, because a program
//! cannot look at the stacks of its own threads without unsafe code. `perf` can, from outside.

mod threads;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use self::threads::{Observation, ThreadProfile};
use super::manage::{Refusal, keep_browsers_out};
use super::{Progress, text};
use crate::api::ErrorKind;

/// The path, for the answer to an unknown one.
pub(crate) const PATHS: &[&str] = &["/debug/profile"];

const SECONDS_DEFAULT: u64 = 5;
const SECONDS_MAX: u64 = 60;
/// Between two readings: one takes a millisecond or two.
const INTERVAL: Duration = Duration::from_millis(100);

/// Whether profiles are made, and the right to make the only one.
#[derive(Clone, Debug)]
struct Profiler {
    enabled: bool,
    turn: Arc<Semaphore>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(default)]
    seconds: Option<u64>,
    #[serde(default)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Text,
}

/// What a process did.
#[derive(Debug, Serialize)]
struct Profile {
    seconds: f64,
    readings: u64,
    /// Of one core, so above 100 where several were used.
    cpu_percent: f64,
    user_ms: u64,
    system_ms: u64,
    run_queue_ms: Option<f64>,
    /// The busiest first.
    threads: Vec<ThreadProfile>,
    runtime: RuntimeProfile,
}

/// What the runtime did that serves clients.
#[derive(Debug, Serialize)]
struct RuntimeProfile {
    /// At the end.
    alive_tasks: usize,
    /// At the end: tasks that are ready and that no worker has taken.
    queued_tasks: usize,
    workers: Vec<WorkerProfile>,
}

/// What a worker of the runtime did.
#[derive(Clone, Copy, Debug, Serialize)]
struct WorkerProfile {
    busy_ms: u64,
    /// How often it had nothing to do.
    parks: u64,
}

/// What answers at the path. A profile can be made while the node starts.
pub(crate) fn router(enabled: bool) -> Router {
    Router::new()
        .route("/debug/profile", get(profile))
        .route_layer(middleware::from_fn(keep_browsers_out))
        .with_state(Profiler {
            enabled,
            turn: Arc::new(Semaphore::new(1)),
        })
}

/// # Cancel safety
/// Safe: when the client goes away, the profile ends.
async fn profile(
    State(profiler): State<Profiler>,
    Extension(progress): Extension<Progress>,
    headers: HeaderMap,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Refusal> {
    if !profiler.enabled {
        return Err(Refusal::with(
            StatusCode::NOT_FOUND,
            ErrorKind::Unsupported.code(),
            "profiling is off: set admin.profiling = true and start this node again",
        ));
    }
    let Query(parameters) = parameters.map_err(|error| {
        Refusal::usage(format!(
            "the supported parameters are seconds and format (text or json): {}",
            error.body_text()
        ))
    })?;
    let seconds = parameters.seconds.unwrap_or(SECONDS_DEFAULT);
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(Refusal::usage(format!(
            "seconds={seconds} is out of range: choose from 1 to {SECONDS_MAX}"
        )));
    }
    let Ok(_turn) = profiler.turn.try_acquire() else {
        return Err(Refusal::with(
            StatusCode::CONFLICT,
            ErrorKind::Unavailable.code(),
            "another profile of this node is being made: try again when it has ended",
        ));
    };
    let profile = observe(Duration::from_secs(seconds), &progress).await?;
    let accepts = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok());
    let is_json = match parameters.format {
        Some(format) => matches!(format, Format::Json),
        None => accepts.is_some_and(|kinds| kinds.contains("application/json")),
    };
    Ok(match is_json {
        true => axum::Json(profile).into_response(),
        false => text(StatusCode::OK, profile.as_text()),
    })
}

async fn observe(time: Duration, progress: &Progress) -> Result<Profile, Refusal> {
    let runtime = Handle::current().metrics();
    let before = workers(&runtime);
    let mut observed = Observation::default();
    #[expect(
        clippy::disallowed_methods,
        reason = "plain elapsed time: nothing but this profile depends on it"
    )]
    let began = std::time::Instant::now();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        // A connection without progress is closed long before a minute is over.
        progress.made();
        let read = tokio::task::spawn_blocking(threads::read).await;
        let failed = |detail: String| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            let code = ErrorKind::Internal.code();
            Refusal::with(status, code, &format!("no thread can be read: {detail}"))
        };
        let read = read.map_err(|error| failed(error.to_string()))?;
        observed.add(read.map_err(failed)?);
        if began.elapsed() >= time {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let threads = observed.profiles(seconds, threads::ticks_per_second());
    let after = workers(&runtime);
    let workers = after
        .iter()
        .zip(&before)
        .map(|(after, before)| WorkerProfile {
            busy_ms: after.busy_ms.saturating_sub(before.busy_ms),
            parks: after.parks.saturating_sub(before.parks),
        });
    let runtime = RuntimeProfile {
        alive_tasks: runtime.num_alive_tasks(),
        queued_tasks: runtime.global_queue_depth(),
        workers: workers.collect(),
    };
    Ok(Profile::new(seconds, observed.readings, threads, runtime))
}

/// Since they began.
fn workers(runtime: &RuntimeMetrics) -> Vec<WorkerProfile> {
    let worker = |number| WorkerProfile {
        busy_ms: runtime.worker_total_busy_duration(number).as_millis() as u64,
        parks: runtime.worker_park_count(number),
    };
    (0..runtime.num_workers()).map(worker).collect()
}

impl Profile {
    fn new(
        seconds: f64,
        readings: u64,
        threads: Vec<ThreadProfile>,
        runtime: RuntimeProfile,
    ) -> Self {
        Self {
            seconds,
            readings,
            cpu_percent: threads.iter().map(|it| it.cpu_percent).sum(),
            user_ms: threads.iter().map(|it| it.user_ms).sum(),
            system_ms: threads.iter().map(|it| it.system_ms).sum(),
            run_queue_ms: threads.iter().map(|it| it.run_queue_ms).sum(),
            threads,
            runtime,
        }
    }

    fn as_text(&self) -> String {
        let queued = |ms: Option<f64>| ms.map_or_else(|| "?".to_owned(), |ms| format!("{ms:.1}"));
        let mut out = format!(
            "{:.1} s, {} readings of {} threads\ncpu: {:.1} % of one core; user {} ms, system {} ms, \
             ready without a core {} ms\n",
            self.seconds,
            self.readings,
            self.threads.len(),
            self.cpu_percent,
            self.user_ms,
            self.system_ms,
            queued(self.run_queue_ms),
        );
        if self.run_queue_ms.is_none() {
            out += "?: this kernel does not count it (CONFIG_SCHED_INFO)\n";
        }
        out += "\n";
        let mut line = |cells: [&str; 12]| {
            let [name, numbers @ ..] = cells;
            let _ = write!(out, "{name:<16}");
            for number in numbers {
                let _ = write!(out, " {number:>9}");
            }
            out += "\n";
        };
        line([
            "THREAD",
            "ID",
            "CPU %",
            "USER MS",
            "SYS MS",
            "QUEUE MS",
            "WAITED",
            "PREEMPTED",
            "MINFAULTS",
            "MAJFAULTS",
            "RUNNING",
            "ON DISK",
        ]);
        for thread in &self.threads {
            let share = |count: u64| format!("{count}/{}", thread.readings);
            line([
                &thread.name,
                &thread.id.to_string(),
                &format!("{:.1}", thread.cpu_percent),
                &thread.user_ms.to_string(),
                &thread.system_ms.to_string(),
                &queued(thread.run_queue_ms),
                &thread.voluntary_switches.to_string(),
                &thread.involuntary_switches.to_string(),
                &thread.minor_faults.to_string(),
                &thread.major_faults.to_string(),
                &share(thread.running),
                &share(thread.on_disk),
            ]);
        }
        out + &self.runtime.as_text()
    }
}

impl RuntimeProfile {
    fn as_text(&self) -> String {
        let Self {
            alive_tasks,
            queued_tasks,
            workers,
        } = self;
        let mut out = format!("\nruntime: {alive_tasks} tasks, {queued_tasks} queued\n");
        for (number, worker) in workers.iter().enumerate() {
            let WorkerProfile { busy_ms, parks } = worker;
            let _ = writeln!(
                out,
                "worker {number}: busy {busy_ms} ms, parked {parks} times"
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::super::{AdminServer, HttpLimits, LIMITS, Pages};
    use super::*;

    async fn start(enabled: bool, connection_time: Duration) -> AdminServer {
        let pages = Pages {
            router: router(enabled),
            paths: PATHS.to_vec(),
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let limits = HttpLimits {
            connection_time,
            ..LIMITS
        };
        AdminServer::start_with("listen.admin", any, pages, limits)
            .await
            .unwrap()
    }

    async fn send(server: &AdminServer, query: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let request = format!("GET /debug/profile{query} HTTP/1.1\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The whole answer; empty if the connection was closed before it.
    async fn ask(server: &AdminServer, query: &str) -> String {
        let mut stream = send(server, query, "host: localhost\r\n").await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    fn is(answer: &str, status: u16, said: &str) {
        let begins = answer.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(begins && answer.contains(said), "{answer}");
    }

    /// Of a second or two, or less where one is refused.
    const ATTEMPTS: usize = 100;
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn what_cannot_be_done_is_refused_with_what_can() {
        let off = start(false, LONG).await;
        is(&ask(&off, "").await, 404, "admin.profiling = true");
        is(
            &ask(&off, "?seconds=0").await,
            404,
            "admin.profiling = true",
        );
        let on = start(true, LONG).await;
        for seconds in ["0", "61", "18446744073709551615"] {
            let answer = ask(&on, &format!("?seconds={seconds}")).await;
            is(&answer, 400, "from 1 to 60");
        }
        for query in [
            "?seconds=-1",
            "?seconds=x",
            "?secs=1",
            "?format=pprof",
            "?seconds=1.5",
        ] {
            is(&ask(&on, query).await, 400, "seconds and format");
        }
        let mut page = send(&on, "?seconds=1", "host: evil.example\r\n").await;
        let mut answer = String::new();
        page.read_to_string(&mut answer).await.unwrap();
        is(&answer, 403, "DNS rebinding");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn one_profile_is_made_at_a_time_and_its_client_may_go() {
        let server = start(true, LONG).await;
        let mut first = None;
        for _ in 0..ATTEMPTS {
            first = Some(send(&server, "?seconds=60", "host: localhost\r\n").await);
            // Either of both may come first.
            let answer = ask(&server, "?seconds=1").await;
            if answer.starts_with("HTTP/1.1 409 ") {
                is(&answer, 409, "another profile");
                break;
            }
            drop(first.take());
        }
        assert!(first.is_some(), "two are made at a time");
        drop(first);
        // Long before its minute is over.
        for _ in 0..ATTEMPTS {
            if ask(&server, "?seconds=1")
                .await
                .starts_with("HTTP/1.1 200 ")
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the first goes on without its client");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_profile_outlives_the_time_of_a_connection_that_makes_no_progress() {
        let server = start(true, Duration::from_millis(700)).await;
        // A machine that stands still may close it all the same, but not each time.
        for _ in 0..ATTEMPTS {
            let answer = ask(&server, "?seconds=2&format=text").await;
            if answer.starts_with("HTTP/1.1 200 ") {
                is(&answer, 200, "\nTHREAD ");
                return;
            }
        }
        panic!("the connection is closed each time");
    }
}

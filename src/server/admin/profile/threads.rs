//! What Linux counts of each thread of this process.

use std::collections::BTreeMap;

use serde::Serialize;

/// A thread, as long as it lives: ids are used again, so its start counts, too.
type ThreadKey = (i32, u64);

/// What was counted of a thread from its start to one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// As it is called now: a thread may change that.
    name: String,
    user_ticks: u64,
    system_ticks: u64,
    /// On a core, and ready without one, in nanoseconds. `None` where the kernel does not count it.
    on_cpu_and_queued: Option<(u64, u64)>,
    voluntary_switches: u64,
    involuntary_switches: u64,
    minor_faults: u64,
    major_faults: u64,
    /// As in `/proc/self/task/*/stat`: `R` on a core or ready for one, `D` waits for a disk.
    state: char,
}

/// What a thread did while it was observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ThreadProfile {
    pub(super) id: i32,
    pub(super) name: String,
    /// Of one core.
    pub(super) cpu_percent: f64,
    pub(super) user_ms: u64,
    pub(super) system_ms: u64,
    /// Ready, but without a core. `None` where the kernel does not count it.
    pub(super) run_queue_ms: Option<f64>,
    /// It waited for something.
    pub(super) voluntary_switches: u64,
    /// Its core was taken away.
    pub(super) involuntary_switches: u64,
    pub(super) minor_faults: u64,
    pub(super) major_faults: u64,
    /// Readings of it, and how many found it running or ready, and waiting for a disk.
    pub(super) readings: u64,
    pub(super) running: u64,
    pub(super) on_disk: u64,
}

/// Readings of all threads, one after the other.
#[derive(Debug, Default)]
pub(super) struct Observation {
    pub(super) readings: u64,
    threads: BTreeMap<ThreadKey, ObservedThread>,
}

#[derive(Debug, Default)]
struct ObservedThread {
    first: Reading,
    last: Reading,
    readings: u64,
    running: u64,
    on_disk: u64,
}

impl Observation {
    /// Adds a reading of all threads. What a thread did that began after the first one counts from its start.
    pub(super) fn add(&mut self, all: BTreeMap<ThreadKey, Reading>) {
        let is_first = self.readings == 0;
        self.readings += 1;
        for (key, reading) in all {
            let thread = self.threads.entry(key).or_insert_with(|| ObservedThread {
                first: match is_first {
                    true => reading.clone(),
                    false => Reading::default(),
                },
                ..ObservedThread::default()
            });
            thread.readings += 1;
            thread.running += u64::from(reading.state == 'R');
            thread.on_disk += u64::from(reading.state == 'D');
            thread.last = reading;
        }
    }

    /// What each did within `seconds`, the busiest first. `ticks` is how many of the kernel's a second has.
    pub(super) fn profiles(&self, seconds: f64, ticks: u64) -> Vec<ThreadProfile> {
        let profile = |(&(id, _), thread): (&ThreadKey, &ObservedThread)| {
            let ObservedThread { first, last, .. } = thread;
            let since = |of: fn(&Reading) -> u64| of(last).saturating_sub(of(first));
            let ms = |count: u64| count * 1_000 / ticks.max(1);
            let (user_ms, system_ms) = (
                ms(since(|it| it.user_ticks)),
                ms(since(|it| it.system_ticks)),
            );
            let nanoseconds = last.on_cpu_and_queued.map(|(on_cpu, queued)| {
                let (on_cpu_before, queued_before) = first.on_cpu_and_queued.unwrap_or_default();
                (
                    on_cpu.saturating_sub(on_cpu_before),
                    queued.saturating_sub(queued_before),
                )
            });
            let on_cpu_ms = match nanoseconds {
                Some((on_cpu, _)) => on_cpu as f64 / 1e6,
                None => (user_ms + system_ms) as f64,
            };
            ThreadProfile {
                id,
                name: last.name.clone(),
                cpu_percent: tenths(on_cpu_ms / 10.0 / seconds.max(f64::EPSILON)),
                user_ms,
                system_ms,
                run_queue_ms: nanoseconds.map(|(_, queued)| tenths(queued as f64 / 1e6)),
                voluntary_switches: since(|it| it.voluntary_switches),
                involuntary_switches: since(|it| it.involuntary_switches),
                minor_faults: since(|it| it.minor_faults),
                major_faults: since(|it| it.major_faults),
                readings: thread.readings,
                running: thread.running,
                on_disk: thread.on_disk,
            }
        };
        let mut profiles: Vec<_> = self.threads.iter().map(profile).collect();
        profiles.sort_by(|a, b| b.cpu_percent.total_cmp(&a.cpu_percent));
        profiles
    }
}

/// Rounded to what is worth reading.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// How many ticks of the kernel a second has.
pub(super) fn ticks_per_second() -> u64 {
    #[cfg(target_os = "linux")]
    return procfs::ticks_per_second();
    #[cfg(not(target_os = "linux"))]
    return 1;
}

/// What is counted of all threads at this moment. One that ends meanwhile is left out. Takes tens of
/// microseconds for each, and waits for no disk.
///
/// # Errors
/// Why `/proc` cannot be read; for example, because this system has none.
#[cfg(target_os = "linux")]
pub(super) fn read() -> Result<BTreeMap<ThreadKey, Reading>, String> {
    let tasks = procfs::process::Process::myself().and_then(|process| process.tasks());
    let tasks = tasks.map_err(|error| error.to_string())?;
    let mut readings = BTreeMap::new();
    for task in tasks {
        let Ok(task) = task else { continue };
        let (Ok(stat), Ok(status)) = (task.stat(), task.status()) else {
            continue;
        };
        let on_cpu_and_queued = task.schedstat().ok();
        let reading = Reading {
            name: stat.comm,
            user_ticks: stat.utime,
            system_ticks: stat.stime,
            on_cpu_and_queued: on_cpu_and_queued.map(|it| (it.sum_exec_runtime, it.run_delay)),
            voluntary_switches: status.voluntary_ctxt_switches.unwrap_or_default(),
            involuntary_switches: status.nonvoluntary_ctxt_switches.unwrap_or_default(),
            minor_faults: stat.minflt,
            major_faults: stat.majflt,
            state: stat.state,
        };
        readings.insert((task.tid, stat.starttime), reading);
    }
    Ok(readings)
}

/// See above.
#[cfg(not(target_os = "linux"))]
pub(super) fn read() -> Result<BTreeMap<ThreadKey, Reading>, String> {
    Err("only Linux says what its threads do".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn reading(user: u64, queued: u64, state: char) -> Reading {
        Reading {
            name: "worker".to_owned(),
            user_ticks: user,
            system_ticks: 1,
            on_cpu_and_queued: Some((user * 10_000_000, queued)),
            voluntary_switches: user * 2,
            state,
            ..Reading::default()
        }
    }

    #[test]
    fn a_thread_is_said_to_have_done_what_came_between_its_readings() {
        let mut observed = Observation::default();
        observed.add(BTreeMap::from([((7, 1), reading(100, 5_000_000, 'R'))]));
        // A new thread with the id of one that ended, and one that began later.
        observed.add(BTreeMap::from([
            ((7, 1), reading(130, 25_000_000, 'D')),
            ((7, 2), reading(20, 0, 'S')),
        ]));
        let profiles = observed.profiles(2.0, 100);
        let busy = ThreadProfile {
            id: 7,
            name: "worker".to_owned(),
            cpu_percent: 15.0,
            user_ms: 300,
            system_ms: 0,
            run_queue_ms: Some(20.0),
            voluntary_switches: 60,
            readings: 2,
            running: 1,
            on_disk: 1,
            ..ThreadProfile::default()
        };
        assert_eq!(profiles[0], busy);
        assert_eq!((profiles[1].user_ms, profiles[1].system_ms), (200, 10));
        assert_eq!((profiles[1].readings, profiles.len()), (1, 2));
    }

    #[test]
    fn where_the_kernel_counts_no_waiting_its_ticks_say_how_long_a_thread_ran() {
        let mut observed = Observation::default();
        for user in [100, 150] {
            let mut one = reading(user, 0, 'R');
            one.on_cpu_and_queued = None;
            observed.add(BTreeMap::from([((1, 1), one)]));
        }
        let profile = observed.profiles(1.0, 100).remove(0);
        assert_eq!((profile.cpu_percent, profile.run_queue_ms), (50.0, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_spins_is_found_by_its_name() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let mut observed = Observation::default();
        observed.add(read().unwrap());
        let spins = std::thread::Builder::new().name("spins".to_owned());
        let spins = spins.spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let mut is_seen = false;
        for _ in 0..12_000 {
            observed.add(read().unwrap());
            let profiles = observed.profiles(1.0, ticks_per_second());
            let found = profiles.iter().find(|it| it.name == "spins");
            is_seen = found.is_some_and(|it| it.user_ms > 50 && it.running > 0);
            if is_seen {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        STOP.store(true, Ordering::Relaxed);
        spins.unwrap().join().unwrap();
        assert!(is_seen, "{observed:?}");
    }
}

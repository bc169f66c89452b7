//! The process, as the system counts its resources.

use super::table::{Counter, Gauge, metrics};

metrics! {
    pub(super) struct ProcessMetrics {
        cpu_seconds: Counter = "process_cpu_seconds_total",
            "User and system time of the process, in whole seconds.";
        open_fds: Gauge = "process_open_fds", "Open file descriptors.";
        max_fds: Gauge = "process_max_fds", "Maximum number of open file descriptors.";
        virtual_memory_bytes: Gauge = "process_virtual_memory_bytes", "Virtual memory in bytes.";
        virtual_memory_max_bytes: Gauge = "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available, in bytes.";
        resident_memory_bytes: Gauge = "process_resident_memory_bytes",
            "Resident memory in bytes.";
        start_time_seconds: Gauge = "process_start_time_seconds",
            "When the process started, as a Unix timestamp in seconds.";
        threads: Gauge = "process_threads", "Threads of the process.";
    }
}

impl ProcessMetrics {
    pub(super) fn refresh(&self) {
        let now = metrics_process::collector::collect();
        if let Some(seconds) = now.cpu_seconds_total {
            self.cpu_seconds.absolute(seconds as u64);
        }
        let gauges = [
            (&self.open_fds, now.open_fds),
            (&self.max_fds, now.max_fds),
            (&self.virtual_memory_bytes, now.virtual_memory_bytes),
            (&self.virtual_memory_max_bytes, now.virtual_memory_max_bytes),
            (&self.resident_memory_bytes, now.resident_memory_bytes),
            (&self.start_time_seconds, now.start_time_seconds),
            (&self.threads, now.threads),
        ];
        for (gauge, value) in gauges {
            if let Some(value) = value {
                gauge.set(value as f64);
            }
        }
    }
}

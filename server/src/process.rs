//! Metrics of the process, under the names that Prometheus' client libraries give them.

use crate::metrics::Text;
use std::time::{SystemTime, UNIX_EPOCH};

/// Clock ticks per second in `/proc`: Linux always reports 100.
const TICKS: f64 = 100.0;

/// Writes metrics from `/proc`. A value that cannot be read is omitted.
pub fn write(out: &mut Text) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may contain spaces. The third field follows it.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok());
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        let seconds = (user + system) / TICKS;
        out.line(
            "process_cpu_seconds_total",
            "counter",
            "Total processor time in seconds",
            seconds,
        );
    }
    if let Some(virtual_memory) = field(23) {
        out.gauge("process_virtual_memory_bytes", "Virtual memory in bytes", virtual_memory);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = kilobytes.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    if let Some(kilobytes) = kilobytes {
        let bytes = kilobytes * 1024.0;
        out.gauge("process_resident_memory_bytes", "Resident memory in bytes", bytes);
    }
    if let Some(threads) = field(20) {
        out.gauge("process_threads", "Threads", threads);
    }
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|now| now.as_secs_f64());
    if let (Some(start), Some(uptime), Ok(now)) = (field(22), uptime, now) {
        let start = now - uptime + start / TICKS;
        out.gauge("process_start_time_seconds", "Start in seconds since 1970", start);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        out.gauge("process_open_fds", "Open files", open.count() as f64);
    }
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if let Some(most) = most {
        out.gauge("process_max_fds", "Limit of open files", most as f64);
    }
}

//! Other load on the machine during a measurement.

use std::collections::HashMap;
use std::fmt;
use std::fs;

use serde_json::{Value, json};

/// Shares of the machine's processor time.
pub(crate) struct Noise {
    own: f64,
    others: f64,
    stolen: f64,
}

/// The counters at one time, all in the same ticks.
pub(crate) struct Meter {
    own: u64,
    busy: u64,
    stolen: u64,
    all: u64,
}

impl Meter {
    /// `None` where the system does not report them.
    pub(crate) fn start() -> Option<Meter> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<u64> =
            text.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let [user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks[..] else {
            return None;
        };
        let busy = user + nice + system + irq + softirq;
        Some(Meter { own: own_ticks(), busy, stolen, all: busy + idle + iowait + stolen })
    }

    /// The shares since the start. The processes of the measurement must still run, or have been waited for.
    pub(crate) fn stop(&self) -> Option<Noise> {
        let now = Meter::start()?;
        let all = now.all.saturating_sub(self.all).max(1) as f64;
        let own = now.own.saturating_sub(self.own);
        let others = now.busy.saturating_sub(self.busy).saturating_sub(own);
        let stolen = now.stolen.saturating_sub(self.stolen);
        Some(Noise {
            own: own as f64 / all,
            others: others as f64 / all,
            stolen: stolen as f64 / all,
        })
    }
}

impl Noise {
    pub(crate) fn json(&self) -> Value {
        json!({ "own": self.own, "others": self.others, "stolen": self.stolen })
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "meanwhile this used {:.0} % of the CPU, others {:.0} %, and {:.0} % were stolen by the hypervisor",
            100.0 * self.own,
            100.0 * self.others,
            100.0 * self.stolen
        )
    }
}

/// The processor time of this process and its descendants, including those that have ended.
fn own_ticks() -> u64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let mut ticks = HashMap::new();
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some((parent, used)) = parse(&text) {
            children.entry(parent).or_default().push(pid);
            ticks.insert(pid, used);
        }
    }
    let mut open = vec![std::process::id()];
    let mut total = 0;
    while let Some(pid) = open.pop() {
        total += ticks.remove(&pid).unwrap_or(0);
        open.extend(children.remove(&pid).unwrap_or_default());
    }
    total
}

/// The parent and the time of a line of `/proc/PID/stat`.
fn parse(text: &str) -> Option<(u32, u64)> {
    // The name may contain anything; it ends with the last parenthesis.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    // Own time in user and system mode, and that of children that were waited for.
    let used = fields.get(11..15)?.iter().filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Some((parent, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_process_is_parsed() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5";
        assert_eq!(parse(line), Some((7, 100)));
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse("1 (x) S"), None);
    }

    #[test]
    fn shares_are_shown() {
        let noise = Noise { own: 0.5, others: 0.25, stolen: 0.01 };
        assert!(noise.to_string().contains("50 % of the CPU, others 25 %, and 1 %"));
        assert_eq!(noise.json()["others"], 0.25);
    }
}

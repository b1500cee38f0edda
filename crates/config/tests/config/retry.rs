//! Two sections about retries: how they combine, and the warnings where they differ.

use hypha_config::{Flags, SchedulerConfig};
use hypha_engine::RetryPolicy;
use hypha_model::Span;

use crate::{CERTIFICATES, Home};

/// `fault_tolerance` starts at line 5, `retry` at line 21. Expected: attempts, base and longest delay in
/// seconds, warnings.
#[track_caller]
fn check(fault_tolerance: &str, retry: &str, expected: (u32, u64, u64), warnings: &[&str]) {
    let home = Home::new();
    let gap = "\n".repeat(16 - fault_tolerance.lines().count());
    let text = format!(
        "{CERTIFICATES}[scheduler.fault_tolerance]\n{fault_tolerance}{gap}[scheduler.retry]\n{retry}"
    );
    let config: SchedulerConfig = home.load(&text, &[], &Flags::default()).unwrap();
    let policy = config.settings.retry;
    let (max_attempts, base, max) = expected;
    let expected = RetryPolicy {
        max_attempts,
        backoff_base: Span::from_secs(base),
        backoff_max: Span::from_secs(max),
        ..RetryPolicy::default()
    };
    assert_eq!(policy, expected, "{text}");
    let told: Vec<_> = config.warnings.iter().map(|line| home.shortened(line)).collect();
    assert_eq!(told, warnings, "{text}");
}

#[test]
fn retries_come_after_the_first_attempt_and_attempts_are_all_of_them() {
    check("", "", (3, 2, 60), &[]);
    check("max_retries = 5\n", "", (6, 2, 60), &[]);
    check("max_retries = 0\n", "", (1, 2, 60), &[]);
    check("", "max_attempts = 5\n", (5, 2, 60), &[]);
    check("enable_retries = false\n", "", (1, 2, 60), &[]);
    check("enable_retries = false\nmax_retries = 5\n", "", (1, 2, 60), &[]);
}

#[test]
fn attempts_win_over_retries() {
    let warning = "node.toml:22: `max_attempts` wins over `max_retries` at line 6";
    check("enable_retries = true\nmax_retries = 5\n", "max_attempts = 5\n", (5, 2, 60), &[warning]);
    // They agree: no warning.
    check("enable_retries = true\nmax_retries = 4\n", "max_attempts = 5\n", (5, 2, 60), &[]);
    check("enable_retries = true\n", "max_attempts = 5\n", (5, 2, 60), &[]);
    let warning = "node.toml:22: `max_attempts` wins over `enable_retries` at line 5";
    check("enable_retries = false\n", "max_attempts = 5\n", (5, 2, 60), &[warning]);
    check("enable_retries = false\n", "max_attempts = 1\n", (1, 2, 60), &[]);
}

#[test]
fn backoff_times() {
    check("retry_backoff = 'exponential'\n", "", (3, 2, 60), &[]);
    check("retry_backoff = 'exponential'\n", "backoff_base = 5\nbackoff_max = 7\n", (3, 5, 7), &[]);
    check("retry_backoff = 'constant'\n", "", (3, 2, 2), &[]);
    check("retry_backoff = 'constant'\n", "backoff_base = 5\n", (3, 5, 5), &[]);
    check("retry_backoff = 'none'\n", "", (3, 0, 0), &[]);
    // A bound that was not given yields to the one that was.
    check("", "backoff_base = 90\n", (3, 90, 90), &[]);
    check("", "backoff_max = 1\n", (3, 1, 1), &[]);
    check("", "backoff_base = 0\n", (3, 0, 60), &[]);
}

#[test]
fn backoff_times_win_over_the_backoff_kind() {
    let warning = "node.toml:22: `backoff_max` wins over `retry_backoff` at line 5";
    check("retry_backoff = 'constant'\n", "backoff_max = 7\n", (3, 2, 7), &[warning]);
    check("retry_backoff = 'constant'\n", "backoff_max = 2\n", (3, 2, 2), &[]);
    check("retry_backoff = 'none'\n", "backoff_max = 7\n", (3, 2, 7), &[warning]);
    let warning = "node.toml:22: `backoff_base` wins over `retry_backoff` at line 5";
    check("retry_backoff = 'none'\n", "backoff_base = 5\n", (3, 5, 60), &[warning]);
    check("retry_backoff = 'none'\n", "backoff_base = 0\n", (3, 0, 60), &[]);
}

#[test]
fn timeouts_and_worker_failures_are_retried_if_configured() {
    let home = Home::new();
    let config: SchedulerConfig =
        home.good("[scheduler.retry]\nretry_on_timeout = false\nretry_on_worker_failure = true\n");
    let retry = config.settings.retry;
    assert_eq!((retry.retry_on_timeout, retry.retry_on_worker_failure), (false, true));
    let config: SchedulerConfig =
        home.good("[scheduler.retry]\nretry_on_timeout = true\nretry_on_worker_failure = false\n");
    let retry = config.settings.retry;
    assert_eq!((retry.retry_on_timeout, retry.retry_on_worker_failure), (true, false));
}

#[test]
fn warnings_name_variables_and_lines() {
    let home = Home::new();
    let told = |text: &str, environment: &[(&str, &str)]| {
        let text = format!("{CERTIFICATES}{text}");
        let config: SchedulerConfig = home.load(&text, environment, &Flags::default()).unwrap();
        config.warnings.iter().map(|line| home.shortened(line)).collect::<Vec<_>>()
    };
    assert_eq!(
        told(
            "scheduler.fault_tolerance.max_retries = 5\n",
            &[("HYPHA_SCHEDULER__RETRY__MAX_ATTEMPTS", "2")]
        ),
        ["HYPHA_SCHEDULER__RETRY__MAX_ATTEMPTS: `max_attempts` wins over `max_retries` at line 4"]
    );
    assert_eq!(
        told(
            "scheduler.retry.max_attempts = 2\n",
            &[("HYPHA_SCHEDULER__FAULT_TOLERANCE__MAX_RETRIES", "5")]
        ),
        ["node.toml:4: `max_attempts` wins over `max_retries` of \
          HYPHA_SCHEDULER__FAULT_TOLERANCE__MAX_RETRIES"]
    );
}

#[test]
fn a_backoff_base_above_its_maximum_is_refused() {
    let home = Home::new();
    for (text, expected) in [
        (
            "backoff_base = 5\nbackoff_max = 4\n",
            "node.toml:6:15: `backoff_max`: the longest delay is shorter than `backoff_base`",
        ),
        (
            "max_attempts = 0\n",
            "node.toml:5:16: `scheduler.retry.max_attempts`: the value is too small: the least is 1",
        ),
        (
            "max_attempts = 101\n",
            "node.toml:5:16: `scheduler.retry.max_attempts`: the value is too large: the most is 100",
        ),
    ] {
        let text = format!("{CERTIFICATES}[scheduler.retry]\n{text}");
        let fault = home.load::<SchedulerConfig>(&text, &[], &Flags::default()).unwrap_err();
        assert_eq!(fault, expected);
    }
}

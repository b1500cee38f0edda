//! A scheduler's keys and the settings that they give.

use std::time::Duration;

use hypha_config::{BackendFormat, Flags, SchedulerConfig};
use hypha_engine::Settings;
use hypha_model::{Maximise, NodeRole, Span};
use hypha_placement::{LoadMetric, Pick, Predictive, Preferences, Strategy};

use crate::{CERTIFICATES, Home};

fn home() -> Home {
    let home = Home::new();
    for file in ["tokens", "table.csv", "cert.pem", "key.pem", "secret"] {
        std::fs::write(home.path(file), "").unwrap();
    }
    home
}

#[track_caller]
fn good(text: &str) -> SchedulerConfig {
    home().good(text)
}

#[track_caller]
fn fault(text: &str, expected: &str) {
    let text = format!("{CERTIFICATES}{text}");
    let faults = home().load::<SchedulerConfig>(&text, &[], &Flags::default());
    assert_eq!(faults.unwrap_err(), expected, "{text}");
}

/// The blocks of the architecture's own description, in its order.
const SEED: &str = r#"
[scheduler.retry]
max_attempts = 3
backoff_base = 2  # seconds
backoff_max = 60  # seconds
retry_on_timeout = true
retry_on_worker_failure = true

[scheduler]
# Maximum concurrent task assignments
max_concurrent_tasks = 100

# Worker selection algorithm
selection_algorithm = "performance-aware"  # or "round-robin", "capability-based"

# Task timeout (seconds)
task_timeout = 300

# Worker discovery interval (seconds)
discovery_interval = 60

[scheduler.api]
# REST API configuration
bind_address = "0.0.0.0:8080"
max_request_size = "10MB"

[scheduler.load_balancing]
# Load balancing strategy
strategy = "least-loaded"  # or "random", "performance"

# Load calculation method
load_metric = "task-count"  # or "cpu-usage", "memory-usage"

# Worker selection preferences
prefer_local_workers = true
max_network_latency = 100  # milliseconds

[scheduler.fault_tolerance]
# Health check configuration
health_check_interval = 30  # seconds
health_check_timeout = 5    # seconds
max_consecutive_failures = 3

# Task retry configuration
enable_retries = true
max_retries = 3
retry_backoff = "exponential"
"#;

#[test]
fn example_of_the_seed_loads_unchanged() {
    let home = home();
    let text = format!("{CERTIFICATES}{SEED}");
    let refused = home.load::<SchedulerConfig>(&text, &[], &Flags::default()).unwrap_err();
    assert_eq!(
        refused,
        "node.toml:27:16: `bind_address`: anyone who can reach this address could use the scheduler: \
         give `tokens_file`, or `allow_unauthenticated = true` if that is meant"
    );
    let tokens = home.path("tokens").to_str().unwrap().to_owned();
    let environment = [("HYPHA_SCHEDULER__API__TOKENS_FILE", tokens.as_str())];
    let config: SchedulerConfig = home.load(&text, &environment, &Flags::default()).unwrap();
    assert_eq!(config.api.bind_address, "0.0.0.0:8080".parse().unwrap());
    assert_eq!(config.api.tokens_file, Some(home.path("tokens")));
    let preferences = Preferences {
        max_rtt: Some(Span::from_millis(100)),
        max_in_flight: Some(100),
        ..Preferences::default()
    };
    let strategy = Strategy::PerformanceAware;
    assert_eq!(config.settings, Settings { strategy, preferences, ..Settings::default() });
    let warnings: Vec<_> = config.warnings.iter().map(|line| home.shortened(line)).collect();
    assert_eq!(
        warnings,
        [
            "node.toml:38: `prefer_local_workers` has no effect without `region`: set it at the top of the \
             file",
            "node.toml:6: `max_attempts` wins over `max_retries` at line 49",
        ]
    );
}

#[test]
fn defaults_match_the_machine() {
    let home = home();
    let config: SchedulerConfig = home.good("");
    assert_eq!(config.settings, Settings::default());
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.data_dir, home.path("scheduler-data"));
    assert_eq!(config.object_store, home.path("scheduler-data/objects"));
    assert_eq!(config.discovery_interval, Duration::from_secs(60));
    assert_eq!(config.result_ttl, Duration::from_secs(86_400));
    assert_eq!(config.max_result_bytes, 1 << 20);
    assert_eq!((config.region, config.lookup_table), (None, None));
    assert_eq!(config.backends, []);
    let api = &config.api;
    assert_eq!(api.bind_address, "127.0.0.1:8080".parse().unwrap());
    assert!(!api.bind_address_given && !api.allow_unauthenticated);
    assert_eq!(api.max_request_bytes, 10_000_000);
    assert_eq!((&api.tokens_file, &api.tls, &api.public_url), (&None, &None, &None));
    assert!(api.allowed_hosts.is_empty() && api.allowed_origins.is_empty());
    assert_eq!(api.max_buffered_bytes, 256 << 20);
    for (ip, allowed) in [
        ("127.0.0.1", true),
        ("10.1.2.3", true),
        ("172.31.0.1", true),
        ("192.168.1.1", true),
        ("::1", true),
        ("fd00::1", true),
        ("169.254.169.254", false),
        ("fe80::1", false),
        ("100.64.0.1", false),
        ("172.32.0.1", false),
        ("8.8.8.8", false),
        ("2606:4700::1", false),
    ] {
        let ip: std::net::IpAddr = ip.parse().unwrap();
        assert_eq!(api.allowed_networks.iter().any(|net| net.contains(&ip)), allowed, "{ip}");
    }
}

#[test]
fn every_key_takes_effect() {
    let home = home();
    let config: SchedulerConfig = home.good(
        "data_dir = 'd'\nregion = 'lab'\nstatus_bridge = 'aim-bridge.internal:61000'\n\
         [scheduler]\nmax_concurrent_tasks = 7\ntask_timeout = '8m'\n\
         discovery_interval = 9\nmax_queue = 10\nlease_ttl = 11\nresult_ttl = '12h'\n\
         max_result_size = '13KiB'\nlookup_table = 'table.csv'\n\
         [scheduler.api]\nbind_address = '[::]:14'\nmax_request_size = '15MiB'\ntokens_file = 'tokens'\n\
         allow_unauthenticated = true\nallowed_hosts = ['H', '[::1]']\n\
         allowed_origins = ['https://O:443', '*']\nmax_buffered_size = '16MiB'\ntls_cert_pem = 'cert.pem'\ntls_key_pem = 'key.pem'\n\
         public_url = 'https://s.example.org/x/'\nallowed_networks = ['192.0.2.0/24']\n\
         [scheduler.load_balancing]\nprefer_local_workers = true\nmax_network_latency = 16.5\n\
         [scheduler.fault_tolerance]\nhealth_check_interval = 17\nhealth_check_timeout = 0.018\n\
         max_consecutive_failures = 19\nquarantine = 20\n\
         [[scheduler.backends]]\nurl = 'http://127.0.0.1:21/'\nmodels = ['m', 'n']\nformat = 'json'\n\
         concurrency = 22\napi_key_file = 'secret'\nhealth_path = '/health'\n\
         [[scheduler.backends]]\nurl = 'http://[::1]:23'\n",
    );
    let settings = &config.settings;
    assert_eq!(config.data_dir, home.path("d"));
    assert_eq!(config.object_store, home.path("d/objects"), "it depends on data_dir");
    assert_eq!(config.region.as_ref().unwrap().as_str(), "lab");
    assert_eq!(config.status_bridge.as_deref(), Some("aim-bridge.internal:61000"));
    assert_eq!(settings.preferences.prefer_region, config.region);
    assert_eq!(settings.preferences.max_in_flight, Some(7));
    assert_eq!(settings.task_timeout, Span::from_secs(480));
    assert_eq!(config.discovery_interval, Duration::from_secs(9));
    assert_eq!(settings.max_queue, 10);
    assert_eq!(settings.lease_ttl, Span::from_secs(11));
    assert_eq!(config.result_ttl, Duration::from_secs(12 * 3_600));
    assert_eq!(settings.key_ttl, Span::from_secs(12 * 3_600));
    assert_eq!(config.max_result_bytes, 13 << 10);
    assert_eq!(config.lookup_table, Some(home.path("table.csv")));
    let api = &config.api;
    assert_eq!((api.bind_address, api.bind_address_given), ("[::]:14".parse().unwrap(), true));
    assert_eq!(api.max_request_bytes, 15 << 20);
    assert_eq!(api.tokens_file, Some(home.path("tokens")));
    assert!(api.allow_unauthenticated);
    assert_eq!(
        (&api.allowed_hosts[..], api.max_buffered_bytes),
        (&["h", "[::1]"].map(String::from)[..], 16 << 20)
    );
    assert_eq!(api.allowed_origins, ["https://o", "*"]);
    assert_eq!(api.tls, Some((home.path("cert.pem"), home.path("key.pem"))));
    assert_eq!(api.public_url.as_deref(), Some("https://s.example.org/x"));
    assert_eq!(api.allowed_networks, ["192.0.2.0/24".parse().unwrap()]);
    assert_eq!(settings.preferences.max_rtt, Some(Span::from_micros(16_500)));
    assert_eq!(settings.health_check_interval, Span::from_secs(17));
    assert_eq!(settings.health_check_timeout, Span::from_millis(18));
    assert_eq!(settings.max_consecutive_failures, 19);
    assert_eq!(settings.quarantine, Span::from_secs(20));
    let [first, second] = &config.backends[..] else { panic!("{:?}", config.backends) };
    assert_eq!((first.url.as_str(), first.concurrency), ("http://127.0.0.1:21", 22));
    assert_eq!((first.models.len(), first.format), (2, BackendFormat::Json));
    assert_eq!(first.api_key_file, Some(home.path("secret")));
    assert_eq!(first.health_path.as_deref(), Some("/health"));
    assert_eq!((second.concurrency, second.format), (8, BackendFormat::Openai));
    assert_eq!((second.models.len(), &second.health_path), (0, &None));
    assert_eq!(config.warnings, Vec::<String>::new());
    let elsewhere = good("[scheduler]\nobject_store = '/srv/objects'\n");
    assert_eq!(elsewhere.object_store, std::path::Path::new("/srv/objects"));
    let far = good("region = 'lab'\n[scheduler.load_balancing]\nprefer_local_workers = false\n");
    assert_eq!(far.settings.preferences.prefer_region, None);
    let near = good("region = 'lab'\n[scheduler.load_balancing]\nmax_local_wait = '90s'\n");
    assert_eq!(near.settings.preferences.max_local_wait, Span::from_secs(90));
    assert_eq!(near.warnings, Vec::<String>::new());
    let cheap = good("[scheduler]\nmaximise = 'cost'\n");
    assert_eq!(cheap.settings.preferences.maximise, Maximise::Cost);
    assert_eq!(cheap.warnings, Vec::<String>::new());
    let unused = good("[scheduler]\nselection_algorithm = 'fifo'\nmaximise = 'cost'\n");
    assert!(unused.warnings[0].contains("only `predictive`"), "{:?}", unused.warnings);
    let unused = good("[scheduler.load_balancing]\nmax_local_wait = 2\n");
    assert!(unused.warnings[0].contains("max_local_wait"), "{:?}", unused.warnings);
    let usual = good("region = 'lab'\n");
    assert_eq!(usual.settings.preferences.prefer_region, usual.region);
}

#[test]
fn strategies_accept_both_spellings_and_their_own_parameters() {
    let chosen = |name: &str, below: &str| {
        good(&format!("[scheduler]\nselection_algorithm = '{name}'\n{below}"))
    };
    for strategy in Strategy::all() {
        for name in [strategy.name().to_owned(), strategy.name().replace('_', "-")] {
            let config = chosen(&name, "");
            assert_eq!((config.settings.strategy, config.warnings.len()), (strategy, 0), "{name}");
        }
    }
    for (name, parameters, expected) in [
        ("weighted", "weight = 7", Strategy::Weighted { weight: 7.0 }),
        ("adaptive", "learning_rate = 0.7", Strategy::Adaptive { learning_rate: 0.7 }),
        ("work-stealing", "steal_threshold = 7", Strategy::WorkStealing { steal_threshold: 7 }),
        (
            "load_balancing",
            "penalty_half_life_s = 7.5",
            Strategy::LoadBalancing { penalty_half_life_s: 7.5 },
        ),
        (
            "predictive",
            "ageing = 7\nwait_surcharge = 8\nlookahead = 9\nexploration = 0.1",
            Strategy::Predictive(Predictive {
                ageing: 7.0,
                wait_surcharge: 8.0,
                lookahead: 9,
                exploration: 0.1,
            }),
        ),
    ] {
        let config = chosen(name, &format!("[scheduler.parameters]\n{parameters}\n"));
        assert_eq!((config.settings.strategy, config.warnings.len()), (expected, 0), "{name}");
    }
}

#[test]
fn capability_based_follows_load_balancing() {
    let chosen = |below: &str| {
        let balancing = format!("[scheduler.load_balancing]\n{below}\n");
        good(&format!("scheduler.selection_algorithm = 'capability-based'\n{balancing}"))
    };
    for (below, pick, load_metric) in [
        ("", Pick::LeastLoaded, LoadMetric::TaskCount),
        ("strategy = 'least-loaded'", Pick::LeastLoaded, LoadMetric::TaskCount),
        ("strategy = 'random'", Pick::Random, LoadMetric::TaskCount),
        ("strategy = 'performance'", Pick::Performance, LoadMetric::TaskCount),
        ("load_metric = 'task-count'", Pick::LeastLoaded, LoadMetric::TaskCount),
        ("load_metric = 'cpu-usage'", Pick::LeastLoaded, LoadMetric::CpuUsage),
        ("load_metric = 'memory-usage'", Pick::LeastLoaded, LoadMetric::MemoryUsage),
    ] {
        let config = chosen(below);
        let expected = Strategy::CapabilityBased { load_metric, pick };
        assert_eq!((config.settings.strategy, config.warnings.len()), (expected, 0), "{below}");
    }
    let unused = chosen("strategy = 'random'\nload_metric = 'cpu-usage'").warnings;
    assert_eq!(unused.len(), 1);
    assert!(unused[0].ends_with(
        "node.toml:7: `load_metric` has no effect unless `strategy` is \"least-loaded\""
    ));
}

#[test]
fn keys_that_the_strategy_ignores_cause_warnings() {
    let home = home();
    let config: SchedulerConfig = home.good(
        "[scheduler.load_balancing]\nstrategy = 'random'\nload_metric = 'cpu-usage'\n\
         [scheduler.parameters]\nweight = 7\nlookahead = 9\nlearning_rate = 0.1\n",
    );
    let warnings: Vec<_> = config.warnings.iter().map(|line| home.shortened(line)).collect();
    assert_eq!(
        warnings,
        [
            "node.toml:5: `strategy` has no effect with `predictive`: only `capability-based` uses it",
            "node.toml:6: `load_metric` has no effect with `predictive`: only `capability-based` uses it",
            "node.toml:8: `weight` has no effect with `predictive`: it is a parameter of `weighted`",
        ]
    );
}

#[test]
fn check_returns_warnings() {
    let home = home();
    let text = format!("{CERTIFICATES}[scheduler.load_balancing]\nprefer_local_workers = true\n");
    let config: SchedulerConfig = home.load(&text, &[], &Flags::default()).unwrap();
    let file = home.path("node.toml");
    let told = hypha_config::check(NodeRole::Scheduler, &file, &[], &Flags::default()).unwrap();
    assert_eq!((told.len(), told), (1, config.warnings));
}

#[test]
fn any_web_page_needs_tokens() {
    let any = "[scheduler.api]\nallowed_origins = ['https://a.example', '*']\n";
    fault(
        any,
        "node.toml:5:19: `allowed_origins`: any web page could use the scheduler, because no token is required: \
         list origins, or give `tokens_file`",
    );
    good(&format!("{any}tokens_file = 'tokens'\n"));
    good("[scheduler.api]\nallowed_origins = ['https://a.example']\nallowed_hosts = ['*']\n");
}

#[test]
fn listening_beyond_loopback_needs_tokens() {
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(
            good(&format!("[scheduler.api]\nbind_address = '{address}'\n")).warnings.is_empty()
        );
    }
    for address in ["0.0.0.0:1", "[::]:1", "192.168.1.1:1", "[::ffff:10.0.0.1]:1"] {
        let bind = format!("[scheduler.api]\nbind_address = '{address}'\n");
        fault(
            &bind,
            "node.toml:5:16: `bind_address`: anyone who can reach this address could use the scheduler: \
             give `tokens_file`, or `allow_unauthenticated = true` if that is meant",
        );
        good(&format!("{bind}tokens_file = 'tokens'\n"));
        good(&format!("{bind}allow_unauthenticated = true\n"));
    }
    fault(
        "[scheduler.api]\ntls_cert_pem = 'cert.pem'\n",
        "node.toml:5:16: `tls_cert_pem`: give `tls_key_pem` too",
    );
    fault(
        "[scheduler.api]\ntls_key_pem = 'key.pem'\n",
        "node.toml:5:15: `tls_key_pem`: give `tls_cert_pem` too",
    );
}

#[test]
fn invalid_values_are_reported_with_their_line() {
    fault(
        "status_bridge = 'http://aim:61000'\n",
        "node.toml:4:17: `status_bridge`: expected a host and a port such as \
         \"aim-bridge.internal:61000\"",
    );
    fault(
        "[scheduler]\nselection_algorithm = 'best'\n",
        "node.toml:5:23: `scheduler.selection_algorithm`: expected one of \"fifo\", \"priority\", \
         \"round_robin\", \"capability_based\", \"performance_aware\", \"load_balancing\", \
         \"work_stealing\", \"adaptive\", \"shortest_queue\", \"weighted\", \"probabilistic\", \
         \"first_fit\", \"best_fit\", \"worst_fit\", \"random\", \"power_of_two\", \"predictive\"",
    );
    for (line, problem) in [
        (
            "max_concurrent_tasks = 0",
            "24: `scheduler.max_concurrent_tasks`: the value is too small: the least is 1",
        ),
        ("max_queue = 0", "13: `scheduler.max_queue`: the value is too small: the least is 1"),
        (
            "task_timeout = 0",
            "16: `scheduler.task_timeout`: the value is too small: the least is 10 milliseconds",
        ),
        (
            "task_timeout = '31d'",
            "16: `scheduler.task_timeout`: the value is too large: the most is 2592000 seconds",
        ),
        (
            "max_result_size = '9MiB'",
            "19: `scheduler.max_result_size`: the value is too large: the most is 8MiB",
        ),
        (
            "max_result_size = 1",
            "19: `scheduler.max_result_size`: 1 bytes are too few: the least is 1KiB; write a unit, such as \"1MiB\"",
        ),
        (
            "object_store = 'tokens'",
            "16: `scheduler.object_store`: expected a directory, found the file tokens",
        ),
        (
            "lookup_table = 'none.csv'",
            "16: `scheduler.lookup_table`: there is no file none.csv: put it there or change the path",
        ),
        (
            "load_balancing.strategy = 'least_loaded'",
            "27: `scheduler.load_balancing.strategy`: expected one of \"least-loaded\", \"random\", \"performance\"",
        ),
        (
            "load_balancing.max_network_latency = '2m'",
            "38: `scheduler.load_balancing.max_network_latency`: the value is too large: the most is 60 seconds",
        ),
        (
            "load_balancing.max_network_latency = true",
            "38: `scheduler.load_balancing.max_network_latency`: expected a number of milliseconds such as 100, or \"100ms\", found a boolean",
        ),
        (
            "api.max_request_size = '2GiB'",
            "24: `scheduler.api.max_request_size`: the value is too large: the most is 1GiB",
        ),
        (
            "api.public_url = 'scheduler'",
            "18: `scheduler.api.public_url`: expected an address such as \"https://scheduler.example.org\"",
        ),
        (
            "backends = [{ url = 'http://a' }, { url = 'http://a/' }]",
            "43: `url`: another back end has this address",
        ),
        (
            "backends = [{ url = 'http://u:p@a' }]",
            "21: `scheduler.backends.url`: credentials do not belong in the address: put the key into a file and give `api_key_file`",
        ),
        (
            "backends = [{ url = 'http://a', health_path = 'x' }]",
            "47: `scheduler.backends.health_path`: expected a path such as \"/health\"",
        ),
        ("parameters.lookahead = 7", "24: `lookahead`: expected a number from 8 to 1024"),
        (
            "parameters.ageing = inf",
            "21: `scheduler.parameters.ageing`: expected a number such as 0.5",
        ),
        ("parameters.exploration = 1.5", "26: `exploration`: expected a number from 0 to 1"),
    ] {
        fault(&format!("[scheduler]\n{line}\n"), &format!("node.toml:5:{problem}"));
    }
    fault(
        "[[scheduler.backends]]\nmodels = []\n",
        "node.toml:4:1: `scheduler.backends.url` is missing: the server's base address",
    );
}

#[test]
fn variables_set_keys_in_every_section() {
    let home = home();
    let environment = [
        ("HYPHA_SCHEDULER__TASK_TIMEOUT", "7"),
        ("HYPHA_SCHEDULER__API__BIND_ADDRESS", "127.0.0.1:7"),
        ("HYPHA_SCHEDULER__API__ALLOWED_NETWORKS", "192.0.2.0/24, 198.51.100.0/24"),
        ("HYPHA_SCHEDULER__LOAD_BALANCING__MAX_NETWORK_LATENCY", "7"),
        ("HYPHA_SCHEDULER__PARAMETERS__AGEING", "7"),
        ("HYPHA_SCHEDULER__BACKENDS", "[{ url = 'http://a' }]"),
        ("HYPHA_REGION", "lab"),
    ];
    let config: SchedulerConfig = home.load(CERTIFICATES, &environment, &Flags::default()).unwrap();
    let Strategy::Predictive(predictive) = config.settings.strategy else { panic!() };
    assert_eq!(config.settings.task_timeout, Span::from_secs(7));
    assert_eq!(config.api.bind_address, "127.0.0.1:7".parse().unwrap());
    assert_eq!(config.api.allowed_networks.len(), 2);
    assert_eq!(config.settings.preferences.max_rtt, Some(Span::from_millis(7)));
    assert_eq!((predictive.ageing, config.backends.len()), (7.0, 1));
    assert_eq!(config.settings.preferences.prefer_region, config.region);
    let slip = [("HYPHA_SCHEDULER__API_BIND_ADDRESS", "127.0.0.1:7")];
    let fault = home.load::<SchedulerConfig>(CERTIFICATES, &slip, &Flags::default()).unwrap_err();
    assert_eq!(
        fault,
        "HYPHA_SCHEDULER__API_BIND_ADDRESS: matches no key; did you mean \
         HYPHA_SCHEDULER__API__BIND_ADDRESS?"
    );
}

#[test]
fn a_pool_is_read_and_needs_a_bid() {
    let config =
        good("[scheduler.pool]\nbid = 110.0\nmax = 160\nbudget_per_hour = 1000\nmin_workers = 2");
    let pool = config.settings.pool.unwrap();
    let prices = (pool.bid.to_string(), pool.max.to_string(), pool.budget.unwrap().to_string());
    assert_eq!(prices, ("110".into(), "160".into(), "1000".into()));
    assert_eq!((pool.min_workers, pool.max_workers), (2, 1_000));
    assert_eq!((pool.target_wait, pool.idle_after), (Span::from_secs(5), Span::from_secs(300)));
    assert_eq!(good("").settings.pool, None);
    let cheap = good("[scheduler.pool]\nbid = 0").settings.pool.unwrap();
    assert_eq!(cheap.max, cheap.bid, "the bid is also the most");
    for (keys, expected) in [
        ("max = 5", "max: there is no pool without `bid`: give it too"),
        ("bid = 6\nmax = 5", "bid: is above `max`: lower it, or raise `max`"),
        (
            "bid = 6\nbudget_per_hour = 5",
            "budget_per_hour: is below `bid`, so no worker could be leased: raise it, or lower `bid`",
        ),
        ("bid = -1", "negative"),
        ("bid = nan", "finite"),
        (
            "bid = 1\nmin_workers = 3\nmax_workers = 2",
            "min_workers: is above `max_workers`: lower it, or raise `max_workers`",
        ),
    ] {
        let text = format!("{CERTIFICATES}[scheduler.pool]\n{keys}");
        let fault = home().load::<SchedulerConfig>(&text, &[], &Flags::default()).unwrap_err();
        let (_, last) = expected.split_once(": ").unwrap_or(("", expected));
        assert!(fault.contains(last), "{keys}: {fault}");
    }
}

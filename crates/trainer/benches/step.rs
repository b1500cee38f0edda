//! Milliseconds a training step and tokens a second, for a small and a larger model. `-- THREADS` sets the threads.

use std::time::Instant;

use hypha_trainer::{Config, Trainer};

const MODELS: [(&str, Config, usize); 2] = [
    ("small", Config { layers: 4, width: 96, heads: 4, context: 64, vocabulary: 256 }, 4),
    ("larger", Config { layers: 6, width: 384, heads: 6, context: 256, vocabulary: 256 }, 4),
];

fn main() {
    let threads = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    let threads =
        threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    for (name, config, batch_size) in MODELS {
        let Ok(mut trainer) = Trainer::new(config, 1, threads) else { continue };
        let parameters = trainer.parameters().len();
        let count = batch_size * (config.context + 1);
        let tokens: Vec<u32> =
            (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 24).collect();
        let mut times: Vec<f64> = Vec::new();
        let begin = Instant::now();
        while times.len() < 10 || begin.elapsed().as_secs() < 5 {
            let start = Instant::now();
            if let Err(error) = trainer.step(&tokens, batch_size, 1e-4) {
                println!("{name}: {error}");
                return;
            }
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let rate = (batch_size * config.context) as f64 / median;
        let (ms, fastest) = (1e3 * median, 1e3 * times[0]);
        println!(
            "{name}: {parameters} parameters, {threads} threads: {ms:.2} ms a step (fastest {fastest:.2}), {rate:.0} tokens/s"
        );
    }
}

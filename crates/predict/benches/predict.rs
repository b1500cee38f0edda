//! The cost of one prediction and of one observation. Both are in the scheduler's hot path: under 2 µs.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use hypha_model::{Metadata, Requirement, Rng, Span, TaskSpec, Time, WorkerId};
use hypha_predict::{LookupTable, Mode, Predictor, Settings, WorkerKey};

fn spec(rng: &mut Rng) -> TaskSpec {
    let numbers = [
        ("input_tokens", 1.0 + rng.below(8_000) as f64),
        ("output_tokens", 1.0 + rng.below(800) as f64),
        ("temperature", 0.7),
    ];
    TaskSpec {
        requirement: Requirement { model: "llama".parse().ok(), ..Requirement::default() },
        metadata: Metadata::of_numbers(&numbers),
        ..TaskSpec::default()
    }
}

/// A predictor that has learned 64 workers and 2,000 run times.
fn trained(rng: &mut Rng) -> (Predictor, Vec<WorkerKey>, Vec<TaskSpec>) {
    let mut predictor = Predictor::new(Settings::default());
    let workers: Vec<WorkerKey> =
        (0..64).map(|_| predictor.add_worker(WorkerId::new(Time::ZERO, rng), None)).collect();
    let tasks: Vec<TaskSpec> = (0..256).map(|_| spec(rng)).collect();
    for i in 0..2_000 {
        let query = predictor.query(&tasks[i % 256]);
        let run = Span::from_secs_f64(2.0 * (0.2 * rng.normal()).exp());
        predictor.observe(&query, workers[i % 64], run);
    }
    (predictor, workers, tasks)
}

fn learned(c: &mut Criterion) {
    let (mut predictor, workers, tasks) = trained(&mut Rng::new(1));
    let queries: Vec<_> = tasks.iter().map(|task| predictor.query(task)).collect();
    let mut i = 0usize;
    let mut next = move || {
        i = i.wrapping_add(1);
        i
    };
    c.bench_function("query", |b| b.iter(|| black_box(predictor.query(&tasks[next() % 256]))));
    c.bench_function("predict", |b| {
        b.iter(|| {
            let i = next();
            black_box(predictor.estimate(&queries[i % 256], workers[i % 64]))
        });
    });
    c.bench_function("quantile", |b| {
        let estimate = predictor.estimate(&queries[0], workers[0]);
        b.iter(|| black_box(black_box(estimate).quantile(0.9)));
    });
    c.bench_function("remaining", |b| {
        let estimate = predictor.estimate(&queries[0], workers[0]);
        b.iter(|| black_box(black_box(estimate).remaining(black_box(1.0))));
    });
    c.bench_function("observe", |b| {
        b.iter(|| {
            let i = next();
            let run = Span::from_micros(1_500_000 + (i as u64 * 7_919) % 1_000_000);
            predictor.observe(&queries[i % 256], workers[i % 64], run);
        });
    });
}

fn tabled(c: &mut Criterion) {
    let mut rng = Rng::new(2);
    let (mut predictor, workers, tasks) = trained(&mut rng);
    let mut text = "model,input_tokens,output_tokens,mean_ms,error_ms\n".to_owned();
    for _ in 0..10_000 {
        let (input, output) = (rng.below(8_000), rng.below(800));
        text.push_str(&format!("llama,{input},{output},{},5\n", 20 + input / 4 + output * 25));
    }
    let table = LookupTable::from_csv(&text);
    if let Ok(table) = table {
        predictor.set_table(table);
    }
    assert_eq!(predictor.set_mode(Mode::LookupTable), Ok(()));
    let queries: Vec<_> = tasks.iter().map(|task| predictor.query(task)).collect();
    let mut i = 0usize;
    c.bench_function("look up among 10,000 rows", |b| {
        b.iter(|| {
            i = i.wrapping_add(1);
            black_box(predictor.estimate(&queries[i % 256], workers[i % 64]))
        });
    });
}

criterion_group!(benches, learned, tabled);
criterion_main!(benches);

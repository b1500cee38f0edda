//! Whatever clients state and clocks measure, predictions stay finite, positive and ordered.

use std::sync::Arc;

use hypha_model::{Metadata, MetadataValue, Span, TaskSpec};
use hypha_predict::{Predictor, Settings, WorkerKey};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, proptest};

use crate::world::{name, spec, worker_id};

#[derive(Clone, Debug)]
struct Event {
    model: u8,
    worker: u8,
    numbers: Vec<(u8, f64)>,
    text: Option<u8>,
    estimated_us: Option<u64>,
    run_us: u64,
    forget: bool,
}

fn event() -> impl Strategy<Value = Event> {
    let number = prop_oneof![
        any::<f64>(),
        -10.0..10.0f64,
        Just(0.0),
        Just(f64::MAX),
        Just(-f64::MAX),
        Just(f64::MIN_POSITIVE),
    ];
    let run = prop_oneof![any::<u64>(), 0u64..10_000_000, Just(0), Just(u64::MAX)];
    let numbers = proptest::collection::vec((0u8..10, number), 0..4);
    let estimated = proptest::option::weighted(0.2, any::<u64>());
    let forget = proptest::bool::weighted(0.05);
    (0u8..3, 0u8..4, numbers, proptest::option::of(0u8..3), estimated, run, forget).prop_map(
        |(model, worker, numbers, text, estimated_us, run_us, forget)| Event {
            model,
            worker,
            numbers,
            text,
            estimated_us,
            run_us,
            forget,
        },
    )
}

fn task(event: &Event) -> TaskSpec {
    let numbers = event.numbers.iter().filter(|(_, number)| number.is_finite());
    let numbers = numbers.map(|(at, number)| (format!("n{at}"), MetadataValue::Number(*number)));
    let text =
        event.text.map(|text| ("t".to_owned(), MetadataValue::Text(format!("v{text}").into())));
    let entries = numbers.chain(text).map(|(key, value)| (Arc::from(key.as_str()), value));
    let mut task = spec(&format!("m{}", event.model), &[]);
    task.metadata = Metadata::new(entries).unwrap();
    task.requirement.estimated_time = event.estimated_us.map(Span::from_micros);
    task
}

proptest! {
    #[test]
    fn predictions_are_sane_for_any_input(
        events in proptest::collection::vec(event(), 1..120),
    ) {
        let mut predictor = Predictor::new(Settings::default());
        let label = name("A100");
        let add = |predictor: &mut Predictor, i: u8| {
            predictor.add_worker(worker_id(i.into()), i.is_multiple_of(2).then_some(&label))
        };
        let mut workers: Vec<WorkerKey> = (0..4).map(|i| add(&mut predictor, i)).collect();
        for event in &events {
            let at = usize::from(event.worker);
            if event.forget {
                predictor.forget_worker(workers[at]);
                workers[at] = add(&mut predictor, event.worker);
            }
            let query = predictor.query(&task(event));
            for worker in &workers {
                let estimate = predictor.estimate(&query, *worker);
                prop_assert!(estimate.mean_s.is_finite() && estimate.mean_s > 0.0, "{estimate:?}");
                prop_assert!(estimate.error_s.is_finite() && estimate.error_s > 0.0, "{estimate:?}");
                let quantiles: Vec<f64> =
                    (0..=20).map(|i| estimate.quantile(f64::from(i) / 20.0)).collect();
                prop_assert!(quantiles.is_sorted(), "{quantiles:?}");
                prop_assert!(quantiles[0] >= 0.0 && quantiles[20].is_finite(), "{quantiles:?}");
                let factor = predictor.factor(*worker);
                prop_assert!(factor.is_finite() && factor > 0.0);
            }
            predictor.observe(&query, workers[at], Span::from_micros(event.run_us));
            prop_assert!(predictor.typical_s().is_finite());
        }
    }
}

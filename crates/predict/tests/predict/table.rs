//! Run times from a table: what is read, what is refused, and which row is taken.

use hypha_model::{Rng, Span};
use hypha_predict::{LookupTable, Mode, NoLookupTable, Predictor, Settings};

use crate::world::{name, spec, worker_id};

const TABLE: &str = "\
# measured on a quiet machine
model,hardware,input_tokens,output_tokens,mean_ms,error_ms
llama,A100,100,10,100,5
llama,A100,1000,10,200,5
llama,A100,1000,100,900,50
llama,,1000,100,1500,500
llama,T4,1000,100,4000,500
\"odd, name\",T4,1,1,70,7
*,,,,33,3
";

fn with_table(text: &str) -> Predictor {
    let mut predictor = Predictor::new(Settings::default());
    predictor.set_table(LookupTable::from_csv(text).unwrap());
    predictor.set_mode(Mode::LookupTable).unwrap();
    predictor
}

fn check(table: &str, model: &str, hardware: Option<&str>, numbers: &[(&str, f64)], mean_ms: f64) {
    let mut predictor = with_table(table);
    let hardware = predictor.hardware(hardware.map(name).as_ref());
    let query = predictor.query(&spec(model, numbers));
    let found = predictor.hardware_estimate(&query, hardware).mean_s * 1e3;
    assert!(
        (found - mean_ms).abs() < 1e-6,
        "{model} {hardware:?} {numbers:?}: {found} not {mean_ms}"
    );
}

#[test]
fn nearest_row_of_the_best_hardware_is_used() {
    let tokens = |input, output| [("input_tokens", input), ("output_tokens", output)];
    check(TABLE, "llama", Some("A100"), &tokens(120.0, 12.0), 100.0);
    check(TABLE, "llama", Some("A100"), &tokens(5_000.0, 11.0), 200.0);
    check(TABLE, "llama", Some("A100"), &tokens(900.0, 300.0), 900.0);
    // Logarithmic: 320 is nearer to 1000 than to 100.
    check(TABLE, "llama", Some("A100"), &tokens(320.0, 10.0), 200.0);
    // Numbers that the task does not have are ignored, and the earlier row wins a tie.
    check(TABLE, "llama", Some("A100"), &[("input_tokens", 1_000.0)], 200.0);
    check(TABLE, "llama", Some("A100"), &[], 100.0);
    // Numbers that the table does not have are ignored.
    check(TABLE, "llama", Some("A100"), &[("temperature", 0.7)], 100.0);
    // Unknown hardware: rows without hardware.
    check(TABLE, "llama", Some("H100"), &tokens(100.0, 10.0), 1_500.0);
    check(TABLE, "llama", None, &tokens(100.0, 10.0), 1_500.0);
    // No rows without hardware: rows of any.
    check(TABLE, "odd, name", None, &[], 70.0);
    // Another model: the rows for all.
    check(TABLE, "mistral", Some("A100"), &tokens(1.0, 1.0), 33.0);
}

#[test]
fn missing_feature_counts_as_off_by_a_factor_of_e() {
    let table = "model,n,mean_ms,error_ms\nm,,1,1\nm,1000,2,1\n";
    check(table, "m", None, &[("n", 2_500.0)], 2.0);
    check(table, "m", None, &[("n", 3_000.0)], 1.0);
}

#[test]
fn json_and_csv_give_the_same_table() {
    let json = r#"[
        {"model": "llama", "hardware": "A100", "input_tokens": 100, "mean_ms": 100, "error_ms": 5},
        {"model": "llama", "hardware": null, "mean_ms": 250.5, "error_ms": 0}
    ]"#;
    let table = LookupTable::from_json(json).unwrap();
    assert_eq!(table.rows(), 2);
    let mut predictor = Predictor::new(Settings::default());
    predictor.set_table(table);
    predictor.set_mode(Mode::LookupTable).unwrap();
    let query = predictor.query(&spec("llama", &[("input_tokens", 7.0)]));
    let (a100, none) = (predictor.hardware(Some(&name("A100"))), predictor.hardware(None));
    let a100 = predictor.hardware_estimate(&query, a100);
    assert!((a100.mean_s - 0.1).abs() < 1e-12 && (a100.error_s - 0.005).abs() < 1e-12);
    assert!((predictor.hardware_estimate(&query, none).mean_s - 0.2505).abs() < 1e-12);
}

#[test]
fn bad_csv_is_refused_with_its_line() {
    let csv = |rows: &str| {
        LookupTable::from_csv(&format!("model,hardware,n,mean_ms,error_ms\n{rows}")).unwrap_err()
    };
    let line = |what: &str| format!("line 3 of the lookup table: {what}");
    for (rows, what) in [
        ("m,,1,1,1\nm,,1,-5,1", "`mean_ms` is negative: -5"),
        ("m,,1,1,1\nm,,1,0,1", "`mean_ms` must be more than zero"),
        ("m,,1,1,1\nm,,1,5,-1", "`error_ms` is negative: -1"),
        ("m,,1,1,1\nm,,1,NaN,1", "`mean_ms` is not a finite number"),
        ("m,,1,1,1\nm,,inf,1,1", "`n` is not a finite number"),
        ("m,,1,1,1\nm,,ten,1,1", "`n` is not a number: `ten`"),
        ("m,,1,1,1\nm,,1,1", "4 values under 5 columns"),
        ("m,,1,1,1\n,,1,1,1", "`model` is missing"),
        ("m,,1,1,1\nm,,1,,1", "`mean_ms` is missing"),
        ("m,,1,1,1\n\"m,,1,1,1", "a quote is not closed"),
        ("m,,1,1,1\n\"m\"x,,1,1,1", "there is text after a closing quote"),
    ] {
        assert_eq!(csv(rows).to_string(), line(what));
    }
    let header = |text: &str| LookupTable::from_csv(text).unwrap_err().to_string();
    let first = |what: &str| format!("line 1 of the lookup table: {what}");
    assert_eq!(header("model,mean_ms\n"), first("the column `error_ms` is missing"));
    assert_eq!(header("model,n,n,mean_ms,error_ms\n"), first("the column `n` occurs twice"));
    assert_eq!(header("model,,mean_ms,error_ms\n"), first("column 2 has no name"));
    let many = "model,a,b,c,d,e,f,g,h,mean_ms,error_ms\n";
    assert_eq!(header(many), first("`h` is one feature too many, at most 7 are used"));
    let none = "the lookup table has no rows: add at least one, or use the mode `default`";
    assert_eq!(header(""), none);
    assert_eq!(header("model,mean_ms,error_ms\n"), none);
}

#[test]
fn bad_json_is_refused_with_its_line() {
    let json = |text: &str| LookupTable::from_json(text).unwrap_err().to_string();
    let second = |row: &str| {
        json(&format!("[\n{{\"model\": \"m\", \"mean_ms\": 1, \"error_ms\": 1}},\n{row}\n]"))
    };
    for (row, what) in [
        (r#"{"model": "m", "mean_ms": -1, "error_ms": 1}"#, "`mean_ms` is negative: -1"),
        (r#"{"model": "m", "mean_ms": 1}"#, "`error_ms` is missing"),
        (r#"{"mean_ms": 1, "error_ms": 1}"#, "`model` is missing"),
        (r#"{"model": "m", "model": "m"}"#, "`model` occurs twice"),
        (r#"{"model": "m", "n": "ten"}"#, "invalid type: string \"ten\", expected f64"),
        (r#"{"model": "m", "mean_ms": NaN}"#, "expected value"),
        ("7", "invalid type: integer `7`, expected a row as an object"),
    ] {
        assert_eq!(second(row), format!("line 3 of the lookup table: {what}"));
    }
    assert!(json("[]").contains("no rows"));
    assert!(json("{}").contains("expected a list of rows"));
    assert!(json("[] x").starts_with("line 1 of the lookup table: "));
}

#[test]
fn nearest_of_ten_thousand_rows_agrees_with_a_scan() {
    let mut rng = Rng::new(11);
    // Few values, so that there are ties; some cells are empty.
    let mut cell = |values: u64| match rng.below(10) {
        0 => None,
        _ => Some(rng.below(values) as f64 * 3.0),
    };
    let rows: Vec<[Option<f64>; 3]> = (0..10_000).map(|_| [cell(40), cell(9), cell(400)]).collect();
    let shown = |cell: &Option<f64>| cell.map_or(String::new(), |value| value.to_string());
    let mut text = "model,a,b,c,mean_ms,error_ms\n".to_owned();
    for (at, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(shown).collect();
        text.push_str(&format!("m,{},{},1\n", cells.join(","), at + 1));
    }
    let mut predictor = with_table(&text);
    let hardware = predictor.hardware(None);
    for _ in 0..300 {
        let task: [Option<f64>; 3] = [cell(40), cell(9), cell(400)];
        let distance = |row: &[Option<f64>; 3]| -> f64 {
            let far = row.iter().zip(&task).map(|(row, task)| match (row, task) {
                (_, None) => 0.0,
                (None, Some(_)) => 1.0,
                (Some(row), Some(task)) => (row.ln_1p() - task.ln_1p()).powi(2),
            });
            far.sum()
        };
        let near = |a: &usize, b: &usize| distance(&rows[*a]).total_cmp(&distance(&rows[*b]));
        let best = (0..rows.len()).min_by(near).unwrap();
        let known: Vec<(&str, f64)> =
            ["a", "b", "c"].into_iter().zip(task).filter_map(|(n, v)| Some((n, v?))).collect();
        let query = predictor.query(&spec("m", &known));
        let found =
            (predictor.hardware_estimate(&query, hardware).mean_s * 1e3).round() as usize - 1;
        let (found_at, best_at) = (distance(&rows[found]), distance(&rows[best]));
        assert!((found_at - best_at).abs() < 1e-9, "{task:?}: {found} instead of {best}");
        assert!(found == best || found_at != best_at, "{task:?}: {found} instead of {best}");
    }
}

#[test]
fn table_set_later_finds_room_for_its_features() {
    let mut predictor = Predictor::new(Settings::default());
    predictor.query(&spec("m", &[("a", 1.0)]));
    let table = "model,z,mean_ms,error_ms\nm,10,1,1\nm,1000,2,1\n";
    predictor.set_table(LookupTable::from_csv(table).unwrap());
    predictor.set_mode(Mode::LookupTable).unwrap();
    let many = ["b", "c", "d", "e", "f", "g", "h"].map(|name| (name, 1.0));
    predictor.query(&spec("m", &many));
    let query = predictor.query(&spec("m", &[("z", 900.0)]));
    let hardware = predictor.hardware(None);
    assert_eq!(predictor.hardware_estimate(&query, hardware).mean_s, 0.002);
}

#[test]
fn without_a_table_there_is_no_table_mode() {
    let mut predictor = Predictor::new(Settings::default());
    assert_eq!(predictor.set_mode(Mode::LookupTable), Err(NoLookupTable));
    assert_eq!((predictor.mode(), predictor.set_mode(Mode::Default)), (Mode::Default, Ok(())));
}

#[test]
fn learning_continues_and_covers_what_the_table_lacks() {
    let mut predictor = with_table("model,mean_ms,error_ms\nm,100,10\n");
    let worker = predictor.add_worker(worker_id(1), None);
    let (tabled, other) = (predictor.query(&spec("m", &[])), predictor.query(&spec("x", &[])));
    for _ in 0..20 {
        predictor.observe(&tabled, worker, Span::from_secs(4));
        predictor.observe(&other, worker, Span::from_secs(4));
    }
    let estimate = |predictor: &Predictor, query| predictor.estimate(query, worker).mean_s;
    assert!((estimate(&predictor, &tabled) - 0.1).abs() < 1e-9);
    assert!((estimate(&predictor, &other) / 4.0 - 1.0).abs() < 0.1);
    predictor.set_mode(Mode::Default).unwrap();
    assert!((estimate(&predictor, &tabled) / 4.0 - 1.0).abs() < 0.1);
}

#[test]
fn a_row_is_used_unchanged_on_a_worker_without_a_label() {
    let mut predictor = with_table("model,mean_ms,error_ms\nm,100,10\n");
    let (tabled, other) = (predictor.query(&spec("m", &[])), predictor.query(&spec("x", &[])));
    for hardware in [None, Some(name("A100"))] {
        let worker = predictor.add_worker(worker_id(7), hardware.as_ref());
        let row = predictor.estimate(&tabled, worker);
        assert!((row.mean_s - 0.1).abs() < 1e-9 && (row.error_s - 0.01).abs() < 1e-9, "{row:?}");
        // Without a row, what is not known about the worker counts.
        let guess = predictor.estimate(&other, worker);
        assert!(guess.error_s > guess.mean_s, "{guess:?}");
    }
}

#[test]
fn slow_worker_is_slower_than_the_table() {
    let mut predictor = with_table("model,mean_ms,error_ms\nm,100,10\n");
    let workers = [1, 2].map(|id| predictor.add_worker(worker_id(id), None));
    let query = predictor.query(&spec("m", &[]));
    for _ in 0..50 {
        predictor.observe(&query, workers[0], Span::from_secs(1));
        predictor.observe(&query, workers[1], Span::from_secs(4));
    }
    let [fast, slow] = workers.map(|worker| predictor.estimate(&query, worker).mean_s);
    assert!((fast - 0.05).abs() < 0.005 && (slow - 0.2).abs() < 0.02, "{fast} {slow}");
}

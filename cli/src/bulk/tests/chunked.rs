//! `--chunk`: the output has a row for each window of a text.

use super::*;

/// Characters of a window: texts have two or three of them.
const WINDOW: usize = 4;

fn model() -> Lengths {
    Lengths { windows: Some(WINDOW), ..Lengths::new() }
}

/// The fields of a row of the output: the row of the input, the number of the window, its first character, the one after the last, and the vector.
type Told = [Value; 5];

/// The rows of all texts. The text with the number `without` has one row without a window.
fn expected(without: Option<usize>) -> Vec<Told> {
    let windows = |row: usize| {
        let text = format!("text {row}");
        let starts = (0..text.len()).step_by(WINDOW).enumerate().filter(|_| Some(row) != without);
        let told = starts.map(|(number, start)| {
            let end = text.len().min(start + WINDOW);
            let length = (1 + end - start) as f64;
            [json!(row + 1), json!(number), json!(start), json!(end), json!([length, 2.0 * length])]
        });
        let none = [json!(row + 1), Value::Null, Value::Null, Value::Null, Value::Null];
        told.chain((Some(row) == without).then_some(none)).collect::<Vec<_>>()
    };
    (0..ROWS).flat_map(windows).collect()
}

fn told(path: &Path) -> Vec<Told> {
    const COLUMNS: [&str; 5] = ["row", "window", "start", "end", "embedding"];
    let Some(format) = Format::of_name(&path.display().to_string()) else {
        let text = fs::read_to_string(path).unwrap();
        let line = |line: &str| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            COLUMNS.map(|name| line[name].take())
        };
        return text.lines().map(line).collect();
    };
    let bytes: bytes::Bytes = fs::read(path).unwrap().into();
    let table = Table::open(Arc::new(bytes), format).unwrap();
    assert_eq!(table.columns(), "'id', 'row', 'window', 'start', 'end', 'embedding', 'error'");
    let mut rows = Vec::new();
    for batch in table.batches(0, 1000).unwrap() {
        let mut columns = COLUMNS.map(|name| batch.as_ref().unwrap().json(name).unwrap().into_iter());
        while let Some(row) = columns[0].next() {
            let [_, window, start, end, embedding] = &mut columns;
            let [window, start, end, embedding] = [window, start, end, embedding].map(|column| column.next().unwrap());
            rows.push([row, window, start, end, embedding]);
        }
    }
    rows
}

#[test]
fn each_window_has_a_row_after_a_cut_and_a_second_try_too() {
    for format in FORMATS {
        let folder = Folder::new();
        let output = format!("out.{format}");
        let bulk = |model: &Lengths| folder.bulk("in.jsonl", &output, model, &["--chunk", "--chunk-overlap", "0"]);
        bulk(&Lengths { left: AtomicUsize::new(3000), ..model() }).err().unwrap();
        assert!(!folder.path(&output).exists());
        let summary = bulk(&Lengths { bad: "text 4700", ..model() }).unwrap();
        assert_eq!(summary.totals.errors, 1);
        assert!(told(&folder.path(&output)) == expected(Some(4700)), "{format}");
        let id = if format == "jsonl" { json!(4701) } else { json!("4701") };
        let errors = fs::read_to_string(folder.path(&format!("{output}.errors.jsonl"))).unwrap();
        assert_eq!(errors, format!("{{\"row\":4701,\"id\":{id},\"error\":\"a bad text\"}}\n"));
        // The second try has a row for each window in the place of the one that had none.
        let summary = bulk(&model()).unwrap();
        assert_eq!((summary.rows, summary.totals.errors), (1, 0));
        assert!(told(&folder.path(&output)) == expected(None), "{format}");
    }
}

#[test]
fn an_output_of_windows_is_no_output_of_texts() {
    let folder = Folder::new();
    folder
        .bulk("in.jsonl", "out.jsonl", &Lengths { left: AtomicUsize::new(3000), ..model() }, &["--chunk"])
        .err()
        .unwrap();
    let refused = |model: &Lengths, flags: &[&str]| {
        let error = folder.bulk("in.jsonl", "out.jsonl", model, flags).err().unwrap();
        format!("{error:#}")
    };
    let error = refused(&Lengths::new(), &[]);
    assert!(error.contains("'chunk' is {\"overlap\":null,\"tokens\":null} in"), "{error}");
    let error = refused(&model(), &["--chunk", "--chunk-tokens", "8"]);
    assert!(error.contains("{\"overlap\":null,\"tokens\":8} for this command"), "{error}");
    folder.bulk("in.jsonl", "out.parquet", &model(), &["--chunk"]).unwrap();
    let error = {
        let error = folder.bulk("out.parquet", "twice.parquet", &model(), &["--chunk", "--text-column", "id"]);
        format!("{:#}", error.err().unwrap())
    };
    assert!(error.contains("column 'embedding' already"), "{error}");
}

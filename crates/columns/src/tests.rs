//! Files of both formats, written and read again.

mod bounds;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, Int64Array, LargeStringArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use serde_json::json;

use crate::{Batch, ColumnsError, Format, Layout, SPACE, Source, Table, WindowRow, Writer};

const FORMATS: [Format; 2] = [Format::Parquet, Format::Arrow];

/// Rows with a number, a text, and a kind that is written as a dictionary.
fn rows(from: i64, count: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + count));
    let text = |n: i64| (n % 7 != 3).then(|| format!("text {n}"));
    let texts: ArrayRef = Arc::new(LargeStringArray::from_iter((from..from + count).map(text)));
    let kinds: DictionaryArray<Int32Type> =
        (from..from + count).map(|n| if n % 2 == 0 { "even" } else { "odd" }).collect();
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::LargeUtf8, true),
        Field::new("kind", kinds.data_type().clone(), true),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![numbers, texts, Arc::new(kinds)]).unwrap()
}

/// A file of 100 rows in five record batches or row groups.
fn file(format: Format) -> Bytes {
    let layout = Layout { schema: rows(0, 1).schema(), width: 1 };
    let properties =
        parquet::file::properties::WriterProperties::builder().set_max_row_group_row_count(Some(20)).build();
    if format == Format::Parquet {
        let mut writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), layout.schema, Some(properties)).unwrap();
        (0..5).for_each(|part| writer.write(&rows(part * 20, 20)).unwrap());
        return writer.into_inner().unwrap().into();
    }
    let options = arrow_ipc::writer::IpcWriteOptions::default()
        .try_with_compression(Some(arrow_ipc::CompressionType::LZ4_FRAME))
        .unwrap();
    let mut writer = arrow_ipc::writer::FileWriter::try_new_with_options(Vec::new(), &layout.schema, options).unwrap();
    (0..5).for_each(|part| writer.write(&rows(part * 20, 20)).unwrap());
    writer.into_inner().unwrap().into()
}

fn open(bytes: Bytes, format: Format) -> Result<Table, ColumnsError> {
    Table::open(Arc::new(bytes), format)
}

#[test]
fn vectors_and_errors_are_taken_off_and_put_on_again() {
    let outcomes: Vec<_> =
        (0..20).map(|n| if n % 3 == 0 { Err(format!("why {n}")) } else { Ok(vec![n as f32; 4]) }).collect();
    for format in FORMATS {
        let input = open(file(format), format).unwrap();
        let layout = Layout::of(&input, 4).unwrap();
        let batch = input.batches(20, 20).unwrap().next().unwrap().unwrap();
        let mut writer = Writer::new(format, &layout, Vec::new()).unwrap();
        writer.write(&batch.with_vectors(&layout, &outcomes).unwrap()).unwrap();
        let table = open(writer.finish().unwrap().into(), format).unwrap();
        let found = Layout::with_vectors(&table).unwrap();
        assert_eq!((found.width(), &found.schema), (4, &layout.schema));
        let whole = table.batches(0, 20).unwrap().next().unwrap().unwrap();
        let (rest, taken) = whole.without_vectors().unwrap();
        assert_eq!((taken.as_slice(), rest.0.schema()), (outcomes.as_slice(), batch.0.schema()));
        assert_eq!(rest.with_vectors(&found, &taken).unwrap().0, whole.0);
        assert!(matches!(Layout::with_vectors(&input), Err(ColumnsError::Missing { column, .. }) if column == "error"));
    }
}

#[test]
fn a_row_may_have_several_windows_each_in_a_row_of_its_own() {
    let row = |place, row, window| WindowRow { place, row, window };
    let windows =
        [row(0, 21, Some((0, 0, 5))), row(0, 21, Some((1, 4, 9))), row(1, 22, None), row(3, 24, Some((0, 0, 6)))];
    let outcomes = [Ok(vec![1.0, 0.0]), Ok(vec![2.0, 0.0]), Err("why".to_owned()), Ok(vec![3.0, 0.0])];
    for format in FORMATS {
        let input = open(file(format), format).unwrap();
        let layout = Layout::of(&input, 2).unwrap().with_space(Some("ab.cd")).with_windows().unwrap();
        let batch = input.batches(20, 20).unwrap().next().unwrap().unwrap();
        let mut writer = Writer::new(format, &layout, Vec::new()).unwrap();
        let rows = batch.with_windows(&windows).unwrap();
        writer.write(&rows.with_vectors(&layout, &outcomes).unwrap()).unwrap();
        let table = open(writer.finish().unwrap().into(), format).unwrap();
        assert_eq!(table.columns(), "'id', 'text', 'kind', 'row', 'window', 'start', 'end', 'embedding', 'error'");
        let whole = table.batches(0, 20).unwrap().next().unwrap().unwrap();
        assert_eq!(whole.ids("id").unwrap(), [json!(20), json!(20), json!(21), json!(23)]);
        assert_eq!(whole.counts("end").unwrap(), [Some(5), Some(9), None, Some(6)]);
        let (rest, found) = whole.without_vectors().unwrap();
        assert_eq!(found, outcomes);
        let (others, found) = rest.without_windows().unwrap();
        let places = windows.iter().enumerate().map(|(place, window)| WindowRow { place, ..*window });
        assert_eq!(found, places.collect::<Vec<_>>());
        assert_eq!(others.0.schema(), batch.0.schema());
        let taken = Layout::with_vectors(&table).unwrap().with_windows().err().unwrap();
        assert!(matches!(taken, ColumnsError::Taken { column: "row" }), "{taken}");
    }
}

#[test]
fn the_space_of_vectors_is_in_the_metadata_of_the_schema() {
    for (format, space) in FORMATS.into_iter().flat_map(|format| [(format, Some("ab.cd")), (format, None)]) {
        let layout = Layout::of_ids(4).unwrap().with_space(Some("other")).with_space(space);
        let ids = Batch::of_texts(vec![("id", vec![Some("a".to_owned())])]).unwrap();
        let mut writer = Writer::new(format, &layout, Vec::new()).unwrap();
        writer.write(&ids.with_vectors(&layout, &[Ok::<_, String>(vec![1.0; 4])]).unwrap()).unwrap();
        let bytes: Bytes = writer.finish().unwrap().into();
        let schema = match format {
            Format::Arrow => {
                arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(bytes), None).unwrap().schema()
            }
            Format::Parquet => {
                let builder = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
                // Also for readers that know nothing of Arrow's schema.
                let pairs = builder.metadata().file_metadata().key_value_metadata().into_iter().flatten();
                let told = pairs.filter(|pair| pair.key == SPACE).find_map(|pair| pair.value.clone());
                assert_eq!(told.as_deref(), space);
                builder.schema().clone()
            }
        };
        assert_eq!(schema.metadata().get(SPACE).map(String::as_str), space, "{format:?}");
    }
}

#[test]
fn a_table_is_read_from_any_row_on() {
    for format in FORMATS {
        let table = open(file(format), format).unwrap();
        assert_eq!((table.rows(), table.has("text"), table.has("other")), (100, true, false));
        for from in [0, 1, 19, 20, 47, 99, 100] {
            let batches: Vec<Batch> = table.batches(from, 6).unwrap().collect::<Result<_, _>>().unwrap();
            assert!(batches.iter().all(|batch| (1..=6).contains(&batch.rows())));
            let ids: Vec<_> = batches.iter().flat_map(|batch| batch.ids("id").unwrap()).collect();
            assert_eq!(ids, (from..100).map(|n| json!(n)).collect::<Vec<_>>(), "{format:?} from {from}");
            let texts: Vec<_> = batches.iter().flat_map(|batch| batch.texts("text").unwrap()).collect();
            assert_eq!(texts.len(), 100 - from as usize);
            for (n, text) in (from..).zip(texts) {
                assert_eq!(text, (n % 7 != 3).then(|| format!("text {n}")));
            }
            let kinds: Vec<_> = batches.iter().flat_map(|batch| batch.texts("kind").unwrap()).flatten().collect();
            assert!((from..).zip(kinds).all(|(n, kind)| kind == if n % 2 == 0 { "even" } else { "odd" }));
        }
    }
}

#[test]
fn rows_keep_their_columns_beside_vectors() {
    for format in FORMATS {
        let table = open(file(format), format).unwrap();
        let layout = Layout::of(&table, 3).unwrap();
        let mut writer = Writer::new(format, &layout, Vec::new()).unwrap();
        let mut number = 0;
        for batch in table.batches(0, 7).unwrap() {
            let batch = batch.unwrap();
            let outcomes: Vec<_> = (0..batch.rows()).map(|row| outcome(number + row)).collect();
            number += batch.rows();
            writer.write(&batch.with_vectors(&layout, &outcomes).unwrap()).unwrap();
        }
        let found = open(writer.finish().unwrap().into(), format).unwrap();
        assert_eq!(found.columns(), "'id', 'text', 'kind', 'embedding', 'error'");
        let mut number = 0;
        for batch in found.batches(0, 1000).unwrap() {
            let Batch(batch) = batch.unwrap();
            let ids = batch.column(0).as_primitive::<Int64Type>();
            let (vectors, errors) = (batch.column(3).as_fixed_size_list(), batch.column(4).as_string::<i32>());
            for row in 0..batch.num_rows() {
                assert_eq!(ids.value(row), number as i64);
                match outcome(number) {
                    Ok(expected) => {
                        let vector = vectors.value(row);
                        assert_eq!(vector.as_primitive::<Float32Type>().values().as_ref(), expected);
                        assert!(errors.is_null(row));
                    }
                    Err(expected) => assert!(vectors.is_null(row) && errors.value(row) == expected),
                }
                number += 1;
            }
        }
        assert_eq!(number, 100);
        assert!(matches!(Layout::of(&found, 3), Err(ColumnsError::Taken { column: "embedding" })));
    }
}

fn outcome(number: usize) -> Result<Vec<f32>, String> {
    match number % 10 {
        4 => Err(format!("no {number}")),
        _ => Ok(vec![number as f32, -0.5, 0.25]),
    }
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    for format in FORMATS {
        let whole = file(format);
        for length in [0, 3, 9, 10, 11, whole.len() / 2, whole.len() - 1] {
            let error =
                open(whole.slice(..length), format).err().unwrap_or_else(|| panic!("{format:?} of {length} bytes"));
            assert!(error.to_string().contains(format.name()), "{error}");
        }
        assert!(open(Bytes::from(vec![7; 1000]), format).is_err());
    }
}

#[test]
fn changed_bytes_are_errors_and_never_a_crash() {
    for format in FORMATS {
        let whole = file(format);
        let mut seed = 7u64;
        for _ in 0..300 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let mut bytes = whole.to_vec();
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] ^= 1 << (seed % 8);
            // Any outcome is right as long as there is one.
            let Ok(table) = open(bytes.into(), format) else { continue };
            if table.rows() <= 1000 {
                let _ = table.batches(0, 64).map(|batches| batches.take(50).filter(Result::is_ok).count());
            }
        }
    }
}

#[test]
fn columns_of_other_types_are_refused() {
    let table = open(file(Format::Arrow), Format::Arrow).unwrap();
    let batch = table.batches(0, 5).unwrap().next().unwrap().unwrap();
    let error = |outcome: Result<_, ColumnsError>| outcome.map(|_: Vec<_>| ()).unwrap_err().to_string();
    assert!(
        error(batch.texts("id").map(|texts| texts.into_iter().map(drop).collect())).contains("Int64, expected texts")
    );
    assert!(
        error(batch.texts("no").map(|texts| texts.into_iter().map(drop).collect()))
            .contains("only 'id', 'text', 'kind'")
    );
    let texts = Batch(
        RecordBatch::try_from_iter([("id", Arc::new(StringArray::from(vec![Some("a"), None])) as ArrayRef)]).unwrap(),
    );
    assert_eq!(texts.ids("id").unwrap(), [json!("a"), json!(null)]);
    assert_eq!(Source::size(&file(Format::Parquet)), file(Format::Parquet).len() as u64);
}

//! Small files that claim much.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};

use super::{FORMATS, open};
use crate::limits::{COLUMNS, ROWS};
use crate::{Batch, ColumnsError, Format};

fn parquet(columns: Vec<(&str, ArrayRef)>, properties: WriterPropertiesBuilder) -> Bytes {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = properties.set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let mut writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap().into()
}

fn arrow(columns: Vec<(&str, ArrayRef)>) -> Bytes {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let options = arrow_ipc::writer::IpcWriteOptions::default()
        .try_with_compression(Some(arrow_ipc::CompressionType::ZSTD))
        .unwrap();
    let mut writer = arrow_ipc::writer::FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap().into()
}

fn file(format: Format, columns: Vec<(&str, ArrayRef)>) -> Bytes {
    match format {
        Format::Parquet => parquet(columns, WriterProperties::builder()),
        Format::Arrow => arrow(columns),
    }
}

/// All batches, or the first error.
fn read(bytes: Bytes, format: Format) -> Result<Vec<Batch>, ColumnsError> {
    open(bytes, format)?.batches(0, 512)?.collect()
}

fn refusal(bytes: Bytes, format: Format) -> String {
    assert!(bytes.len() < 4 << 20, "{} bytes", bytes.len());
    read(bytes, format).err().expect("it is refused").to_string()
}

fn text(bytes: usize) -> ArrayRef {
    Arc::new(StringArray::from(vec!["a".repeat(bytes)]))
}

#[test]
fn a_cell_of_many_bytes_is_refused() {
    for format in FORMATS {
        let error = refusal(file(format, vec![("text", text(40 << 20))]), format);
        assert!(error.contains("a row has 41943040 bytes, expected 33554432 at most"), "{error}");
    }
    let error = refusal(file(Format::Parquet, vec![("text", text(130 << 20))]), Format::Parquet);
    assert!(error.contains("column 'text': a page of 1 values has"), "{error}");
}

#[test]
fn a_list_of_many_values_in_one_row_is_refused() {
    let count = 12_000_000;
    let values = Arc::new(Int64Array::from(vec![7; count]));
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let list = ListArray::new(item, OffsetBuffer::from_lengths([count]), values, None);
    let error = refusal(parquet(vec![("text", Arc::new(list))], WriterProperties::builder()), Format::Parquet);
    assert!(error.contains("'text.list.item': a page of") && error.contains("once it is decoded"), "{error}");
}

#[test]
fn too_many_columns_are_refused() {
    let names: Vec<_> = (0..=COLUMNS).map(|n| format!("c{n}")).collect();
    let one: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let columns: Vec<_> = names.iter().map(|name| (name.as_str(), one.clone())).collect();
    for format in FORMATS {
        let error = refusal(file(format, columns.clone()), format);
        assert!(error.contains("2048 columns"), "{error}");
        assert!(read(file(format, columns[1..].to_vec()), format).is_ok());
    }
}

#[test]
fn a_text_that_many_rows_name_is_written_out_in_small_batches() {
    let (bytes, count) = (2 << 20, 64);
    let texts = StringArray::from(vec!["a".repeat(bytes)]);
    let keys = Int32Array::from(vec![0; count]);
    let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(texts.clone())));
    let plain: ArrayRef = Arc::new(StringArray::from(vec![texts.value(0); count]));
    // A dictionary that may have one such text, in pages of its own.
    let large = || WriterProperties::builder().set_dictionary_page_size_limit(8 << 20);
    let files = [
        (Format::Parquet, parquet(vec![("text", plain)], large())),
        (Format::Parquet, parquet(vec![("text", dictionary.clone())], large())),
        (Format::Arrow, arrow(vec![("text", dictionary)])),
    ];
    for (format, file) in files {
        assert!(file.len() < 1 << 20, "{} bytes", file.len());
        let mut found = 0;
        for batch in open(file, format).unwrap().batches(0, 512).unwrap() {
            let batch = batch.unwrap();
            assert!(batch.rows() * bytes <= ROWS as usize, "{} rows", batch.rows());
            assert!(batch.texts("text").unwrap().iter().flatten().all(|text| text.len() == bytes));
            found += batch.rows();
        }
        assert_eq!(found, count);
    }
}

#[test]
fn texts_within_lists_maps_and_structs_are_what_was_written() {
    let (mut lists, mut maps) =
        (ListBuilder::new(StringBuilder::new()), MapBuilder::new(None, StringBuilder::new(), StringBuilder::new()));
    for row in 0..100 {
        (0..row % 4).for_each(|n| lists.values().append_value(format!("a rather long text {row} {n}")));
        lists.append(row % 5 != 2);
        maps.keys().append_value(format!("key {row}"));
        maps.values().append_option((row % 3 != 0).then_some("a value that is no short one"));
        maps.append(row % 7 != 0).unwrap();
    }
    let kinds: DictionaryArray<Int32Type> = (0..100).map(|n| if n % 2 == 0 { "even" } else { "odd" }).collect();
    let field = Arc::new(Field::new("s", DataType::Utf8, true));
    let text: ArrayRef = Arc::new(StringArray::from_iter((0..100).map(|n| (n % 9 != 1).then(|| format!("text {n}")))));
    let structs = StructArray::from(vec![(field, text)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("lists", Arc::new(lists.finish())),
        ("maps", Arc::new(maps.finish())),
        ("structs", Arc::new(structs)),
        ("kind", Arc::new(kinds)),
    ];
    let expected = RecordBatch::try_from_iter(columns.clone()).unwrap();
    let small = WriterProperties::builder().set_max_row_group_row_count(Some(30)).set_data_page_row_count_limit(4);
    for (format, file) in [(Format::Parquet, parquet(columns.clone(), small)), (Format::Arrow, arrow(columns.clone()))]
    {
        for from in [0, 1, 29, 30, 31, 77] {
            let mut row = from;
            for batch in open(file.clone(), format).unwrap().batches(from as u64, 7).unwrap() {
                let Batch(batch) = batch.unwrap();
                let same = expected.slice(row, batch.num_rows());
                for place in 0..3 {
                    assert_eq!(batch.column(place).to_data(), same.column(place).to_data(), "{format:?} {row} {place}");
                }
                assert_eq!(batch.column(3).as_string::<i32>().value(0), if row % 2 == 0 { "even" } else { "odd" });
                row += batch.num_rows();
            }
            assert_eq!(row, 100);
        }
    }
}

#[test]
fn encodings_whose_pages_may_claim_any_size_are_refused_or_checked() {
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..100).map(|n| format!("text number {n}"))));
    let encoded = |encoding| {
        let properties = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding);
        parquet(vec![("text", texts.clone())], properties)
    };
    let error = refusal(encoded(Encoding::DELTA_BYTE_ARRAY), Format::Parquet);
    assert!(error.contains("column 'text': its encoding is DELTA_BYTE_ARRAY"), "{error}");
    let found = read(encoded(Encoding::DELTA_LENGTH_BYTE_ARRAY), Format::Parquet).unwrap();
    assert_eq!(found[0].texts("text").unwrap()[99].as_deref(), Some("text number 99"));
}

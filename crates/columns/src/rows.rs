//! Rows as they are given away: small batches, without views and dictionaries.
//!
//! A view or a key of a dictionary is small, whatever it stands for: what rows have once they are written out is counted first.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryArray, FixedSizeListArray, GenericListArray, LargeBinaryArray, LargeStringArray, MapArray,
    OffsetSizeTrait, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, FieldRef, Fields};
use arrow_select::take::take;

use crate::limits::{ROW, ROWS};

/// Fields without dictionaries; `is_deep` says whether also within lists, structs and maps.
pub fn plain(fields: &Fields, is_deep: bool) -> Fields {
    let plain = |kind: &DataType| match kind {
        DataType::Dictionary(_, value) => value.as_ref().clone(),
        other => other.clone(),
    };
    fields.iter().map(|field| changed(field, &plain, is_deep)).collect()
}

/// Fields with views in place of texts and bytes.
pub fn views(fields: &Fields) -> Fields {
    let view = |kind: &DataType| match kind {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        other => other.clone(),
    };
    fields.iter().map(|field| changed(field, &view, true)).collect()
}

/// A field whose type is changed, and those within it.
fn changed(field: &FieldRef, change: &dyn Fn(&DataType) -> DataType, is_deep: bool) -> FieldRef {
    let within = |inner: &FieldRef| if is_deep { changed(inner, change, true) } else { inner.clone() };
    let kind = match change(field.data_type()) {
        DataType::List(inner) => DataType::List(within(&inner)),
        DataType::LargeList(inner) => DataType::LargeList(within(&inner)),
        DataType::FixedSizeList(inner, length) => DataType::FixedSizeList(within(&inner), length),
        DataType::Map(inner, is_sorted) => DataType::Map(within(&inner), is_sorted),
        DataType::Struct(inner) => DataType::Struct(inner.iter().map(within).collect()),
        other => other,
    };
    match kind == *field.data_type() {
        true => field.clone(),
        false => Arc::new(field.as_ref().clone().with_data_type(kind)),
    }
}

/// The parts of a batch that are given away one by one; why there are none, if a row is too large.
pub fn parts(batch: &RecordBatch) -> Result<Vec<Range<usize>>, String> {
    let mut sizes = vec![0u64; batch.num_rows()];
    for column in batch.columns() {
        add_sizes(column, &mut sizes);
    }
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0u64);
    for (row, size) in sizes.into_iter().enumerate() {
        if size > ROW {
            return Err(format!("a row has {size} bytes, expected {ROW} at most"));
        }
        if bytes + size > ROWS && row > from {
            parts.push(from..row);
            (from, bytes) = (row, 0);
        }
        bytes += size;
    }
    parts.push(from..batch.num_rows());
    Ok(parts)
}

/// Adds the bytes that each row of an array has once it is written out.
fn add_sizes(array: &dyn Array, sizes: &mut [u64]) {
    /// Bytes of a value of a type that has no width, and least bytes of one in a list: as JSON it takes more.
    const OTHER: u64 = 16;
    fn lists<O: OffsetSizeTrait>(offsets: &[O], values: &dyn Array, sizes: &mut [u64]) {
        let Some((first, last)) = offsets.first().zip(offsets.last()) else { return };
        let (first, last) = (first.as_usize(), last.as_usize());
        let values = values.slice(first, last - first);
        let places = offsets.windows(2).map(|pair| pair[0].as_usize() - first..pair[1].as_usize() - first);
        add_ranges(&values, places, sizes);
    }
    fn add_ranges(values: &dyn Array, places: impl Iterator<Item = Range<usize>>, sizes: &mut [u64]) {
        if let Some(width) = values.data_type().primitive_width().map(|width| width.max(OTHER as usize)) {
            return sizes.iter_mut().zip(places).for_each(|(size, place)| *size += (place.len() * width) as u64);
        }
        let mut inner = vec![0u64; values.len()];
        add_sizes(values, &mut inner);
        for (size, place) in sizes.iter_mut().zip(places) {
            *size += inner[place].iter().sum::<u64>();
        }
    }
    fn offsets<O: OffsetSizeTrait>(offsets: &[O], sizes: &mut [u64]) {
        let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]).as_usize() as u64);
        sizes.iter_mut().zip(lengths).for_each(|(size, length)| *size += length);
    }
    // The lower half of a view is its length.
    let lengths = |views: &[u128], sizes: &mut [u64]| {
        sizes.iter_mut().zip(views).for_each(|(size, view)| *size += u64::from(*view as u32));
    };
    match array.data_type() {
        DataType::Null => {}
        DataType::Utf8 => offsets(array.as_string::<i32>().offsets(), sizes),
        DataType::LargeUtf8 => offsets(array.as_string::<i64>().offsets(), sizes),
        DataType::Binary => offsets(array.as_binary::<i32>().offsets(), sizes),
        DataType::LargeBinary => offsets(array.as_binary::<i64>().offsets(), sizes),
        DataType::Utf8View => lengths(array.as_string_view().views(), sizes),
        DataType::BinaryView => lengths(array.as_binary_view().views(), sizes),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = dictionary.values();
            if values.is_empty() {
                return;
            }
            let mut inner = vec![0u64; values.len()];
            add_sizes(values, &mut inner);
            let keys = dictionary.normalized_keys();
            for (row, (size, key)) in sizes.iter_mut().zip(keys).enumerate() {
                *size += if array.is_valid(row) { inner.get(key).copied().unwrap_or_default() } else { 0 };
            }
        }
        DataType::List(_) => lists(array.as_list::<i32>().offsets(), array.as_list::<i32>().values(), sizes),
        DataType::LargeList(_) => lists(array.as_list::<i64>().offsets(), array.as_list::<i64>().values(), sizes),
        DataType::Map(..) => lists(array.as_map().offsets(), array.as_map().entries(), sizes),
        DataType::FixedSizeList(_, length) => {
            let length = usize::try_from(*length).unwrap_or_default();
            let places = (0..array.len()).map(|row| row * length..(row + 1) * length);
            add_ranges(array.as_fixed_size_list().values(), places, sizes);
        }
        DataType::Struct(_) => array.as_struct().columns().iter().for_each(|column| add_sizes(column, sizes)),
        DataType::FixedSizeBinary(width) => sizes.iter_mut().for_each(|size| *size += (*width).max(0) as u64),
        other => {
            let width = other.primitive_width().map_or(OTHER, |width| width as u64);
            sizes.iter_mut().for_each(|size| *size += width);
        }
    }
}

/// An array as one of type `target`, which has no views and no dictionary where the array has.
pub fn written_out(array: &ArrayRef, target: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == target {
        return Ok(array.clone());
    }
    fn list<O: OffsetSizeTrait>(list: &GenericListArray<O>, field: &FieldRef) -> Result<ArrayRef, ArrowError> {
        let (offsets, values) = inner(list.offsets(), list.values(), field)?;
        Ok(Arc::new(GenericListArray::<O>::try_new(field.clone(), offsets, values, list.nulls().cloned())?))
    }
    /// The values that offsets name, and the offsets into those.
    fn inner<O: OffsetSizeTrait>(
        offsets: &OffsetBuffer<O>,
        values: &dyn Array,
        field: &FieldRef,
    ) -> Result<(OffsetBuffer<O>, ArrayRef), ArrowError> {
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        let values = values.slice(first.as_usize(), (last - first).as_usize());
        let offsets = OffsetBuffer::new(offsets.iter().map(|offset| *offset - first).collect());
        Ok((offsets, written_out(&values, field.data_type())?))
    }
    Ok(match (array.data_type(), target) {
        (DataType::Dictionary(..), _) => {
            let dictionary = array.as_any_dictionary();
            return written_out(&take(dictionary.values(), dictionary.keys(), None)?, target);
        }
        (DataType::Utf8View, DataType::Utf8) => Arc::new(array.as_string_view().iter().collect::<StringArray>()),
        (DataType::Utf8View, DataType::LargeUtf8) => {
            Arc::new(array.as_string_view().iter().collect::<LargeStringArray>())
        }
        (DataType::BinaryView, DataType::Binary) => Arc::new(array.as_binary_view().iter().collect::<BinaryArray>()),
        (DataType::BinaryView, DataType::LargeBinary) => {
            Arc::new(array.as_binary_view().iter().collect::<LargeBinaryArray>())
        }
        (DataType::List(_), DataType::List(field)) => list(array.as_list::<i32>(), field)?,
        (DataType::LargeList(_), DataType::LargeList(field)) => list(array.as_list::<i64>(), field)?,
        (DataType::FixedSizeList(..), DataType::FixedSizeList(field, length)) => {
            let lists = array.as_fixed_size_list();
            let values = written_out(lists.values(), field.data_type())?;
            Arc::new(FixedSizeListArray::try_new(field.clone(), *length, values, lists.nulls().cloned())?)
        }
        (DataType::Map(..), DataType::Map(field, is_sorted)) => {
            let maps = array.as_map();
            let (offsets, entries) = inner(maps.offsets(), maps.entries(), field)?;
            let entries = entries.as_struct().clone();
            Arc::new(MapArray::try_new(field.clone(), offsets, entries, maps.nulls().cloned(), *is_sorted)?)
        }
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let columns = array.as_struct().columns().iter().zip(fields);
            let columns = columns.map(|(column, field)| written_out(column, field.data_type()));
            let columns = columns.collect::<Result<_, _>>()?;
            Arc::new(StructArray::try_new(fields.clone(), columns, array.nulls().cloned())?)
        }
        _ => array.clone(),
    })
}

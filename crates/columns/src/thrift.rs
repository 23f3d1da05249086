//! Thrift's compact protocol, as far as a look at Parquet's footer and page headers needs it: sizes are seen before a library makes room.

use crate::limits::{COLUMNS, DEPTH};

/// Reads values from bytes. Each method gives `None` where the bytes end or contradict themselves.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A field of a struct: its number and the code of its type.
#[derive(Clone, Copy)]
struct Field {
    id: i64,
    kind: u8,
}

/// The header of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageHeader {
    /// The content of the page: [`PageHeader::DICTIONARY`], or values.
    pub kind: i64,
    /// Bytes of the page without compression.
    pub size: u64,
    /// Bytes of the page in the file.
    pub stored: u64,
    pub values: u64,
    pub encoding: i64,
    /// Bytes of the header itself.
    pub length: u64,
}

/// The codes of types that have other values in them.
const LISTS: [u8; 2] = [9, 10];
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Deepest nesting of values. Parquet's own structs are less than ten deep.
const NESTED: usize = 24;

/// Elements of a schema that a column may have around it, on average.
const AROUND: usize = 4;

// === impl PageHeader ===

impl PageHeader {
    pub const DICTIONARY: i64 = 2;

    /// Reads the header at the beginning of `bytes`; `None` if the bytes end before it does, or are none.
    pub fn read(bytes: &[u8]) -> Option<PageHeader> {
        let mut cursor = Cursor { bytes, at: 0 };
        let mut header = PageHeader::default();
        let mut last = 0;
        while let Some(field) = cursor.field(&mut last)? {
            match field.id {
                1 => header.kind = cursor.number(field)?,
                2 => header.size = u64::try_from(cursor.number(field)?).ok()?,
                3 => header.stored = u64::try_from(cursor.number(field)?).ok()?,
                // Values in version 1, of a dictionary, and in version 2, where the encoding comes behind two other counts.
                5 | 7 => (header.values, header.encoding) = cursor.counts(field, 2)?,
                8 => (header.values, header.encoding) = cursor.counts(field, 4)?,
                _ => cursor.skip(field.kind, NESTED)?,
            }
        }
        Some(PageHeader { length: cursor.at as u64, ..header })
    }
}

/// Looks through the footer of a Parquet file: why it is refused, or nothing. Lists have as many elements as they say, and the schema is
/// neither too wide nor too deep.
pub fn check_footer(footer: &[u8]) -> Result<(), String> {
    let mut cursor = Cursor { bytes: footer, at: 0 };
    let damaged = || "its end is damaged".to_owned();
    let mut last = 0;
    while let Some(field) = cursor.field(&mut last).ok_or_else(damaged)? {
        match field.id {
            2 if LISTS.contains(&field.kind) => {
                let children = cursor.schema().ok_or_else(damaged)?;
                check_schema(&children)?;
            }
            _ => cursor.skip(field.kind, NESTED).ok_or_else(damaged)?,
        }
    }
    Ok(())
}

/// `children` has the number of children of each element, a parent before its children.
fn check_schema(children: &[u64]) -> Result<(), String> {
    let leaves = children.iter().filter(|children| **children == 0).count();
    if leaves > COLUMNS || children.len() > COLUMNS * AROUND {
        return Err(format!(
            "it has {leaves} columns in {} elements, expected {COLUMNS} columns at most: write files with fewer columns",
            children.len()
        ));
    }
    // Children that are still to come, at each depth.
    let mut open: Vec<u64> = Vec::new();
    for children in children {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if *children > 0 {
            open.push(*children);
        }
        // A list is two elements deep.
        if open.len() > 2 * DEPTH {
            return Err(format!("its types are nested deeper than {DEPTH}"));
        }
    }
    Ok(())
}

// === impl Cursor ===

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field of a struct whose last field was `last`; `Some(None)` at the struct's end.
    fn field(&mut self, last: &mut i64) -> Option<Option<Field>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        let id = match byte >> 4 {
            0 => self.zigzag()?,
            step => last.checked_add(i64::from(step))?,
        };
        *last = id;
        Some(Some(Field { id, kind: byte & 15 }))
    }

    /// A whole number.
    fn number(&mut self, field: Field) -> Option<i64> {
        match field.kind {
            3 => Some(i64::from(self.byte()? as i8)),
            4..=6 => self.zigzag(),
            _ => None,
        }
    }

    /// The kind and number of a list's elements, of which each has a byte at least.
    fn elements(&mut self) -> Option<(u8, usize)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            count => usize::from(count),
        };
        (count <= self.bytes.len() - self.at).then_some((byte & 15, count))
    }

    /// Passes over a value.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            1 | 2 => {}
            3 => self.pass(1)?,
            4..=6 => drop(self.varint()?),
            7 => self.pass(8)?,
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.pass(length)?;
            }
            9 | 10 => {
                let (kind, count) = self.elements()?;
                for _ in 0..count {
                    self.element(kind, depth)?;
                }
            }
            MAP => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 15, depth)?;
                }
            }
            STRUCT => {
                let mut last = 0;
                while let Some(field) = self.field(&mut last)? {
                    self.skip(field.kind, depth)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Passes over an element of a list. Other than a field's, a boolean has a byte of its own.
    fn element(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => self.pass(1),
            kind => self.skip(kind, depth),
        }
    }

    fn pass(&mut self, bytes: usize) -> Option<()> {
        self.at = self.at.checked_add(bytes).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    /// Field 1, the values, and field `encoding` of the struct in a page's header.
    fn counts(&mut self, field: Field, encoding: i64) -> Option<(u64, i64)> {
        let mut found = (0, 0);
        if field.kind != STRUCT {
            return None;
        }
        let mut last = 0;
        while let Some(field) = self.field(&mut last)? {
            match field.id {
                1 => found.0 = u64::try_from(self.number(field)?).ok()?,
                id if id == encoding => found.1 = self.number(field)?,
                _ => self.skip(field.kind, NESTED)?,
            }
        }
        Some(found)
    }

    /// The number of children (field 5) of each element of a schema.
    fn schema(&mut self) -> Option<Vec<u64>> {
        let (kind, count) = self.elements()?;
        if kind != STRUCT {
            return None;
        }
        let mut all = Vec::new();
        for _ in 0..count {
            let (mut last, mut children) = (0, 0);
            while let Some(field) = self.field(&mut last)? {
                match field.id {
                    5 => children = u64::try_from(self.number(field)?).ok()?,
                    _ => self.skip(field.kind, NESTED)?,
                }
            }
            all.push(children);
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_one_that_breaks_off_is_none() {
        // Type 0, 1000 bytes of which 300 are stored, a header of version 1 with 7 values in encoding 8.
        let bytes = [0x15, 0, 0x15, 0xd0, 0x0f, 0x15, 0xd8, 0x04, 0x2c, 0x15, 14, 0x15, 16, 0, 0];
        let header =
            PageHeader { kind: 0, size: 1000, stored: 300, values: 7, encoding: 8, length: bytes.len() as u64 };
        assert_eq!(PageHeader::read(&bytes), Some(header));
        assert!((0..bytes.len()).all(|end| PageHeader::read(&bytes[..end]).is_none()));
        // A negative size.
        assert_eq!(PageHeader::read(&[0x15, 0, 0x15, 1, 0]), None);
    }

    #[test]
    fn lists_are_as_long_as_they_say() {
        // Field 4, a list of 2^28 structs in a few bytes.
        assert!(check_footer(&[0x49, 0xfc, 0x80, 0x80, 0x80, 0x80, 0x01, 0, 0]).is_err());
        assert_eq!(check_footer(&[0x49, 0x2c, 0, 0, 0]), Ok(()));
    }

    #[test]
    fn schemas_are_neither_too_wide_nor_too_deep() {
        assert_eq!(check_schema(&[2, 0, 1, 0]), Ok(()));
        assert!(check_schema(&[vec![1; 3 * DEPTH], vec![0]].concat()).unwrap_err().contains("nested deeper"));
        assert!(check_schema(&vec![0; COLUMNS + 1]).unwrap_err().contains("expected 2048 columns"));
    }
}

//! The tables of the file.

use redb::TableDefinition;

/// Revision, time of writing, time of lapsing, value.
pub type Kept<'a> = (u64, u64, u64, &'a [u8]);

/// The values by bucket and key.
pub const VALUES: TableDefinition<'_, (&str, &str), Kept<'_>> = TableDefinition::new("values");

/// By bucket and revision: the key, and whether the change is a deletion.
pub const REVISIONS: TableDefinition<'_, (&str, u64), (&str, bool)> = TableDefinition::new("revisions");

/// Time of lapsing, bucket and key of the values that lapse.
pub const LAPSES: TableDefinition<'_, (u64, &str, &str), ()> = TableDefinition::new("lapses");

/// Under one key: the last revision.
pub const LAST: TableDefinition<'_, (), u64> = TableDefinition::new("last");

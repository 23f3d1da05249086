//! Tests that measure, or that load the whole machine: no other program of tests runs beside them.

mod chaos;
mod overload;

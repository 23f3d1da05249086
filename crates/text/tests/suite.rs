//! All tests of this folder in one program, because each program that is linked takes seconds.

mod chat;
mod golden;
mod long;
mod slow;
mod tokenizer;

//! trireme-tokenizer

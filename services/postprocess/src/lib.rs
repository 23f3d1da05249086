//! trireme-postprocess

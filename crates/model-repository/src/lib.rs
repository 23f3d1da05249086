//! trireme-model-repository

//! Integration tests against the real binary.

//! The arithmetic of admission as pure functions: charge, reserve, fit, score, quota, lifecycle, retry.

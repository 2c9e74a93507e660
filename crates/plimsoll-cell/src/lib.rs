//! The cell's server: HTTP API, engine loop, host calls, auth, metrics.

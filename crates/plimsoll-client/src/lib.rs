//! HTTP client with honest retries: full jitter, deadline, Retry-After as a floor.

//! Every bound that more than one crate must agree on, with the reason for its size.

/// Bounds on what callers may send and on what is kept.
pub mod bounds {
    /// Longest name of a tenant, host, pool, plan or template: one DNS label.
    pub const NAME_LENGTH_MAX: usize = 63;
    /// Largest configured memory of one guest in MiB: 16 TiB, above any machine of today, small
    /// enough that sums over a million guests stay within 64 bits.
    pub const MEMORY_MIB_MAX: u64 = 16 * 1024 * 1024;
    /// Most vCPUs of one guest: above any machine of today.
    pub const VCPUS_MAX: u64 = 4096;
    /// Longest idempotency key in bytes: room for a UUID with a prefix, several times over.
    pub const IDEMPOTENCY_KEY_LENGTH_MAX: usize = 255;
    /// Most labels on one sandbox or host.
    pub const LABELS_MAX: usize = 64;
    /// Longest label key or value in bytes.
    pub const LABEL_LENGTH_MAX: usize = 256;
    /// Most words of a command.
    pub const COMMAND_WORDS_MAX: usize = 256;
    /// Most bytes of a command with all its words, and of an environment: well below what Linux
    /// takes in one `execve`.
    pub const COMMAND_BYTES_MAX: usize = 64 * 1024;
    /// Most environment variables of one sandbox.
    pub const ENV_MAX: usize = 256;
    /// Most items of one reservation batch.
    pub const BATCH_ITEMS_MAX: usize = 1000;
    /// Longest time to live of an uncommitted reservation in seconds: an hour.
    pub const RESERVATION_TTL_SECONDS_MAX: u64 = 3600;
    /// Longest wait that a caller may ask for in seconds.
    pub const WAIT_SECONDS_MAX: u64 = 600;
    /// Shortest lifecycle limit in seconds (a shorter one would fight the sweep).
    pub const LIFECYCLE_SECONDS_MIN: i64 = 60;
    /// Longest lifecycle limit in seconds: ten years.
    pub const LIFECYCLE_SECONDS_MAX: i64 = 315_360_000;
    /// Priorities run from minus this to plus this.
    pub const PRIORITY_MAX: i32 = 1000;
    /// Most guests or reservations that one heartbeat may list.
    pub const HEARTBEAT_GUESTS_MAX: usize = 100_000;
    /// Most distinct counted resources on one host or template.
    pub const COUNTED_MAX: usize = 32;
    /// Most bytes of a guest's output in one answer: half of what a host keeps for certain, and
    /// some five thousand lines.
    pub const OUTPUT_BYTES_MAX: usize = 512 * 1024;
    /// Most rows of one list page.
    pub const PAGE_LIMIT_MAX: usize = 1000;
}

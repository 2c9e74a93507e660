//! The cell's state machine: ledger, slots, queue, hosts and tenants, without I/O.

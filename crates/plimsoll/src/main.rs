//! The plimsoll binary: subcommands and wiring.
fn main() {}

//! What must hold at every moment, by the ids that the simulator, the tests and the production
//! counter share.

use core::fmt;

macro_rules! invariants {
    ($($id:ident = $text:literal,)*) => {
        /// One promise of the whole system. A breach refuses, never admits, and is counted; it
        /// never panics a server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant {
            $(#[doc = $text] $id,)*
        }

        impl Invariant {
            /// Every invariant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$id,)*];

            /// The id, as the metric's label says it.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self {
                    $(Self::$id => stringify!($id),)*
                }
            }

            /// What holds, in one sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$id => $text,)*
                }
            }
        }
    };
}

invariants! {
    I1 = "No admission leaves a tenant above a concurrency limit, burst included, counting the one admitted.",
    I2 = "The slots that a pool has given out never exceed its limit, unless a backend woke a guest by itself; then the pool shows as overcommitted.",
    I3 = "At each admission the charges on the host, the new one included, are within its budget.",
    I4 = "Stateful memory is charged in full, stays within the physical budget, and is never touched under pressure.",
    I5 = "Every reservation ends: committed, released or expired. On an idle fleet nothing is reserved.",
    I6 = "An acknowledged sandbox survives a crash, and one idempotency key starts at most one guest.",
    I7 = "A capacity refusal never turns a record into a failed one.",
    I8 = "No capacity refusal rests on a remembered absence.",
    I9 = "With all else equal, an older policy snapshot never admits what a newer one refuses.",
    I10 = "Nothing is deleted unless every precondition holds at that moment.",
    I11 = "Every event is delivered at least once under a stable id, crash or not, until its endpoint is given up on.",
    I12 = "At most one victim is being paused for each waiting sandbox.",
    I13 = "The sum over the records equals every counter that is kept for speed.",
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id(), self.text())
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn ids_run_from_i1_to_i13() {
        assert_eq!(Invariant::ALL.len(), 13);
        for (at, invariant) in Invariant::ALL.iter().enumerate() {
            assert_eq!(invariant.id(), format!("I{}", at + 1));
            assert!(invariant.to_string().starts_with(&format!("I{}: ", at + 1)));
            assert!(invariant.text().ends_with('.'));
        }
    }
}

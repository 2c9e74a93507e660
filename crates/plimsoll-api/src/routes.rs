//! Every route in one table: the document is made from it, and server and agent are held against
//! it by their tests.

use plimsoll_types::RefusalCode;

use crate::plan::Role;

mod admin;
mod agent;
mod build;
mod open;
mod public;

const TABLES: &[&[Route]] = &[public::PUBLIC, admin::ADMIN, open::OPEN, agent::AGENT];
const ROUTES_LENGTH: usize =
    public::PUBLIC.len() + admin::ADMIN.len() + open::OPEN.len() + agent::AGENT.len();
static ALL: [Route; ROUTES_LENGTH] = build::concat(TABLES);

/// Every route of cell and agent.
pub static ROUTES: &[Route] = &ALL;

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is the method of its name")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// The method as a request has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// Who serves a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The cell.
    Cell,
    /// The agent of each host.
    Agent,
    /// Both.
    Both,
}

/// Who may ask. An operator may ask for everything that the cell serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anybody.
    Open,
    /// Anybody, unless the operator has closed it.
    OpenUnlessClosed,
    /// A tenant, for itself.
    Tenant,
    /// An operator.
    Operator,
    /// A host, for itself.
    Host,
    /// Whoever knows the host's own secret: its cell.
    Secret,
}

impl Access {
    /// Whether a key of the given role may ask; what it sees is bounded by its tenant or host.
    #[must_use]
    pub const fn allows(self, role: Role) -> bool {
        match self {
            Self::Open | Self::OpenUnlessClosed => true,
            Self::Tenant => matches!(role, Role::Tenant | Role::Operator),
            Self::Operator => matches!(role, Role::Operator),
            Self::Host => matches!(role, Role::Host | Role::Operator),
            Self::Secret => false,
        }
    }

    /// The word for documents and snapshots.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::OpenUnlessClosed => "open unless closed",
            Self::Tenant => "tenant",
            Self::Operator => "operator",
            Self::Host => "host",
            Self::Secret => "host secret",
        }
    }
}

/// What a route does, which says how it may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Says something about the service itself.
    Plain,
    /// Shows what is there.
    Read,
    /// Changes what is there.
    Write,
    /// Asks for room that is not held yet.
    Admit,
    /// Asks for room for something that is there.
    Wake,
    /// Tells a host what to do.
    Command,
}

impl Kind {
    /// The refusals that a caller should expect, in the order of the table.
    #[must_use]
    pub const fn refusals(self) -> &'static [RefusalCode] {
        use RefusalCode::{
            BudgetExhausted, Conflict, Degraded, Forbidden, HostPressure, HostStartsSaturated,
            InvalidRequest, NeverFits, NoCapacity, NoHealthyHosts, NotFound, NotLeader, Overloaded,
            PayloadTooLarge, QuotaExceeded, RateLimited, ReservationExpired, StartFailed,
            StoreUnavailable, TenantSuspended, Unauthenticated, UnknownPool, UnknownTemplate,
            WaitingTimeout,
        };
        match self {
            Self::Plain => &[],
            Self::Read => {
                &[Overloaded, NotLeader, InvalidRequest, Unauthenticated, Forbidden, NotFound]
            }
            Self::Write => &[
                Overloaded,
                NotLeader,
                StoreUnavailable,
                UnknownTemplate,
                UnknownPool,
                InvalidRequest,
                PayloadTooLarge,
                Unauthenticated,
                Forbidden,
                NotFound,
                Conflict,
                ReservationExpired,
            ],
            Self::Admit => &[
                NoCapacity,
                NoHealthyHosts,
                HostStartsSaturated,
                HostPressure,
                Degraded,
                Overloaded,
                NotLeader,
                StoreUnavailable,
                RateLimited,
                QuotaExceeded,
                BudgetExhausted,
                TenantSuspended,
                NeverFits,
                UnknownTemplate,
                UnknownPool,
                InvalidRequest,
                PayloadTooLarge,
                Unauthenticated,
                Forbidden,
                NotFound,
                Conflict,
                StartFailed,
            ],
            Self::Wake => &[
                WaitingTimeout,
                Overloaded,
                NotLeader,
                StoreUnavailable,
                RateLimited,
                BudgetExhausted,
                TenantSuspended,
                InvalidRequest,
                PayloadTooLarge,
                Unauthenticated,
                Forbidden,
                NotFound,
                Conflict,
                StartFailed,
            ],
            Self::Command => &[
                NoCapacity,
                HostStartsSaturated,
                HostPressure,
                InvalidRequest,
                PayloadTooLarge,
                Unauthenticated,
                NotFound,
                Conflict,
                StartFailed,
            ],
        }
    }
}

/// The body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// None.
    None,
    /// A value of the schema of this name.
    Needed(&'static str),
    /// The same, or nothing.
    Optional(&'static str),
}

/// The body of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// None.
    None,
    /// A value of the schema of this name.
    One(&'static str),
    /// A page of such values.
    Page(&'static str),
    /// One of these.
    Either(&'static [&'static str]),
    /// Text of this media type.
    Text(&'static str),
}

/// A parameter in the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// JSON type of its value.
    pub value: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Whether it may be given more than once.
    pub repeats: bool,
    /// Whether it must be given.
    pub needed: bool,
}

/// One route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, parameters in braces.
    pub path: &'static str,
    /// The operation's id; the client's method for it has the same name, where there is one.
    pub id: &'static str,
    /// Who serves it.
    pub service: Service,
    /// Who may ask.
    pub access: Access,
    /// What it does, which says how it may be refused.
    pub kind: Kind,
    /// What it does, for people.
    pub summary: &'static str,
    /// Parameters of its query.
    pub query: &'static [Parameter],
    /// The body of its request.
    pub body: RequestBody,
    /// Answers that are no refusals.
    pub answers: &'static [(u16, AnswerBody)],
    /// Whether it takes an `Idempotency-Key`.
    pub keyed: bool,
}

impl Route {
    /// Whether the cell serves it.
    #[must_use]
    pub const fn is_of_cell(&self) -> bool {
        matches!(self.service, Service::Cell | Service::Both)
    }

    /// Whether the agent serves it.
    #[must_use]
    pub const fn is_of_agent(&self) -> bool {
        matches!(self.service, Service::Agent | Service::Both)
    }
}

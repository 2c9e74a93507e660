//! Routes for operators.

use super::Access::Operator;
use super::AnswerBody::{None as Nothing, One, Page};
use super::Kind::{Read, Write};
use super::Method::{Delete, Get, Patch, Post, Put};
use super::Route;
use super::build::{CURSOR, FROM, LIMIT, OF_TENANT, PAGE, TO, parameter, route};

/// Routes for operators.
pub(super) const ADMIN: &[Route] = &[
    // Operators: plans, tenants, keys.
    route(Get, "/v1/admin/plans", "plans", Operator, Read, "List plans", &[(200, Page("Plan"))])
        .query(PAGE),
    route(
        Post,
        "/v1/admin/plans",
        "create_plan",
        Operator,
        Write,
        "Make a plan; where its name is taken, change what the body names, as PATCH does (200)",
        &[(201, One("Plan")), (200, One("Plan"))],
    )
    .body("Plan")
    .keyed(),
    route(
        Get,
        "/v1/admin/plans/{id}",
        "plan",
        Operator,
        Read,
        "Show a plan",
        &[(200, One("Plan"))],
    ),
    route(
        Patch,
        "/v1/admin/plans/{id}",
        "patch_plan",
        Operator,
        Write,
        "Change a plan's limits, counter by counter; `null` is unlimited",
        &[(200, One("Plan"))],
    )
    .body("LimitsPatch"),
    route(
        Delete,
        "/v1/admin/plans/{id}",
        "delete_plan",
        Operator,
        Write,
        "Remove a plan that no tenant has",
        &[(204, Nothing)],
    ),
    route(
        Get,
        "/v1/admin/tenants",
        "tenants",
        Operator,
        Read,
        "List tenants",
        &[(200, Page("Tenant"))],
    )
    .query(PAGE),
    route(
        Post,
        "/v1/admin/tenants",
        "create_tenant",
        Operator,
        Write,
        "Make a tenant; where its name is taken, change what the body names, as PATCH does (200)",
        &[(201, One("Tenant")), (200, One("Tenant"))],
    )
    .body("CreateTenant")
    .keyed(),
    route(
        Get,
        "/v1/admin/tenants/{id}",
        "tenant",
        Operator,
        Read,
        "Show a tenant",
        &[(200, One("Tenant"))],
    ),
    route(
        Patch,
        "/v1/admin/tenants/{id}",
        "patch_tenant",
        Operator,
        Write,
        "Change a tenant",
        &[(200, One("Tenant"))],
    )
    .body("TenantPatch"),
    route(
        Delete,
        "/v1/admin/tenants/{id}",
        "delete_tenant",
        Operator,
        Write,
        "Remove a tenant that has nothing alive",
        &[(204, Nothing)],
    ),
    route(
        Get,
        "/v1/admin/keys",
        "keys",
        Operator,
        Read,
        "List keys, without their secrets",
        &[(200, Page("Key"))],
    )
    .query(PAGE),
    route(
        Post,
        "/v1/admin/keys",
        "create_key",
        Operator,
        Write,
        "Make a key; it is shown once",
        &[(201, One("NewKey"))],
    )
    .body("CreateKey")
    .keyed(),
    route(
        Get,
        "/v1/admin/keys/{id}",
        "key",
        Operator,
        Read,
        "Show a key, without its secret",
        &[(200, One("Key"))],
    ),
    route(
        Delete,
        "/v1/admin/keys/{id}",
        "delete_key",
        Operator,
        Write,
        "Remove a key",
        &[(204, Nothing)],
    ),
    // Operators: pools, templates.
    route(Get, "/v1/admin/pools", "pools", Operator, Read, "List pools", &[(200, Page("Pool"))])
        .query(PAGE),
    route(
        Post,
        "/v1/admin/pools",
        "create_pool",
        Operator,
        Write,
        "Make a pool; where its name is taken, change what the body names, as PATCH does (200)",
        &[(201, One("Pool")), (200, One("Pool"))],
    )
    .body("Pool")
    .keyed(),
    route(
        Get,
        "/v1/admin/pools/{name}",
        "pool",
        Operator,
        Read,
        "Show a pool",
        &[(200, One("Pool"))],
    ),
    route(
        Patch,
        "/v1/admin/pools/{name}",
        "patch_pool",
        Operator,
        Write,
        "Change a pool",
        &[(200, One("Pool"))],
    )
    .body("PoolPatch"),
    route(
        Delete,
        "/v1/admin/pools/{name}",
        "delete_pool",
        Operator,
        Write,
        "Remove a pool that has neither hosts nor sandboxes",
        &[(204, Nothing)],
    ),
    route(
        Get,
        "/v1/admin/templates",
        "templates",
        Operator,
        Read,
        "List templates",
        &[(200, Page("Template"))],
    )
    .query(PAGE),
    route(
        Post,
        "/v1/admin/templates",
        "create_template",
        Operator,
        Write,
        "Make a template; where its name is taken, change what the body names, as PATCH does (200)",
        &[(201, One("Template")), (200, One("Template"))],
    )
    .body("Template")
    .keyed(),
    route(
        Get,
        "/v1/admin/templates/{name}",
        "template",
        Operator,
        Read,
        "Show a template",
        &[(200, One("Template"))],
    ),
    route(
        Patch,
        "/v1/admin/templates/{name}",
        "patch_template",
        Operator,
        Write,
        "Change a template; guests that exist keep the shape that they were made with",
        &[(200, One("Template"))],
    )
    .body("TemplatePatch"),
    route(
        Delete,
        "/v1/admin/templates/{name}",
        "delete_template",
        Operator,
        Write,
        "Remove a template; guests made from it stay",
        &[(204, Nothing)],
    ),
    // Operators: hosts, decisions, policy, status.
    route(
        Get,
        "/v1/admin/hosts",
        "hosts",
        Operator,
        Read,
        "List hosts as the cell sees them",
        &[(200, Page("HostView"))],
    )
    .query(PAGE),
    route(
        Post,
        "/v1/admin/hosts",
        "enrol_host",
        Operator,
        Write,
        "Say where a provider of an external pool is, or say it anew",
        &[(200, One("HostView"))],
    )
    .body("EnrolHost"),
    route(
        Delete,
        "/v1/admin/hosts/{id}/guests/{guest}",
        "end_unexpected_guest",
        Operator,
        Write,
        "End a guest that a host has and should not have; its next report tells whether it is gone",
        &[(202, Nothing)],
    ),
    route(
        Get,
        "/v1/admin/hosts/{id}",
        "host",
        Operator,
        Read,
        "Show a host as the cell sees it",
        &[(200, One("HostView"))],
    ),
    route(
        Delete,
        "/v1/admin/hosts/{id}",
        "delete_host",
        Operator,
        Write,
        "Forget a host that is dead and empty",
        &[(204, Nothing)],
    ),
    route(
        Post,
        "/v1/admin/hosts/{id}/drain",
        "drain_host",
        Operator,
        Write,
        "Place nothing new on a host",
        &[(200, One("HostView"))],
    ),
    route(
        Post,
        "/v1/admin/hosts/{id}/undrain",
        "undrain_host",
        Operator,
        Write,
        "Take a host back in",
        &[(200, One("HostView"))],
    ),
    route(
        Get,
        "/v1/admin/decisions",
        "decisions",
        Operator,
        Read,
        "List decisions, newest first",
        &[(200, Page("DecisionView"))],
    )
    .query(&[
        OF_TENANT,
        parameter("code", "string", "Only refusals of this code."),
        FROM,
        TO,
        LIMIT,
        CURSOR,
    ]),
    route(
        Get,
        "/v1/admin/decisions/{id}",
        "decision",
        Operator,
        Read,
        "Show a decision",
        &[(200, One("DecisionView"))],
    ),
    route(
        Put,
        "/v1/admin/policy",
        "put_policy",
        Operator,
        Write,
        "Hand over a signed policy snapshot: 200 where it is taken, 409 with why it is not",
        &[(200, One("PolicyView"))],
    )
    .body("Envelope"),
    route(
        Get,
        "/v1/admin/policy",
        "policies",
        Operator,
        Read,
        "Show what policy is held, its mode and age, pool by pool",
        &[(200, Page("PolicyView"))],
    ),
    route(
        Get,
        "/v1/admin/status",
        "status",
        Operator,
        Read,
        "Show how the cell is",
        &[(200, One("Status"))],
    ),
];

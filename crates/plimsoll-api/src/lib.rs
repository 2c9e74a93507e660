//! Wire bodies, the table of refusals, and the OpenAPI document.

//! `pools` and `templates`.

use plimsoll_api::{Pool, PoolPatch, Template, TemplatePatch};
use plimsoll_types::{PoolName, TemplateName};

use super::objects::{self as group, group};
use crate::show::{limit, opt, yes};

group! {
    /// Pools.
    Pools, "pool", PoolName, "name", Pool, PoolPatch, Pool:
    create_pool, pools, pool, patch_pool, delete_pool;
    columns &[
        "pool", ">slots", "regime", "pause", "preemption", "placement", "overflow", ">reserve floor",
        ">fraction bp", ">stale s", ">dead s", "external",
    ];
    row |pool| {
        let overflow: Vec<&str> = pool.overflow.iter().map(PoolName::as_str).collect();
        vec![
            pool.name.to_string(),
            limit(pool.limit),
            pool.regime.to_string(),
            pool.pause.to_string(),
            pool.preemption.mode.to_string(),
            pool.placement.to_string(),
            overflow.join(" "),
            pool.reserve.floor_mib.get().to_string(),
            pool.reserve.fraction_bp.get().to_string(),
            pool.stale_seconds.to_string(),
            pool.dead_seconds.to_string(),
            yes(pool.external),
        ]
    };
}

group! {
    /// Templates.
    Templates, "template", TemplateName, "name", Template, TemplatePatch, Template:
    create_template, templates, template, patch_template, delete_template;
    columns &[
        "template", "driver", ">mib", ">overhead", ">vcpus", "stateful", "baked", "pool",
        "rootfs", "command",
    ];
    row |template| vec![
        template.name.to_string(),
        template.driver.to_string(),
        template.memory_mib.to_string(),
        template.overhead_mib.to_string(),
        template.vcpus.to_string(),
        yes(template.stateful),
        yes(template.baked),
        opt(template.pool.as_ref()),
        opt(template.rootfs.as_ref()),
        template.command.join(" "),
    ];
}
